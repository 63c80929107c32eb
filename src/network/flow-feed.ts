// What flows, as it happens, for those who follow: the dataplane is asked once a second while anybody does, and every
// flow that is new or has advanced since is published to a ring. However many follow, and however slow they are, there is
// one pass and one ring.
import { limits } from "../config/limits.ts";
import type { Flow, Observation } from "../contracts/dataplane.ts";
import type { Logger } from "../contracts/log.ts";
import { FollowedRing, type RingDelivery } from "../telemetry/followed-ring.ts";
import type { KnownSandbox } from "./sandboxes.ts";

/** Null: flows were lost here, nobody knows how many. */
export type FlowOfSandbox = { readonly sandbox: Pick<KnownSandbox, "id" | "tenant">; readonly flow: Flow } | null;

export interface FlowFeedDependencies {
  readonly observation: Pick<Observation, "recentFlows">;
  /** Whose identity it is; null once its sandbox is gone. */
  sandboxOf(identity: number): Pick<KnownSandbox, "id" | "tenant"> | null;
  readonly log: Logger;
  readonly pollMs?: number;
}

/** Flows are read one after another while packets advance them, so each pass begins some time before the last one. */
const OVERLAP_NS = 2_000_000_000n;

export class FlowFeed {
  /** One for each start of the agent. */
  readonly epoch: string = crypto.randomUUID();
  readonly #ring = new FollowedRing<FlowOfSandbox>(limits.flowRingMax);
  /** What was published of the time that the next pass sees again. */
  #seen = new Map<string, string>();
  /** Where the next pass begins; null before the first. */
  #sinceNs: bigint | null = null;
  #followers = 0;
  /** The pass that the present followers began with; null while nobody follows. */
  #first: Promise<void> | null = null;
  #isFailing = false;

  constructor(private readonly dependencies: FlowFeedDependencies) {}

  /**
   * Begins to follow, for as long as the signal does not abort. Answers the present position once what flowed while
   * nobody followed is published, so that a follower from there on gets what is to come only.
   */
  async join(signal: AbortSignal): Promise<number> {
    this.#followers += 1;
    const leave = (): void => {
      this.#followers -= 1;
    };
    if (signal.aborted) leave();
    else signal.addEventListener("abort", leave, { once: true });
    if (this.#first === null) {
      this.#first = this.#pass();
      void this.#passes(this.#first);
    }
    await this.#first;
    return this.#ring.sequence;
  }

  /** Delivers what comes after a position, until the signal aborts. For those who have joined with it. */
  follow(signal: AbortSignal, after: number): AsyncGenerator<RingDelivery<FlowOfSandbox>, void, void> {
    return this.#ring.follow(signal, after);
  }

  async #passes(first: Promise<void>): Promise<void> {
    await first;
    while (this.#followers > 0) {
      await Bun.sleep(this.dependencies.pollMs ?? limits.flowPollMs);
      if (this.#followers > 0) await this.#pass();
    }
    this.#first = null;
  }

  /** Never rejects. */
  async #pass(): Promise<void> {
    const { observation, log } = this.dependencies;
    try {
      const flows = await observation.recentFlows(this.#sinceNs ?? 0n, limits.flowsPerPassMax);
      this.#isFailing = false;
      this.#publish(flows);
    } catch (error) {
      // The next pass begins where this one did; one line says so, however long it lasts.
      if (!this.#isFailing) log.warn({ err: error }, "flows cannot be read");
      this.#isFailing = true;
    }
  }

  #publish(flows: readonly Flow[]): void {
    const isFirst = this.#sinceNs === null;
    const newestNs = flows.reduce((newest, { lastSeenNs }) => (lastSeenNs > newest ? lastSeenNs : newest), 0n);
    const sinceNs = newestNs > OVERLAP_NS ? newestNs - OVERLAP_NS : 0n;
    const seen = new Map<string, string>();
    // What was there before anybody followed is no news, so the first pass only remembers.
    if (!isFirst && flows.length >= limits.flowsPerPassMax) this.#ring.publish(null);
    for (const flow of flows.toReversed()) {
      const key = keyOf(flow);
      const state = `${flow.packets} ${flow.bytes} ${flow.lastSeenNs}`;
      if (!isFirst && this.#seen.get(key) !== state) this.#tell(flow);
      if (flow.lastSeenNs >= sinceNs) seen.set(key, state);
    }
    // A pass without flows says nothing about time.
    if (flows.length === 0 && !isFirst) return;
    this.#seen = seen;
    this.#sinceNs = sinceNs;
  }

  #tell(flow: Flow): void {
    const sandbox = this.dependencies.sandboxOf(flow.identity);
    if (sandbox !== null) this.#ring.publish({ sandbox, flow });
  }
}

function keyOf({
  identity,
  family,
  source,
  destination,
  sourcePort,
  destinationPort,
  protocol,
  verdict,
}: Flow): string {
  return [identity, family, source, destination, sourcePort, destinationPort, protocol, verdict].join(" ");
}
