// What this host can do with BPF, found out by asking its kernel.
import { runJob } from "../channel.ts";
import { fileSystemFacts } from "../host/files.ts";
import { isHostError } from "../status.ts";

/** Type of a file system that pins can be made in. */
const BPF_FILE_SYSTEM = 0xcafe4a11;

/** Loads the smallest program there is. Null: it can; else the code of the error: `EPERM`, `ENOSYS`. */
export async function whyBpfCannotLoad(): Promise<string | null> {
  try {
    await runJob("bpfProbeLoad", {});
    return null;
  } catch (error) {
    if (isHostError(error)) return error.code;
    throw error;
  }
}

/** Whether programs can be attached by TCX (kernel 6.6 and later). */
export async function hasTcx(): Promise<boolean> {
  return (await runJob("bpfProbeTcx", {})).supported === 1;
}

/** Whether pins can be made below `path`. False also when it does not exist. */
export async function isBpfFileSystem(path: string): Promise<boolean> {
  try {
    return (await fileSystemFacts(path)).type === BPF_FILE_SYSTEM;
  } catch (error) {
    if (isHostError(error, "ENOENT", "ENOTDIR")) return false;
    throw error;
  }
}
