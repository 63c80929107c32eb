// A fabric on fakes: sandboxes that a test makes up, names that it answers, a clock that it turns.
import type { SandboxNetwork } from "../../contracts/network.ts";
import type { EffectivePolicy } from "../../contracts/network-policy.ts";
import type { ResourceScope } from "../../contracts/resource.ts";
import { silentLog } from "../../telemetry/silent-log.ts";
import type { ResolvedAddress } from "../host-names.ts";
import type { KnownSandbox, SandboxDirectory } from "../sandboxes.ts";
import { type NetworkDependencies, NetworkServices } from "../services.ts";
import type { NetworkPresence } from "../views.ts";
import { FakeDataplane } from "./dataplane.ts";
import { MemoryNetworkStore } from "./store.ts";

/** Nothing is held by a dataplane in memory. */
const NO_RESOURCES: ResourceScope = {
  acquire: (_, make) => make(),
  update: async () => {},
  release: async () => {},
  held: () => [],
};

/** A network in a namespace of its own, with the addresses of a block. */
export function fakeNetwork(block: number, change: Partial<SandboxNetwork> = {}): SandboxNetwork {
  const base = block * 16;
  const address = (host: number): string => `169.254.${(base + host) >> 8}.${(base + host) & 0xff}`;
  return {
    mode: "tap",
    hostInterface: `vh${String(block).padStart(12, "a")}`,
    hostInterfaceIndex: 100 + block,
    hook: "routed",
    namespace: `eph-${block}`,
    tap: `tap${block}`,
    mac: "02:fc:00:00:00:03",
    guestAddress: address(3),
    innerAddress: "169.254.0.3",
    gateway: address(1),
    prefixLength: 28,
    leaseFile: null,
    ...change,
  };
}

export class NetworkWorld {
  readonly dataplane = new FakeDataplane();
  readonly sandboxes = new Map<string, KnownSandbox>();
  /** Answers by name; a name without one is not resolved. */
  readonly answers = new Map<string, readonly ResolvedAddress[]>();
  readonly asked: string[] = [];
  nowMs = 1_800_000_000_000;
  services: NetworkServices;

  constructor(
    readonly store = new MemoryNetworkStore(),
    readonly change: Partial<NetworkDependencies> = {},
  ) {
    this.services = this.#services();
  }

  get fabric() {
    return this.services.fabric;
  }

  /** The same host with another agent. */
  async restarted(): Promise<void> {
    this.services = this.#services();
    await this.services.fabric.load();
  }

  add(id: string, tenant: string | null = null): void {
    this.sandboxes.set(id, { id, name: `name of ${id}`, tenant, labels: {} });
  }

  /** A sandbox with a network. */
  async connect(id: string, network: SandboxNetwork = fakeNetwork(this.sandboxes.size + 1)): Promise<void> {
    if (!this.sandboxes.has(id)) this.add(id);
    await this.fabric.attach({ id, shortName: id.padEnd(12, "a").slice(0, 12), network }, NO_RESOURCES);
  }

  presence: NetworkPresence = { pinRootPresent: true, bpffsPresent: true, ciliumSocketPresent: false };
  /** Of the host. */
  readonly notes: string[] = [];

  async remove(id: string): Promise<void> {
    this.sandboxes.delete(id);
    await this.services.life.gone(id);
  }

  /** The policy that the dataplane has for a sandbox with a network. */
  inForce(id: string): EffectivePolicy {
    const policy = this.dataplane.policies.get(id);
    if (policy === undefined) throw new Error(`${id} is not attached`);
    return policy;
  }

  /** The policy on the disk; null when there is none. */
  stored(id: string) {
    const text = this.store.files.get(`network-policy/${id}`);
    return text === undefined ? null : JSON.parse(text);
  }

  /** Whether what is in force is what is declared. */
  async synced(id: string): Promise<boolean> {
    return (await this.services.views.status(id)).isSynced;
  }

  readonly directory: SandboxDirectory = {
    get: (id) => this.sandboxes.get(id),
    all: () => [...this.sandboxes.values()],
  };

  #services(): NetworkServices {
    return new NetworkServices({
      store: this.store,
      dataplane: this.dataplane,
      mode: "ebpf",
      required: true,
      directory: this.directory,
      defaults: {},
      resolver: {
        resolve: async (name) => {
          this.asked.push(name);
          const answer = this.answers.get(name);
          if (answer === undefined) throw new Error("no such name");
          return answer;
        },
      },
      addresses: () => ({ capacity: 4094, allocated: this.sandboxes.size, quarantined: 0 }),
      presence: async () => this.presence,
      notes: () => this.notes,
      capturesDir: "/nonexistent/captures",
      captureProgram: () => {
        throw new Error("the test has no program for captures");
      },
      nowMs: () => this.nowMs,
      monotonicNowNs: () => 10_000_000_000n,
      log: silentLog,
      metrics: { policyApplied: () => {} },
      ...this.change,
    });
  }
}
