// One agent per place of pins: two that shared one would take each other's programs for remains. The claim is a file
// that names the agent's state directory; it holds as long as that directory exists, because what is attached outlives
// the agent.
import { mkdir, readdir, readFile, realpath, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { AgentError } from "../../../src/errors/agent-error.ts";
import { CLAIMS_DIR, isClaimant, makeClaimsDir } from "../claim.ts";
import { waitForLock } from "../wait-for-lock.ts";

/** Claims `pinRoot` for the agent at `stateDir`. Rejects with `CONFIG_INVALID` naming the agent that has it. */
export async function claimPins(pinRoot: string, stateDir: string, claimsDir = CLAIMS_DIR): Promise<void> {
  await makeClaimsDir(claimsDir);
  const directory = join(claimsDir, "pins");
  await mkdir(directory, { recursive: true, mode: 0o700 });
  await using _lock = await waitForLock(join(directory, "lock"));
  await forgetTheGone(directory);
  const path = await claimFile(directory, pinRoot);
  const holder = (await readClaim(path))?.holder ?? null;
  if (holder === stateDir) return;
  if (holder !== null) {
    throw new AgentError(
      "CONFIG_INVALID",
      `${pinRoot} belongs to the agent at ${holder}; set another sandbox.dataplane.pin_root`,
    );
  }
  await writeFile(`${path}.new`, JSON.stringify({ pin_root: pinRoot, state_dir: stateDir }), { mode: 0o600 });
  await rename(`${path}.new`, path);
}

/** Places that the agent at `stateDir` claimed since the host started and that are not `pinRoot`. */
export async function earlierPins(
  pinRoot: string,
  stateDir: string,
  claimsDir = CLAIMS_DIR,
): Promise<readonly string[]> {
  const current = await canonical(pinRoot);
  return (await claimedPins(stateDir, claimsDir)).filter((place) => place !== current);
}

/** Places that the agent at `stateDir` claimed since the host started. */
export async function claimedPins(stateDir: string, claimsDir = CLAIMS_DIR): Promise<readonly string[]> {
  const directory = join(claimsDir, "pins");
  const found = await readdir(directory).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
  const names = found.filter((name) => name.endsWith(".json"));
  const claims = await Promise.all(names.map((name) => readClaim(join(directory, name))));
  const own = claims.flatMap((claim) => (claim?.holder === stateDir && claim.pinRoot !== null ? [claim.pinRoot] : []));
  return await Promise.all(own.map(canonical));
}

/** State directory of the agent that has `pinRoot`; null: nobody's. */
export async function holderOfPins(pinRoot: string, claimsDir = CLAIMS_DIR): Promise<string | null> {
  const claim = await readClaim(await claimFile(join(claimsDir, "pins"), pinRoot));
  return claim !== null && (await isClaimant(claim.holder)) ? claim.holder : null;
}

async function claimFile(directory: string, pinRoot: string): Promise<string> {
  const name = new Bun.CryptoHasher("sha256").update(await canonical(pinRoot)).digest("hex");
  return join(directory, `${name}.json`);
}

/** A claim ends with the state directory that it names. */
async function forgetTheGone(directory: string): Promise<void> {
  for (const name of await readdir(directory)) {
    const path = join(directory, name);
    const holder = name.endsWith(".json") ? (await readClaim(path))?.holder : undefined;
    if (holder !== undefined && !(await isClaimant(holder))) await rm(path, { force: true });
  }
}

/** The name of a place, whichever way leads to it; its last parts may not exist yet. */
async function canonical(path: string): Promise<string> {
  try {
    return await realpath(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT" || path === "/") throw error;
    return join(await canonical(dirname(path)), path.slice(path.lastIndexOf("/") + 1));
  }
}

interface Claim {
  readonly holder: string;
  readonly pinRoot: string | null;
}

/** Null for what was cut by a crash: it claims nothing. */
async function readClaim(path: string): Promise<Claim | null> {
  try {
    const { state_dir: holder, pin_root: pinRoot } = JSON.parse(await readFile(path, "utf8")) as {
      state_dir?: unknown;
      pin_root?: unknown;
    };
    if (typeof holder !== "string") return null;
    return { holder, pinRoot: typeof pinRoot === "string" ? pinRoot : null };
  } catch {
    return null;
  }
}
