// What became of one packet of a guest: whether it arrived, and what the dataplane says of it in its totals, its flows and its
// denials. All four are looked at together, so that a dataplane that drops and does not say so fails like one that lets pass.
import type { Drop, Flow } from "../../src/contracts/dataplane.ts";
import type { DataplaneUnderTest } from "./dataplane.ts";
import type { Guest, Lab } from "./lab.ts";

export interface Decision {
  readonly arrived: boolean;
  readonly counted: "allowed" | "dropped" | "nothing";
  /** Of the flow that the packet belongs to; null when none took note of it. */
  readonly flow: Flow["verdict"] | null;
  readonly reason: number | null;
  readonly action: Drop["action"] | null;
}

export const ALLOWED: Decision = { arrived: true, counted: "allowed", flow: "allow", reason: null, action: null };

export function denied(reason: number): Decision {
  return { arrived: false, counted: "dropped", flow: "drop", reason, action: "drop" };
}

/** Denied by the policy and let through, since that only watches. */
export function audited(reason: number): Decision {
  return { arrived: true, counted: "allowed", flow: "drop", reason, action: "audit" };
}

/** Nobody tells of it, neither a total nor a flow. */
export const UNCOUNTED: Decision = { arrived: false, counted: "nothing", flow: null, reason: null, action: null };

/** Sends a frame of `guest` and tells what became of it. The world is where it goes. */
export async function decisionOf(
  lab: Lab,
  dataplane: DataplaneUnderTest,
  guest: Guest,
  frame: Uint8Array,
): Promise<Decision> {
  const before = await told(dataplane, guest);
  const arrivals = await guest.exchange(frame, lab.world);
  const after = await told(dataplane, guest);
  const flow = grown(before.flows, after.flows);
  const drop = grown(before.drops, after.drops);
  const allowed = after.stats.allowedPackets - before.stats.allowedPackets;
  const dropped = after.stats.droppedPackets - before.stats.droppedPackets;
  if (allowed + dropped > 1n) throw new Error(`one packet was counted ${allowed + dropped} times`);
  return {
    arrived: arrivals.length > 0,
    counted: allowed === 1n ? "allowed" : dropped === 1n ? "dropped" : "nothing",
    flow: flow?.verdict ?? null,
    reason: drop?.reasonCode ?? null,
    action: drop?.action ?? null,
  };
}

async function told(dataplane: DataplaneUnderTest, guest: Guest) {
  const stats = await dataplane.stats(guest);
  return { stats, flows: await dataplane.flows(guest), drops: await dataplane.drops(guest) };
}

/** The row that is new, or that counts more packets than before. */
function grown<Row extends { readonly packets: bigint; readonly lastSeenNs: bigint; readonly bytes: bigint }>(
  before: readonly Row[],
  after: readonly Row[],
): Row | undefined {
  const known = new Map(before.map((row) => [keyOf(row), row.packets]));
  return after.find((row) => row.packets > (known.get(keyOf(row)) ?? 0n));
}

function keyOf({
  packets: _,
  bytes: __,
  lastSeenNs: ___,
  ...key
}: {
  packets: bigint;
  bytes: bigint;
  lastSeenNs: bigint;
}): string {
  return JSON.stringify(key);
}
