// Uids are host-wide: two agents that hand out the same ones would let their sandboxes touch each other. Each agent
// claims its range in one place, under one lock, before it gives out the first uid. A claim is a file that names the
// state directory; it holds as long as that directory exists, because sandboxes outlive their agent.
import { chmod, mkdir, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { FileLock } from "../../ffi/host/files.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

/** The same for every agent on a host, whatever its own directories are. */
export const CLAIMS_DIR = "/run/fluxvm/claims";
const LOCK_NAME = "lock";
const LOCK_TRIES = 200;
const LOCK_PAUSE_MS = 25;

export interface UidClaim {
  readonly stateDir: string;
  readonly firstUid: number;
  readonly count: number;
}

/** Claims the range, or rejects with `CONFIG_INVALID` naming the agent that has a part of it. */
export async function claimUids(claim: UidClaim, claimsDir = CLAIMS_DIR): Promise<void> {
  await makeClaimsDir(claimsDir);
  await using _lock = await takeLock(join(claimsDir, LOCK_NAME));
  for (const name of await readdir(claimsDir)) {
    if (!name.endsWith(".json")) continue;
    const path = join(claimsDir, name);
    const other = await readClaim(path);
    if (other === null || other.stateDir === claim.stateDir || !(await isDirectory(other.stateDir))) {
      await rm(path, { force: true });
      continue;
    }
    if (other.firstUid < claim.firstUid + claim.count && claim.firstUid < other.firstUid + other.count) {
      throw new AgentError(
        "CONFIG_INVALID",
        `uids ${claim.firstUid} to ${claim.firstUid + claim.count - 1} overlap with those of the agent at ` +
          `${other.stateDir}; set another sandbox.procbox.uid_base`,
      );
    }
  }
  const path = join(claimsDir, `${claim.firstUid}.json`);
  await writeFile(`${path}.new`, JSON.stringify(claim), { mode: 0o600 });
  await rename(`${path}.new`, path);
}

/** The directory above is also the usual run directory, which sandboxes pass through whoever makes it first. */
async function makeClaimsDir(claimsDir: string): Promise<void> {
  const above = dirname(claimsDir);
  if ((await mkdir(above, { recursive: true })) !== undefined) await chmod(above, 0o711);
  await mkdir(claimsDir, { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "EEXIST") throw error;
  });
}

async function takeLock(path: string): Promise<FileLock> {
  for (let attempt = 0; attempt < LOCK_TRIES; attempt++) {
    const lock = await FileLock.take(path);
    if (lock !== null) return lock;
    await Bun.sleep(LOCK_PAUSE_MS);
  }
  throw new AgentError("STATE_LOCKED", `the lock ${path} is held for too long`);
}

/** Null for a file that is not a claim: what was cut by a crash claims nothing. */
async function readClaim(path: string): Promise<UidClaim | null> {
  try {
    const value = JSON.parse(await readFile(path, "utf8")) as Partial<UidClaim>;
    const { stateDir, firstUid, count } = value;
    if (typeof stateDir !== "string" || !Number.isInteger(firstUid) || !Number.isInteger(count)) return null;
    return { stateDir, firstUid: firstUid as number, count: count as number };
  } catch {
    return null;
  }
}

async function isDirectory(path: string): Promise<boolean> {
  return stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );
}
