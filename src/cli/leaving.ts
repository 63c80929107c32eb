// What an agent leaves on a host beside its own directories, as steps of its removal.
import { existsSync } from "node:fs";
import { basename, join } from "node:path";
import { CLAIMS_DIR } from "../../plugins/host/claim.ts";
import { HOST_TABLE_LOCK } from "../../plugins/host/host-table.ts";
import { type LeavingAgent, leaveHost, leavePlace, possessionsOf } from "../../plugins/host/leaving.ts";
import { RESOLVER_DIR } from "../../plugins/host/network/resolver.ts";
import { takeFileLock, withHostFacts } from "./host.ts";
import type { Step } from "./installation.ts";

/** Entries of the usual run directory that all agents of a host share, wherever their own directories are. */
const SHARED: ReadonlySet<string> = new Set([CLAIMS_DIR, RESOLVER_DIR, HOST_TABLE_LOCK].map((path) => basename(path)));

export interface Leaving {
  readonly steps: readonly Step[];
  /** What of the usual run directory other agents of this host need; nothing where there are none. */
  readonly needed: ReadonlySet<string>;
}

/** Before its directories are removed, of an agent that does not run. Only root's has left anything. */
export async function leavingOf(agent: LeavingAgent): Promise<Leaving> {
  const { pins, hasClaims, others } = await possessionsOf(agent);
  const directories = { state_dir: agent.stateDir, run_dir: agent.runDir };
  const native = (action: () => Promise<void>) => (): Promise<void> => withHostFacts(directories, action);
  const lock = join(agent.runDir, "agent.lock");
  const steps: Step[] = [];
  if (existsSync(lock)) steps.push({ text: "see that no agent runs", take: native(() => assertEnded(lock)) });
  for (const place of pins) {
    steps.push({
      text: `end and remove what is pinned at ${place}`,
      take: native(() => leavePlace(place, agent)),
    });
  }
  if (hasClaims) {
    const shared = others.length === 0 ? ", and remove the host's nftables table" : "";
    const text = `give back what ${agent.stateDir} has claimed of this host${shared}`;
    steps.push({ text, take: native(() => leaveHost(agent)) });
  }
  return { steps, needed: others.length === 0 ? new Set() : SHARED };
}

/** One that was started by hand is not the unit's to stop. Rejects while an agent holds the lock. */
async function assertEnded(lock: string): Promise<void> {
  await using held = await takeFileLock(lock);
  if (held === null) throw new Error(`an agent runs, and holds ${lock}; stop it first`);
}
