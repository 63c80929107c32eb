// What an agent has of the host beside its own directories, given back for good: its pins and its claims, and with the
// last agent also what all of them share.
import { existsSync } from "node:fs";
import { rm, rmdir } from "node:fs/promises";
import { CLAIMS_DIR, claimants, releaseClaims } from "./claim.ts";
import { isOnBpfFileSystem } from "./ebpf/bpf-file-system.ts";
import { claimedPins, holderOfPins } from "./ebpf/claim.ts";
import { removeGuard } from "./ebpf/guard.ts";
import { removeAllLinks } from "./ebpf/hooks.ts";
import { ebpfPlaces, removePins } from "./ebpf/places.ts";
import { hostTableState, removeHostTable } from "./host-table.ts";
import { Resolver, RESOLVER_DIR } from "./network/resolver.ts";
import { hasNft, type NftPlace } from "./nft.ts";

/** One that does not run, and has no sandboxes. */
export interface LeavingAgent {
  readonly stateDir: string;
  readonly runDir: string;
  /** One more place where it may have pinned something: when what it had claimed is not known any more. */
  readonly extraPins?: string;
  /** Absent outside of tests: those of the host. */
  readonly claimsDir?: string;
  readonly resolverDir?: string;
  readonly nft?: NftPlace;
}

export interface Possessions {
  /** Places with pins of this agent. */
  readonly pins: readonly string[];
  readonly hasClaims: boolean;
  /** State directories of other agents on this host. */
  readonly others: readonly string[];
}

/** What there is to give back. */
export async function possessionsOf(agent: LeavingAgent): Promise<Possessions> {
  const { stateDir, claimsDir = CLAIMS_DIR, extraPins } = agent;
  const [claimed, all] = await Promise.all([claimedPins(stateDir, claimsDir), claimants(claimsDir)]);
  const isExtra =
    extraPins !== undefined &&
    !claimed.includes(extraPins) &&
    existsSync(extraPins) &&
    (await isOnBpfFileSystem(extraPins)) &&
    (await holderOfPins(extraPins, claimsDir)) === null;
  const pins = isExtra ? [...claimed, extraPins] : claimed;
  return { pins, hasClaims: all.includes(stateDir), others: all.filter((holder) => holder !== stateDir) };
}

/** Ends what is pinned at one of its places, the guard of an interface too, and removes the place where nothing is left. */
export async function leavePlace(place: string, { runDir }: LeavingAgent): Promise<void> {
  const places = ebpfPlaces(place, runDir);
  await removeGuard(places);
  await rm(places.guardPins, { recursive: true, force: true });
  if (existsSync(places.links)) await removeAllLinks(places);
  await removePins(places);
  await rmdir(place).catch((error: NodeJS.ErrnoException) => {
    // What somebody else has there, and a place that is a mount, stays.
    if (!["ENOENT", "ENOTEMPTY", "EBUSY"].includes(error.code ?? "")) throw error;
  });
}

/** Gives its claims back, and removes what agents share unless there are others. */
export async function leaveHost(agent: LeavingAgent): Promise<void> {
  const { stateDir, claimsDir = CLAIMS_DIR, resolverDir = RESOLVER_DIR, nft = {} } = agent;
  await releaseClaims(stateDir, claimsDir);
  if ((await possessionsOf(agent)).others.length > 0) return;
  if (existsSync(resolverDir)) await new Resolver("", resolverDir).endIfUnused();
  if (hasNft() && (await hostTableState(nft)) !== "absent") await removeHostTable(nft);
}
