// Folders of the host that a machine shares: what a request may name, which places of the host are refused, and how QEMU is
// told. Each folder has a server of its own (`file-server.ts`) and is a device with a tag that the guest agent mounts.
import { realpath, stat } from "node:fs/promises";
import { join, normalize } from "node:path";
import { z } from "zod";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { HostFacts } from "../../src/contracts/plugin.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

const FOLDERS_MAX = 8;
const PATH_CHARS_MAX = 4096;
/** Of each server, beside the guest's memory. */
export const SERVER_MIB = 64;
const QUEUE_SIZE = 1024;
/** File systems of the kernel, whose content is no data. */
const KERNEL_PLACES = ["/proc", "/sys", "/dev"];

const place = z
  .string()
  .max(PATH_CHARS_MAX)
  .refine((path) => path.startsWith("/") && !path.includes("\0") && !path.split("/").includes(".."), "an absolute path")
  .transform((path) => normalize(path).replace(/(?<=.)\/$/, ""))
  .refine((path) => path !== "/" && !KERNEL_PLACES.some((kernel) => isWithin(path, kernel)), "no place for a folder");

export const sharedFolders = z
  .array(z.strictObject({ host_path: place, guest_path: place, read_only: z.boolean().default(false) }))
  .max(FOLDERS_MAX)
  .refine(
    (folders) =>
      folders.every(({ guest_path: one }, index) =>
        folders.every(({ guest_path: other }, at) => at === index || !isWithin(one, other)),
      ),
    "guest paths that lie in one another",
  );

export interface SharedFolder extends JsonObject {
  readonly host_path: string;
  readonly guest_path: string;
  readonly read_only: boolean;
}

/** What guest and host call the device of a folder. */
export const folderTag = (index: number): string => `fs${index}`;
export const folderSocket = (socketDir: string, index: number): string => join(socketDir, `${folderTag(index)}.sock`);

/**
 * Rejects with `BAD_REQUEST` for what is no directory, is reached through a link, or is a place of the agent's own. What is
 * there when the machine starts counts, so this is asked at every launch.
 */
export async function assertShareable(folders: readonly SharedFolder[], host: HostFacts): Promise<void> {
  const own = await Promise.all([host.stateDir, host.runDir, host.instancesDir].map(realOr));
  for (const { host_path: path } of folders) {
    const refuse = (why: string): never => {
      throw new AgentError("BAD_REQUEST", `shared_folders: ${path} ${why}`);
    };
    const real = await realpath(path).catch((error: NodeJS.ErrnoException) => refuse(`cannot be read (${error.code})`));
    if (real !== path) refuse(`is reached through a link; name ${real}`);
    if (!(await stat(path)).isDirectory()) refuse("is not a directory");
    if (own.some((dir) => isWithin(dir, path) || isWithin(path, dir)))
      refuse("holds, or lies in, the agent's own files");
  }
}

/** What QEMU is told of the folders; `suffix` is the machine's transport. Their servers read the guest's memory. */
export function folderArguments(folders: readonly SharedFolder[], socketDir: string, suffix: string): string[] {
  return folders.flatMap((_, index) => {
    const tag = folderTag(index);
    return [
      ...["-chardev", `socket,id=${tag},path=${folderSocket(socketDir, index).replaceAll(",", ",,")}`],
      ...["-device", `vhost-user-fs-${suffix},chardev=${tag},tag=${tag},queue-size=${QUEUE_SIZE}`],
    ];
  });
}

/** The guest's memory for a machine with shared folders, which QEMU names `ram`. */
export function sharedMemory(memoryMib: number): string[] {
  return ["-object", `memory-backend-memfd,id=ram,size=${memoryMib}M,share=on`];
}

/** For the config disk. */
export function foldersForGuest(folders: readonly SharedFolder[]): JsonObject[] {
  return folders.map(({ guest_path: path, read_only }, index) => ({ tag: folderTag(index), path, read_only }));
}

function isWithin(path: string, dir: string): boolean {
  return path === dir || path.startsWith(`${dir}/`);
}

async function realOr(path: string): Promise<string> {
  return await realpath(path).catch(() => path);
}
