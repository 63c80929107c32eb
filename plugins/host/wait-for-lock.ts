// Locks on files of the whole host, which others hold for a moment.
import { FileLock } from "../../ffi/host/files.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

const TRIES = 200;
const PAUSE_MS = 25;

/** Takes the lock, after whoever has it. Rejects with `STATE_LOCKED` when that lasts for more than some seconds. */
export async function waitForLock(path: string): Promise<FileLock> {
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const lock = await FileLock.take(path);
    if (lock !== null) return lock;
    await Bun.sleep(PAUSE_MS);
  }
  throw new AgentError("STATE_LOCKED", `the lock ${path} is held for too long`);
}
