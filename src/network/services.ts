// The network side of the agent as its other parts see it: the fabric, what it can be asked, and captures.
import type { Dataplane } from "../contracts/dataplane.ts";
import type { Logger } from "../contracts/log.ts";
import { type CaptureProgram, Captures } from "./captures.ts";
import type { DataplaneMode } from "./dataplane-choice.ts";
import { Fabric } from "./fabric.ts";
import { FlowFeed } from "./flow-feed.ts";
import type { NameResolver } from "./host-names.ts";
import { HubbleView } from "./hubble.ts";
import type { NetworkMetrics } from "./metrics.ts";
import type { NetworkLife, SandboxDirectory } from "./sandboxes.ts";
import type { NetworkStore } from "./store.ts";
import { TrafficTotals } from "./traffic.ts";
import { type AddressUse, type NetworkPresence, NetworkViews } from "./views.ts";

export interface NetworkDependencies {
  readonly store: Pick<NetworkStore, "read" | "write" | "readOf" | "writeOf" | "ids">;
  /** Decides for every sandbox; where it falls back to another, it does so itself. */
  readonly dataplane: Dataplane;
  readonly mode: DataplaneMode;
  readonly required: boolean;
  readonly directory: SandboxDirectory;
  /** The policy of sandboxes that have none of their own, as the configuration says it: see `parsePolicy`. */
  readonly defaults: unknown;
  readonly resolver: NameResolver;
  /** Leased blocks of addresses, and how many there are. */
  readonly addresses: () => AddressUse;
  /** What of it is on this host, whichever dataplane decides. */
  readonly presence: () => Promise<NetworkPresence>;
  /** What there is to say of the host's networks as a whole. */
  readonly notes: () => readonly string[];
  /** `<state_dir>/captures`; made when the first capture begins. */
  readonly capturesDir: string;
  readonly captureProgram: CaptureProgram;
  readonly nowMs: () => number;
  /** The monotonic clock of the host, that flows are stamped with. */
  readonly monotonicNowNs: () => bigint;
  readonly log: Logger;
  readonly metrics: NetworkMetrics;
}

export class NetworkServices {
  readonly fabric: Fabric;
  readonly views: NetworkViews;
  readonly hubble: HubbleView;
  readonly captures: Captures;
  /** Flows as they happen; null where the dataplane tells none. */
  readonly flows: FlowFeed | null;
  /** For the core. */
  readonly life: NetworkLife;

  readonly #addresses: () => AddressUse;
  readonly #traffic: TrafficTotals | null;

  /** Knows of nothing that is stored before `fabric.load`. Throws `POLICY_INVALID` for defaults that are no policy. */
  constructor(dependencies: NetworkDependencies) {
    this.fabric = new Fabric(dependencies);
    this.views = new NetworkViews(this.fabric, dependencies);
    this.hubble = new HubbleView(this.fabric, dependencies);
    this.#addresses = dependencies.addresses;
    const { observation } = dependencies.dataplane;
    const sandboxOf = (identity: number) => this.fabric.sandboxOfIdentity(identity);
    const connectedIds = (): readonly string[] => this.fabric.connected.ids();
    this.flows = observation === undefined ? null : new FlowFeed({ observation, sandboxOf, log: dependencies.log });
    this.#traffic = observation === undefined ? null : new TrafficTotals(observation, connectedIds);
    this.captures = new Captures({
      directory: dependencies.capturesDir,
      program: dependencies.captureProgram,
      nowMs: dependencies.nowMs,
      log: dependencies.log,
    });
    const { fabric, captures } = this;
    this.life = {
      attach: (sandbox, resources) => fabric.attach(sandbox, resources),
      detached: (id) => fabric.detached(id),
      gone: async (id) => {
        await Promise.all([fabric.gone(id), captures.forget(id)]);
      },
      adopt: (connected) => fabric.adopt(connected),
      mend: (id) => fabric.mend(id),
      note: (id, fault) => fabric.faults.note(id, fault),
    };
  }

  /** Figures of this moment, for metrics. */
  async census() {
    const traffic = (await this.#traffic?.read()) ?? null;
    return { connected: this.fabric.connected.ids().length, addresses: this.#addresses(), traffic };
  }

  /** Begins the periodic work. */
  start(): void {
    this.fabric.start();
  }

  /** Resolves when nothing of it runs any more; what is attached goes on deciding. */
  async stop(): Promise<void> {
    this.fabric.stop();
    await this.captures.stop();
  }
}

/** The services with what is stored. Rejects with `POLICY_INVALID` and `STATE_UNAVAILABLE`. */
export async function openNetwork(dependencies: NetworkDependencies): Promise<NetworkServices> {
  const services = new NetworkServices(dependencies);
  await services.fabric.load();
  return services;
}
