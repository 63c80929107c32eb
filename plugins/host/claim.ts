// Some values are host-wide: two agents that hand out the same uids, or the same ids of machines, would let their
// sandboxes touch each other. Each agent claims its range of each kind in one place, under one lock, before it gives out
// the first value. A claim is a file that names the state directory; it holds as long as that directory exists, because
// sandboxes outlive their agent.
import { chmod, mkdir, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { FileLock } from "../../ffi/host/files.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

/** The same for every agent on a host, whatever its own directories are. */
export const CLAIMS_DIR = "/run/fluxvm/claims";
const LOCK_NAME = "lock";
const LOCK_TRIES = 200;
const LOCK_PAUSE_MS = 25;

export interface Claim {
  readonly kind: "uid" | "cid";
  readonly stateDir: string;
  readonly first: number;
  readonly count: number;
}

/** Claims the range. Rejects with `CONFIG_INVALID` naming the agent that has a part of it, and `configKey`. */
export async function claimRange(claim: Claim, configKey: string, claimsDir = CLAIMS_DIR): Promise<void> {
  await makeClaimsDir(claimsDir);
  await using _lock = await takeLock(join(claimsDir, LOCK_NAME));
  for (const name of await readdir(claimsDir)) {
    if (!name.endsWith(".json")) continue;
    const path = join(claimsDir, name);
    const other = await readClaim(path);
    if (other === null || isSame(claim, other) || !(await isDirectory(other.stateDir))) {
      await rm(path, { force: true });
    } else if (overlap(claim, other)) {
      throw new AgentError(
        "CONFIG_INVALID",
        `${claim.kind}s ${claim.first} to ${claim.first + claim.count - 1} overlap with those of the agent at ` +
          `${other.stateDir}; set another ${configKey}`,
      );
    }
  }
  const path = join(claimsDir, `${claim.kind}-${claim.first}.json`);
  await writeFile(`${path}.new`, JSON.stringify(claim), { mode: 0o600 });
  await rename(`${path}.new`, path);
}

/** An agent has one range of a kind, which it may move. */
const isSame = (one: Claim, other: Claim): boolean => one.kind === other.kind && one.stateDir === other.stateDir;

const overlap = (one: Claim, other: Claim): boolean =>
  one.kind === other.kind && other.first < one.first + one.count && one.first < other.first + other.count;

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
async function readClaim(path: string): Promise<Claim | null> {
  try {
    const { kind, stateDir, first, count } = JSON.parse(await readFile(path, "utf8")) as Partial<Claim>;
    if ((kind !== "uid" && kind !== "cid") || typeof stateDir !== "string") return null;
    if (!Number.isInteger(first) || !Number.isInteger(count)) return null;
    return { kind, stateDir, first: first as number, count: count as number };
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
