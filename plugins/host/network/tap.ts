// The tap device of a prepared network, as whoever runs a machine gets it: its queues, open, as descriptors.
import { close } from "node:fs";
import { openTap } from "../../../ffi/host/links.ts";
import { asHostFailure } from "../../../ffi/status.ts";
import type { SandboxNetwork } from "../../../src/contracts/network.ts";
import type { HelperConfig } from "../helper.ts";
import { namespacePath } from "./names.ts";

export type Tap = NonNullable<HelperConfig["tap"]>;

/** For the helper that opens it; null where there is no network of the host's. */
export function tapOf(network: SandboxNetwork | null, queues: number): Tap | null {
  if (network?.tap == null) return null;
  const { namespace, tap: name } = network;
  const macvtap = network.mode === "macvtap";
  return { namespace: namespace === null ? null : namespacePath(namespace), name, queues, macvtap };
}

/**
 * Runs `use` with the open queues of a device in this process, which are closed afterwards: whoever goes on with them has
 * copies. Rejects as it does, and with `INTERNAL` where a queue cannot be opened.
 */
export async function withTap<T>(
  { namespace, name, queues }: Tap,
  use: (queues: readonly number[]) => Promise<T>,
): Promise<T> {
  const open: number[] = [];
  try {
    while (open.length < queues) {
      open.push(
        await openTap(namespace, name, queues > 1).catch((error: unknown) => {
          throw asHostFailure(error, `the device ${name} cannot be opened`);
        }),
      );
    }
    return await use(open);
  } finally {
    await Promise.all(open.map(closed));
  }
}

/** Never on this thread: the last one of a device waits for the kernel. */
function closed(descriptor: number): Promise<void> {
  return new Promise((resolve) => close(descriptor, () => resolve()));
}
