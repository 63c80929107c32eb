// Flows of all sandboxes in the words of Hubble: who spoke to whom, by name where that is known, and what became of it.
import type { Dataplane, Drop, Flow } from "../contracts/dataplane.ts";
import { AgentError } from "../errors/agent-error.ts";
import { type Address, parseAddress } from "./address.ts";
import { hostRange, parseCidr, RangeMap } from "./cidr.ts";
import { isPublic, RESERVED_IDENTITIES } from "./entities.ts";
import type { Fabric } from "./fabric.ts";

const IDENTITY_HOST = 1;
const IDENTITY_WORLD = 2;
const IDENTITY_UNKNOWN = 0;
const NS_PER_MS = 1_000_000n;
/** More than a dataplane keeps. */
const EVERY_FLOW_MAX = 1_000_000;

export const HUBBLE_VERDICTS = ["FORWARDED", "DROPPED", "AUDIT"] as const;
export type HubbleVerdict = (typeof HUBBLE_VERDICTS)[number];

const PROTOCOLS: ReadonlyMap<number, string> = new Map([
  [1, "ICMPv4"],
  [6, "TCP"],
  [17, "UDP"],
  [58, "ICMPv6"],
  [132, "SCTP"],
]);

export interface HubbleParty {
  readonly identity: number;
  readonly labels: readonly string[];
  /** Name of the sandbox, empty for what is none. */
  readonly name: string;
}

export interface HubbleFlow {
  readonly timeUnixMs: number;
  readonly verdict: HubbleVerdict;
  /** Why, of what was not simply forwarded. */
  readonly reason: string | null;
  readonly family: 4 | 6;
  readonly source: string;
  readonly destination: string;
  /** `TCP`, …, or the number. */
  readonly protocol: string;
  readonly sourcePort: number;
  readonly destinationPort: number;
  readonly from: HubbleParty;
  readonly to: HubbleParty;
  readonly packets: bigint;
  readonly bytes: bigint;
  readonly summary: string;
}

export interface HubbleFilter {
  readonly limit: number;
  /** All when null. */
  readonly verdict: HubbleVerdict | null;
  /** Of `TCP`, …; all when null. */
  readonly protocol: string | null;
}

interface HubbleDependencies {
  readonly dataplane: Dataplane;
  readonly nowMs: () => number;
  readonly monotonicNowNs: () => bigint;
}

export class HubbleView {
  constructor(
    private readonly fabric: Fabric,
    private readonly dependencies: HubbleDependencies,
  ) {}

  /** Newest first. Rejects with `CAPABILITY_MISSING` where the dataplane tells no flows. */
  async flows({ limit, verdict, protocol }: HubbleFilter): Promise<readonly HubbleFlow[]> {
    const { observation } = this.dependencies.dataplane;
    if (observation === undefined) {
      throw new AgentError("CAPABILITY_MISSING", "this dataplane tells no flows: it takes ebpf or cilium", {
        details: { capability: "dataplane:observation" },
      });
    }
    const wanted = protocol?.toLowerCase() ?? null;
    const isWanted = (flow: { readonly protocol: number }): boolean => {
      const name = protocolName(flow.protocol).toLowerCase();
      return wanted === null || name === wanted || (wanted === "icmp" && name.startsWith("icmp"));
    };
    // Each kind may fill the answer by itself; a filter on the protocol needs all that there is.
    const asked = protocol === null ? limit : EVERY_FLOW_MAX;
    const parties = this.#parties();
    const allowed = verdict === null || verdict === "FORWARDED" ? await observation.flows(null, asked) : [];
    const refused = verdict === "FORWARDED" ? [] : await observation.drops(null, asked);
    const isAudited = new Set(refused.filter(({ action }) => action === "audit").map(tupleOf));
    const seen = [
      // What audit let through is told once, as that.
      ...allowed
        .filter((flow) => flow.verdict === "allow" && isWanted(flow) && !isAudited.has(tupleOf(flow)))
        .map((flow) => this.#told(flow, "FORWARDED", null, parties)),
      ...refused
        .filter(isWanted)
        .map((drop) => this.#told(drop, drop.action === "audit" ? "AUDIT" : "DROPPED", drop.reason, parties)),
    ].filter((flow) => verdict === null || flow.verdict === verdict);
    return seen.toSorted((a, b) => b.timeUnixMs - a.timeUnixMs).slice(0, limit);
  }

  #told(
    flow: Flow | Drop,
    verdict: HubbleVerdict,
    reason: string | null,
    partyOf: (address: string) => HubbleParty,
  ): HubbleFlow {
    const protocol = protocolName(flow.protocol);
    const ago = Number((this.dependencies.monotonicNowNs() - flow.lastSeenNs) / NS_PER_MS);
    const end = (address: string, port: number): string =>
      flow.family === 6 ? `[${address}]:${port}` : `${address}:${port}`;
    const between = `${end(flow.source, flow.sourcePort)} -> ${end(flow.destination, flow.destinationPort)}`;
    return {
      timeUnixMs: this.dependencies.nowMs() - Math.max(0, ago),
      verdict,
      reason,
      family: flow.family,
      source: flow.source,
      destination: flow.destination,
      protocol,
      sourcePort: flow.sourcePort,
      destinationPort: flow.destinationPort,
      from: this.#sandboxParty(flow.identity) ?? partyOf(flow.source),
      to: partyOf(flow.destination),
      packets: flow.packets,
      bytes: flow.bytes,
      summary: reason === null ? `${protocol} ${between}` : `${protocol} ${between} (${reason})`,
    };
  }

  #sandboxParty(identity: number): HubbleParty | null {
    const sandbox = this.fabric.sandboxOfIdentity(identity);
    if (sandbox === null) return null;
    const labels = Object.entries(sandbox.labels).map(([key, value]) => `${key}=${value}`);
    return { identity, labels, name: sandbox.name };
  }

  /** Who has an address, by the longest range that is known. */
  #parties(): (address: string) => HubbleParty {
    const known = new RangeMap<HubbleParty>();
    for (const { identity, cidrs } of this.fabric.remote.rows) {
      for (const text of cidrs) known.set(parseCidr(text)!, { identity, labels: [`identity=${identity}`], name: "" });
    }
    for (const { sandbox } of this.fabric.connected.all()) {
      const { guestAddress, gateway } = sandbox.network;
      const party = this.#sandboxParty(this.fabric.identities.of(sandbox.id));
      const guest = guestAddress === null ? null : parseAddress(guestAddress);
      const host = gateway === null ? null : parseAddress(gateway);
      if (host !== null) known.set(hostRange(host), reserved(IDENTITY_HOST));
      if (guest !== null && party !== null) known.set(hostRange(guest), party);
    }
    return (text) => {
      const address = parseAddress(text);
      return (address === null ? undefined : known.find(address)) ?? strangerAt(address);
    };
  }
}

function strangerAt(address: Address | null): HubbleParty {
  return reserved(address !== null && isPublic(address) ? IDENTITY_WORLD : IDENTITY_UNKNOWN);
}

function reserved(identity: number): HubbleParty {
  return { identity, labels: [`reserved:${RESERVED_IDENTITIES.get(identity)}`], name: "" };
}

export const protocolName = (protocol: number): string => PROTOCOLS.get(protocol) ?? String(protocol);

function tupleOf(flow: Flow | Drop): string {
  const { identity, source, destination, sourcePort, destinationPort, protocol } = flow;
  return [identity, source, destination, sourcePort, destinationPort, protocol].join(" ");
}
