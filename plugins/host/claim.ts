// Some values are host-wide: two agents that hand out the same uids, or the same ids of machines, would let their
// sandboxes touch each other. Each agent claims its range of each kind in one place, under one lock, before it gives out
// the first value. A claim is a file that names the state directory; it holds as long as that directory exists, because
// sandboxes outlive their agent.
import { chmod, mkdir, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { AgentError } from "../../src/errors/agent-error.ts";
import { waitForLock } from "./wait-for-lock.ts";

/** The same for every agent on a host, whatever its own directories are. */
export const CLAIMS_DIR = "/run/fluxvm/claims";
const LOCK_NAME = "lock";

export interface Claim {
  readonly kind: "uid" | "cid" | "address";
  readonly stateDir: string;
  readonly first: number;
  readonly count: number;
}

const WORDS: Readonly<Record<Claim["kind"], string>> = { uid: "uids", cid: "cids", address: "address blocks" };

/** Claims the range. Rejects with `CONFIG_INVALID` naming the agent that has a part of it, and `configKey`. */
export async function claimRange(claim: Claim, configKey: string, claimsDir = CLAIMS_DIR): Promise<void> {
  await makeClaimsDir(claimsDir);
  await using _lock = await waitForLock(join(claimsDir, LOCK_NAME));
  for (const name of await readdir(claimsDir)) {
    if (!name.endsWith(".json")) continue;
    const path = join(claimsDir, name);
    const other = await readClaim(path);
    if (other === null || isSame(claim, other) || !(await isClaimant(other.stateDir))) {
      await rm(path, { force: true });
    } else if (overlap(claim, other)) {
      throw new AgentError(
        "CONFIG_INVALID",
        `${WORDS[claim.kind]} ${claim.first} to ${claim.first + claim.count - 1} overlap with those of the agent at ` +
          `${other.stateDir}; set another ${configKey}`,
      );
    }
  }
  const path = join(claimsDir, `${claim.kind}-${claim.first}.json`);
  await writeFile(`${path}.new`, JSON.stringify(claim), { mode: 0o600 });
  await rename(`${path}.new`, path);
}

/** State directories of the agents that have claimed something of this host. */
export async function claimants(claimsDir = CLAIMS_DIR): Promise<readonly string[]> {
  const holders = [...new Set((await claimFiles(claimsDir)).map(({ holder }) => holder))];
  const exist = await Promise.all(holders.map(isClaimant));
  return holders.filter((_, index) => exist[index]);
}

/** Gives back everything that the agent at `stateDir` has claimed. */
export async function releaseClaims(stateDir: string, claimsDir = CLAIMS_DIR): Promise<void> {
  await makeClaimsDir(claimsDir);
  await using _lock = await waitForLock(join(claimsDir, LOCK_NAME));
  for (const { path, holder } of await claimFiles(claimsDir)) if (holder === stateDir) await rm(path, { force: true });
}

/** Every claim of whatever kind; what was cut by a crash claims nothing. */
async function claimFiles(claimsDir: string): Promise<readonly { readonly path: string; readonly holder: string }[]> {
  const names = await readdir(claimsDir, { recursive: true }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
  const paths = names.filter((name) => name.endsWith(".json")).map((name) => join(claimsDir, name));
  const claims = await Promise.all(paths.map(async (path) => ({ path, holder: await holderOf(path) })));
  return claims.flatMap(({ path, holder }) => (holder === null ? [] : [{ path, holder }]));
}

async function holderOf(path: string): Promise<string | null> {
  try {
    const { stateDir, state_dir } = JSON.parse(await readFile(path, "utf8")) as Readonly<Record<string, unknown>>;
    const holder = stateDir ?? state_dir;
    return typeof holder === "string" ? holder : null;
  } catch {
    return null;
  }
}

/** An agent has one range of a kind, which it may move. */
const isSame = (one: Claim, other: Claim): boolean => one.kind === other.kind && one.stateDir === other.stateDir;

const overlap = (one: Claim, other: Claim): boolean =>
  one.kind === other.kind && other.first < one.first + one.count && one.first < other.first + other.count;

/** The directory above is also the usual run directory, which sandboxes pass through whoever makes it first. */
export async function makeClaimsDir(claimsDir: string): Promise<void> {
  const above = dirname(claimsDir);
  if ((await mkdir(above, { recursive: true })) !== undefined) await chmod(above, 0o711);
  await mkdir(claimsDir, { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "EEXIST") throw error;
  });
}

/** Null for a file that is not a claim: what was cut by a crash claims nothing. */
async function readClaim(path: string): Promise<Claim | null> {
  try {
    const { kind, stateDir, first, count } = JSON.parse(await readFile(path, "utf8")) as Partial<Claim>;
    if ((kind !== "uid" && kind !== "cid" && kind !== "address") || typeof stateDir !== "string") return null;
    if (!Number.isInteger(first) || !Number.isInteger(count)) return null;
    return { kind, stateDir, first: first as number, count: count as number };
  } catch {
    return null;
  }
}

/** Whether the state directory of an agent is there: so long its claims hold. */
export async function isClaimant(stateDir: string): Promise<boolean> {
  return stat(stateDir).then(
    (found) => found.isDirectory(),
    () => false,
  );
}
