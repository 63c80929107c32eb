// What the network fabric and the core know of each other: the core says which sandboxes there are and when one is
// connected; the fabric says what each may send and tells the dataplane.
import type { RepairReport } from "../contracts/dataplane.ts";
import type { SandboxNetwork } from "../contracts/network.ts";
import type { ResourceScope } from "../contracts/resource.ts";

/** A sandbox as the fabric sees it, with a network or without. */
export interface KnownSandbox {
  readonly id: string;
  readonly name: string;
  readonly tenant: string | null;
  readonly labels: Readonly<Record<string, string>>;
  /** TCP ports that were asked for with it, which alone it may use by default; null where none were named. */
  readonly ports?: readonly number[] | null;
  /** Its address is this agent's to give, also while it has none. */
  readonly isLeased?: boolean;
}

/** The core's index. A sandbox is in it from its create until its removal begins. */
export interface SandboxDirectory {
  get(id: string): KnownSandbox | undefined;
  all(): readonly KnownSandbox[];
}

/** One that has a prepared network. */
export interface ConnectedSandbox {
  readonly id: string;
  /** `[a-z2-7]{12}` */
  readonly shortName: string;
  readonly network: SandboxNetwork;
}

/** What the core tells while a sandbox lives, in this order. */
export interface NetworkLife {
  /**
   * Puts a prepared network under the sandbox's policy, before it goes up. Names in the policy are resolved first, for
   * a few seconds at most. Rejects with `CAPABILITY_MISSING`, `DATAPLANE_FAILED`, or `POLICY_INVALID` for a policy
   * that cannot be compiled any more.
   */
  attach(sandbox: ConnectedSandbox, resources: ResourceScope): Promise<void>;
  /** The rows of `attach` are released, or about to be: policy changes are only stored from now on. */
  detached(id: string): Promise<void>;
  /** The sandbox is being removed, and out of the directory: its policy is forgotten. May be told twice. */
  gone(id: string): Promise<void>;
  /**
   * After an agent was away, once, before anything new is attached: these have networks that are there. What is stored
   * of sandboxes that the directory has not is removed.
   */
  adopt(connected: readonly ConnectedSandbox[]): Promise<RepairReport>;
  /**
   * Now and then, while it is connected: packets get to what decides them, as when it was attached. Rejects with
   * `DATAPLANE_FAILED` where that cannot be; then they are dropped.
   */
  mend(id: string): Promise<void>;
  /** What keeps its network from being whole, for those who ask; null: nothing does. */
  note(id: string, fault: string | null): void;
}
