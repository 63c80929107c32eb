// Mounts. Each is made private: what is mounted below it does not spread into other mount namespaces.
import { runJob } from "../channel.ts";

/** Mount flags of the kernel that this project uses. */
export const mountFlags = { readOnly: 1, noSuid: 2, noDevices: 4, noExecute: 8, noAccessTimes: 1024 } as const;

export interface MountRequest {
  readonly target: string;
  readonly type: string;
  /** Options of the file system itself, comma-separated. */
  readonly options: string;
  /** Sum of `mountFlags`. */
  readonly flags: number;
}

/** Mounts `source` at an existing directory. */
export async function mount(source: string, request: MountRequest): Promise<void> {
  await runJob("mount", { source, ...request }, request.target);
}

/** Mounts an image file through a loop device, which goes by itself after the last unmount. */
export async function mountImage(image: string, request: MountRequest): Promise<{ loopNumber: number }> {
  return runJob("mountImage", { image, ...request }, image);
}

/** `EBUSY`: in use; `EINVAL`: nothing is mounted there. `detach` hides it at once and unmounts after the last use. */
export async function unmount(target: string, options: { readonly detach: boolean }): Promise<void> {
  await runJob("unmount", { target, detach: options.detach ? 1 : 0 }, target);
}
