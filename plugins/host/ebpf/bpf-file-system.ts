// The BPF file system below the place of pins: found, or mounted where it is missing. What is pinned there lives as long
// as the host runs, whatever becomes of the agent.
import { mkdir } from "node:fs/promises";
import { existsSync } from "node:fs";
import { dirname } from "node:path";
import { fileSystemFacts } from "../../../ffi/host/files.ts";
import { mount, mountFlags } from "../../../ffi/host/mounts.ts";
import { isHostError } from "../../../ffi/status.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";

const BPF_FS_MAGIC = 0xcafe_4a11;
/** Where every distribution mounts it. */
const USUAL_PLACE = "/sys/fs/bpf";

/** Whether `path`, or the nearest directory above it that exists, is on a BPF file system. */
export async function isOnBpfFileSystem(path: string): Promise<boolean> {
  return existsSync(path)
    ? (await fileSystemFacts(path)).type === BPF_FS_MAGIC
    : path !== "/" && (await isOnBpfFileSystem(dirname(path)));
}

/**
 * Makes `pinRoot` a directory of a BPF file system that only root enters, mounting one at the usual place, or for another place at
 * `pinRoot` itself. Rejects with `CAPABILITY_MISSING` where that is not possible.
 */
export async function ensureBpfFileSystem(pinRoot: string): Promise<void> {
  if (!(await isOnBpfFileSystem(pinRoot))) await mountFor(pinRoot);
  await mkdir(pinRoot, { recursive: true, mode: 0o700 });
}

async function mountFor(pinRoot: string): Promise<void> {
  const target = pinRoot === USUAL_PLACE || pinRoot.startsWith(`${USUAL_PLACE}/`) ? USUAL_PLACE : pinRoot;
  try {
    if (target !== USUAL_PLACE) await mkdir(target, { recursive: true, mode: 0o700 });
    const flags = mountFlags.noSuid | mountFlags.noDevices | mountFlags.noExecute;
    await mount("bpf", { target, type: "bpf", options: "mode=0700", flags });
  } catch (cause) {
    if (!isHostError(cause) && (cause as NodeJS.ErrnoException).code === undefined) throw cause;
    throw new AgentError("CAPABILITY_MISSING", `no BPF file system can be mounted at ${target}`, {
      details: { capability: "bpffs", remedy: `mount -t bpf bpf ${target}` },
      cause,
    });
  }
}
