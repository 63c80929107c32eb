// What of networks is on a host, for those who look at it; whichever dataplane decides there.
import { existsSync } from "node:fs";
import { isOnBpfFileSystem } from "./bpf-file-system.ts";

export const CILIUM_SOCKET = "/var/run/cilium/cilium.sock";

/** `pinRoot`: where programs and maps are, or would be, pinned. */
export async function networkPresence(pinRoot: string) {
  return {
    pinRootPresent: existsSync(pinRoot),
    bpffsPresent: await isOnBpfFileSystem(pinRoot),
    ciliumSocketPresent: existsSync(CILIUM_SOCKET),
  };
}
