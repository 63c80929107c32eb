// Flows that a test makes up, read by the real feed.
import type { Flow } from "../../contracts/dataplane.ts";
import { FlowFeed } from "../../network/flow-feed.ts";
import { fakeFlow } from "../../network/testing/flow.ts";
import { silentLog } from "../../telemetry/silent-log.ts";

const POLL_MS = 2;

interface Owner {
  readonly id: string;
  readonly tenant: string | null;
}

export class FakeFlows {
  readonly #flows = new Map<string, Flow>();
  readonly #owners: Owner[] = [];
  #lastSeenNs = 1_000_000_000n;
  readonly feed = new FlowFeed({
    observation: {
      recentFlows: async (sinceNs, limit) =>
        [...this.#flows.values()]
          .filter(({ lastSeenNs }) => lastSeenNs >= sinceNs)
          .sort((a, b) => Number(b.lastSeenNs - a.lastSeenNs))
          .slice(0, limit),
    },
    sandboxOf: (identity) => this.#owners[identity] ?? null,
    log: silentLog,
    pollMs: POLL_MS,
  });

  /** One more packet of a sandbox from a source address. */
  packet(owner: Owner, source: string, verdict: Flow["verdict"] = "allow"): void {
    let identity = this.#owners.findIndex(({ id }) => id === owner.id);
    if (identity < 0) identity = this.#owners.push(owner) - 1;
    const key = `${identity} ${source} ${verdict}`;
    const packets = (this.#flows.get(key)?.packets ?? 0n) + 1n;
    this.#lastSeenNs += 1n;
    const bytes = packets * 60n;
    this.#flows.set(key, fakeFlow({ identity, source, verdict, packets, bytes, lastSeenNs: this.#lastSeenNs }));
  }
}
