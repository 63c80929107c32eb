// What a machine has written of its disk, in its volume, when the machine is started from a snapshot: then nothing of it is
// wanted any more, and it is not even looked at, as a machine that was taken over may have made it useless. It is put aside
// until the machine runs, so that a start that fails loses nothing.
import { rename } from "node:fs/promises";
import { join } from "node:path";
import { makeRoom } from "../host/machine-places.ts";
import { DISK_LAYER } from "./boot-config.ts";

const ASIDE = `${DISK_LAYER}.before-restore`;
/** Where the hypervisor makes a layer before it takes its place. */
const UNFINISHED = `${DISK_LAYER}.unfinished`;

/** Before a start. What one that failed, or was cut off by a crash of the agent, has put aside is the disk again. */
export async function prepareLayer(volumeDir: string, isRestore: boolean): Promise<void> {
  const [layer, aside] = [join(volumeDir, DISK_LAYER), join(volumeDir, ASIDE)];
  await makeRoom(join(volumeDir, UNFINISHED));
  await move(aside, layer);
  if (isRestore) await move(layer, aside);
}

/** The machine runs. */
export async function forgetLayerBefore(volumeDir: string): Promise<void> {
  await makeRoom(join(volumeDir, ASIDE));
}

/** In the place of whatever is there; nothing is done where there is nothing to move. */
async function move(from: string, to: string): Promise<void> {
  await rename(from, to).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return;
    // One of the two is a directory.
    await makeRoom(to);
    await rename(from, to);
  });
}
