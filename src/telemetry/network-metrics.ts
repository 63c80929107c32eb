// Metrics of networks: policies that were put in force, and what is asked of the network at each scrape.
import type { TrafficStats } from "../contracts/dataplane.ts";
import type { Counter, Gauge, Histogram, MetricsRegistry } from "./metrics.ts";

const POLICY_BUCKETS_SECONDS = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1];
/** A dataplane that does not answer must not keep the other metrics back. */
const CENSUS_TIMEOUT_MS = 2000;

export interface NetworkCensus {
  /** Sandboxes that have a network now. */
  readonly connected: number;
  readonly addresses: { readonly capacity: number; readonly allocated: number };
  /** Sums since the agent began; null where the dataplane counts nothing. */
  readonly traffic: TrafficStats | null;
}

export class NetworkMeter {
  /** Asked at each scrape; null until there is a network. */
  census: (() => Promise<NetworkCensus>) | null = null;
  readonly #policies: Counter;
  readonly #policySeconds: Histogram;
  readonly #connected: Gauge;
  readonly #blocks: Gauge;
  readonly #packets: Counter;
  readonly #bytes: Counter;
  #traffic: TrafficStats | null = null;

  constructor(registry: MetricsRegistry) {
    this.#policies = registry.counter("fluxvm_network_policy_applies_total", "Policies put in force for sandboxes.", [
      "outcome",
    ]);
    this.#policySeconds = registry.histogram(
      "fluxvm_network_policy_apply_duration_seconds",
      "Time until a policy was in force.",
      POLICY_BUCKETS_SECONDS,
      [],
    );
    this.#connected = registry.gauge("fluxvm_network_sandboxes", "Sandboxes that have a network.");
    this.#blocks = registry.gauge("fluxvm_network_address_blocks", "Blocks of addresses by state.", ["state"]);
    this.#packets = registry.counter("fluxvm_network_packets_total", "Packets of sandboxes by verdict.", ["verdict"]);
    this.#bytes = registry.counter("fluxvm_network_bytes_total", "Bytes of sandboxes by verdict.", ["verdict"]);
    for (const outcome of ["ok", "failed"]) this.#policies.add(0, { outcome });
    this.#advance(null);
  }

  policyApplied(outcome: "ok" | "failed", durationMs: number): void {
    this.#policies.add(1, { outcome });
    this.#policySeconds.observe(durationMs / 1000);
  }

  /** Brings the figures up to date; those of the last time stay when the network cannot tell. Never rejects. */
  async refresh(): Promise<void> {
    const late = Bun.sleep(CENSUS_TIMEOUT_MS).then(() => null);
    const census = await Promise.race([this.census?.().catch(() => null), late]);
    if (census === null || census === undefined) return;
    const { connected, addresses, traffic } = census;
    this.#connected.set(connected);
    this.#blocks.set(addresses.allocated, { state: "leased" });
    this.#blocks.set(addresses.capacity - addresses.allocated, { state: "free" });
    this.#advance(traffic);
  }

  #advance(traffic: TrafficStats | null): void {
    const last = this.#traffic;
    const more = (key: keyof TrafficStats): number => Number((traffic?.[key] ?? 0n) - (last?.[key] ?? 0n));
    if (traffic === null && last !== null) return;
    this.#packets.add(more("allowedPackets"), { verdict: "allow" });
    this.#packets.add(more("droppedPackets"), { verdict: "drop" });
    this.#bytes.add(more("allowedBytes"), { verdict: "allow" });
    this.#bytes.add(more("droppedBytes"), { verdict: "drop" });
    this.#traffic = traffic;
  }
}
