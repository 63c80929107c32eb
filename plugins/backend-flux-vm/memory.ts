// The guest's memory as a file on a tmpfs of its own, which may have huge pages whatever the host does elsewhere. The mount
// is there while the machine starts; once the hypervisor has the file open, nobody else can reach it any more, and it goes
// with the last who uses it.
import { mkdir, open, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { mount, mountFlags, unmount } from "../../ffi/host/mounts.ts";
import { isHostError } from "../../ffi/status.ts";
import type { Release, ResourceScope } from "../../src/contracts/resource.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

export const MEMORY = "flux-vm-memory";
const MIB = 1024 * 1024;
const FILE = "ram";
/** A huge page at the end is whole. */
const HUGE_PAGE_MIB = 2;

/** Makes the file below `directory`, which is made for it, and gives its path. */
export async function makeMemory(
  resources: ResourceScope,
  name: string,
  directory: string,
  memoryMib: number,
): Promise<string> {
  return await resources.acquire({ kind: MEMORY, name, data: { directory } }, async () => {
    await mkdir(directory, { mode: 0o700 });
    await mountMemory(directory, Math.ceil(memoryMib / HUGE_PAGE_MIB) * HUGE_PAGE_MIB);
    const path = join(directory, FILE);
    const file = await open(path, "wx", 0o600);
    try {
      await file.truncate(memoryMib * MIB);
    } finally {
      await file.close();
    }
    return path;
  });
}

async function mountMemory(target: string, sizeMib: number): Promise<void> {
  const { noSuid, noDevices, noExecute } = mountFlags;
  const options = `size=${sizeMib}m,mode=700`;
  const request = { target, type: "tmpfs", options, flags: noSuid | noDevices | noExecute };
  await mount("fluxvm-memory", { ...request, options: `${options},huge=advise` }).catch(async (error: unknown) => {
    // A kernel without huge pages knows no such option.
    if (!isHostError(error, "EINVAL")) throw error;
    await mount("fluxvm-memory", request);
  });
}

/** Takes the mount out of sight. The file stays for whoever has it open. */
export const releaseMemory: Release = async ({ data }) => {
  const { directory } = data;
  if (typeof directory !== "string" || !directory.startsWith("/")) {
    throw new AgentError("INTERNAL", "a row of a guest's memory has no directory");
  }
  await unmount(directory, { detach: true }).catch((error: unknown) => {
    if (!isHostError(error, "EINVAL", "ENOENT")) throw error;
  });
  await rmdir(directory).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOENT") throw error;
  });
};
