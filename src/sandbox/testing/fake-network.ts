// Networks of a host in memory, for tests of the core: interfaces that outlive a core and are up only under policy, and a
// fabric that counts what it is told. Faults are those of the host.
import type { NetworkPlumbing, NetworkWish, PrepareRequest, SandboxNetwork } from "../../contracts/network.ts";
import type { Release } from "../../contracts/resource.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { NetworkLife } from "../../network/sandboxes.ts";
import type { NetworkDependencies } from "../network.ts";

export interface FakeInterface {
  readonly index: number;
  readonly block: number;
  isUp: boolean;
  isUnderPolicy: boolean;
  /** Something beside it has ended. */
  isBroken: boolean;
}

export type NetworkFault = "check" | "prepare" | "attach" | "up" | "network" | "repair" | "mend";

/** A process in a namespace of its own. */
export const FAKE_WISH: NetworkWish = {
  mode: "tap",
  guest: "process",
  netns: true,
  bridge: null,
  tap: null,
  mac: null,
  queues: 1,
};

export class FakeNetworks {
  /** By name. */
  readonly interfaces = new Map<string, FakeInterface>();
  readonly faults = new Set<NetworkFault>();
  /** What the fabric and the plumbing were asked for, in order. */
  readonly trace: string[] = [];
  /** How often the fabric was told to look after each. */
  readonly mended = new Map<string, number>();
  readonly noted = new Map<string, string>();
  #lastIndex = 100;

  dependencies(): NetworkDependencies {
    return { plumbing: this.#plumbing(), life: this.#life() };
  }

  #plumbing(): NetworkPlumbing {
    return {
      releases: { "fake-network": this.#release((name) => this.interfaces.delete(name)), ...this.#policyRelease() },
      check: async () => this.#fail("check"),
      prepare: async (request, resources) => {
        const name = `vh${request.shortName}`;
        const made = await resources.acquire({ kind: "fake-network", name, data: {} }, async () =>
          this.#make(name, request),
        );
        this.#fail("prepare");
        return networkOf(name, made);
      },
      up: async ({ hostInterface }) => {
        this.#fail("up");
        const found = this.interfaces.get(hostInterface);
        if (found?.isUnderPolicy !== true) throw new Error("up without a policy");
        found.isUp = true;
      },
      isWhole: async (_request, { hostInterface }) => {
        const found = this.interfaces.get(hostInterface);
        return found !== undefined && !found.isBroken;
      },
      repair: async (_request, { hostInterface }) => {
        this.trace.push(`repair ${hostInterface}`);
        this.#fail("repair");
        const found = this.interfaces.get(hostInterface);
        if (found !== undefined) found.isBroken = false;
        return found !== undefined;
      },
      addressIsFree: async (block) => ![...this.interfaces.values()].some((found) => found.block === block),
      notes: () => [],
    };
  }

  #life(): NetworkLife {
    return {
      attach: async ({ id, network }, resources) => {
        this.trace.push(`attach ${id}`);
        const name = network.hostInterface;
        await resources.acquire({ kind: "fake-policy", name, data: {} }, async () => {
          this.#fail("attach");
          const found = this.interfaces.get(name);
          if (found === undefined || found.isUp) throw new Error("too late for a policy");
          found.isUnderPolicy = true;
        });
      },
      detached: async (id) => void this.trace.push(`detached ${id}`),
      gone: async (id) => void this.trace.push(`gone ${id}`),
      adopt: async (connected) => {
        this.trace.push(`adopt ${connected.map(({ id }) => id).join(" ")}`);
        return { intact: connected.map(({ id }) => id), repaired: [], failed: [], orphans: 0 };
      },
      mend: async (id) => {
        this.mended.set(id, (this.mended.get(id) ?? 0) + 1);
        this.#fail("mend");
      },
      note: (id, fault) => void (fault === null ? this.noted.delete(id) : this.noted.set(id, fault)),
    };
  }

  #policyRelease(): Record<string, Release> {
    return {
      "fake-policy": this.#release((name) => {
        const found = this.interfaces.get(name);
        if (found !== undefined) found.isUnderPolicy = false;
      }),
    };
  }

  #make(name: string, { addressBlock }: PrepareRequest): FakeInterface {
    if (addressBlock === null) throw new Error("no block of addresses");
    if ([...this.interfaces.values()].some(({ block }) => block === addressBlock)) throw new Error("two of one block");
    this.#lastIndex += 1;
    const made = { index: this.#lastIndex, block: addressBlock, isUp: false, isUnderPolicy: false, isBroken: false };
    this.interfaces.set(name, made);
    return made;
  }

  #fail(fault: NetworkFault): void {
    if (this.faults.has(fault)) throw new AgentError("NETWORK_FAILED", `${fault} failed`);
  }

  #release(give: (name: string) => void): Release {
    return async ({ name }) => {
      this.#fail("network");
      give(name);
    };
  }
}

function networkOf(hostInterface: string, { index, block }: FakeInterface): SandboxNetwork {
  return {
    mode: "tap",
    hostInterface,
    hostInterfaceIndex: index,
    hook: "routed",
    namespace: hostInterface.replace("vh", "eph-"),
    tap: null,
    mac: null,
    guestAddress: `10.0.0.${block}`,
    innerAddress: `10.0.0.${block}`,
    gateway: "10.0.0.254",
    prefixLength: 28,
    leaseFile: null,
  };
}
