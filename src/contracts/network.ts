// The way between a sandbox and its host: a namespace, a pair of interfaces, a tap device, an address. What is decided
// about each packet on the way is a dataplane's (`dataplane.ts`); what is decided is a policy (`network-policy.ts`).
//
// One life: wish (from the request, in the plan) → prepare: everything is there, and down → dataplane.attach → up →
// launch. The rows of the journal give it back, newest first. `tap` with a namespace is how a machine is connected
// unless an operator's bridge or tap is named; a process sandbox is in the namespace itself.
import type { Release, ResourceScope } from "./resource.ts";

/** What a sandbox wants of the host's network; part of its plan and of its record. */
export interface NetworkWish {
  /**
   * `none`: no interface. `user`: the backend's own, for which nothing of the host is needed. `host`: the processes are in
   * the host's network, as those of an ordinary user's agent may be; what confines them is the backend's.
   */
  readonly mode: "none" | "user" | "host" | "tap" | "macvtap";
  /** `machine`: a tap device that a monitor opens. `process`: the sandbox's processes are in the namespace. */
  readonly guest: "machine" | "process";
  /** In a namespace of its own, with a leased address. Only `tap`. */
  readonly netns: boolean;
  /** The operator's bridge that a tap joins, or the operator's interface that a macvtap lies on. */
  readonly bridge: string | null;
  /** A tap device of the operator's: it is used as it is, put under policy, and never removed. */
  readonly tap: string | null;
  /** `aa:bb:cc:dd:ee:ff`, lower case. Null: one is chosen; in a namespace it is always the same. */
  readonly mac: string | null;
  /** Pairs of queues of the tap device. */
  readonly queues: number;
  /** TCP ports of others that it may connect to, and no more, until somebody declares a policy for it; as configured when absent. */
  readonly ports?: readonly number[];
}

/** A prepared network, as plain data: part of the sandbox's record while it runs. */
export interface SandboxNetwork {
  readonly mode: "tap" | "macvtap";
  /** The interface of the host where packets of the sandbox arrive, and its number. */
  readonly hostInterface: string;
  readonly hostInterfaceIndex: number;
  /** `routed`: the host's end of a pair, so packets have the pair's hardware addresses. `bridged`: frames of the guest itself. */
  readonly hook: "routed" | "bridged";
  /** Name below `/run/netns`, or null for the host's namespace. What opens the tap, or is the sandbox, enters it. */
  readonly namespace: string | null;
  /** Tap or macvtap device, by its name in that namespace; null for a process sandbox. */
  readonly tap: string | null;
  /** The guest's hardware address; null for a process sandbox. */
  readonly mac: string | null;
  /** As others see it: leased, or as far as it is known. IPv4 in dotted form. */
  readonly guestAddress: string | null;
  /** As it has it itself: another one where its namespace translates. */
  readonly innerAddress: string | null;
  /** The host's own address on `hostInterface`: the way out, and where names are resolved. */
  readonly gateway: string | null;
  readonly prefixLength: number | null;
  /** Where its DHCP server writes what it has given, by an absolute path; null where there is no such server. */
  readonly leaseFile: string | null;
}

export interface PrepareRequest {
  readonly sandboxId: string;
  /** `[a-z2-7]{12}`: `vh`, `vn`, `br`, `tap` and `eph` before it are the names of interfaces. */
  readonly shortName: string;
  readonly wish: NetworkWish;
  /** The leased block, of a wish with a namespace. */
  readonly addressBlock: number | null;
  /** Owner of the tap device, who may open it without being root. */
  readonly uid: number | null;
}

/** Makes and removes networks. Rejects with an `AgentError` that names what the host lacks. */
export interface NetworkPlumbing {
  readonly releases: Readonly<Record<string, Release>>;
  /** Before anything is leased: `BAD_REQUEST` for a bridge or tap that is not there, `CAPABILITY_MISSING`. */
  check(wish: NetworkWish): Promise<void>;
  /** Makes everything, interfaces down. Remains of an earlier sandbox with these very names are removed first. */
  prepare(request: PrepareRequest, resources: ResourceScope): Promise<SandboxNetwork>;
  /** Lets packets flow. After `dataplane.attach` only. */
  up(network: SandboxNetwork): Promise<void>;
  /** After an agent was away: brings back what has ended by itself. False: its interface is not there any more. */
  repair(request: PrepareRequest, network: SandboxNetwork, resources: ResourceScope): Promise<boolean>;
  /** Whether `repair` would find nothing to do. It only reads, because it is asked often. */
  isWhole(request: PrepareRequest, network: SandboxNetwork, resources: ResourceScope): Promise<boolean>;
  /** The leased block of addresses is used by nothing on this host. */
  addressIsFree(addressBlock: number): Promise<boolean>;
  /** What an operator should know of the host's networks as a whole. */
  notes(): readonly string[];
}
