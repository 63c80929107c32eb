// What the sandbox core is given. It finds nothing by itself: the composition root passes plugins, state and clocks.
import type { Backend } from "../contracts/backend.ts";
import type { ChangeSetMethod } from "../contracts/change-set.ts";
import type { Dataplane } from "../contracts/dataplane.ts";
import type { Logger } from "../contracts/log.ts";
import type { Storage } from "../contracts/storage.ts";
import type { EventRow, Store } from "../state/change.ts";
import type { Clock } from "./clock.ts";
import type { CrashHook } from "./crash-points.ts";
import type { NetworkDependencies } from "./network.ts";

export type LeaseKind = "uid" | "machine_uid" | "address" | "cid";

export interface LeaseRange {
  readonly first: number;
  readonly count: number;
  /** Values in between that nobody gets. */
  readonly excluded?: ReadonlySet<number>;
}

export interface CoreSettings {
  /** `<state_dir>/instances`; exists. */
  readonly instancesDir: string;
  /** `<run_dir>`; exists. Short, because socket paths lie under it. */
  readonly runDir: string;
  readonly sandboxesMax: number;
  readonly vmsMaxPerToken: number | null;
  readonly memoryMibMaxPerToken: number | null;
  readonly leaseRanges: Readonly<Partial<Record<LeaseKind, LeaseRange>>>;
  /** From the start of an instance until its guest agent has to answer. */
  readonly readyTimeoutMs: number;
  readonly reaperIntervalMs: number;
  readonly networksLookedAtMs: number;
  /** Ports of the host that no sandbox's port is exposed on: the agent's own. */
  readonly reservedHostPorts: ReadonlySet<number>;
}

export interface CoreMetrics {
  created(durationMs: number): void;
  started(durationMs: number): void;
}

export interface CoreDependencies {
  readonly store: Store;
  readonly backends: ReadonlyMap<string, Backend>;
  readonly storage: Storage;
  /** In registry order; the first that supports a guest lists it. */
  readonly changeSets: readonly ChangeSetMethod[];
  readonly dataplanes: ReadonlyMap<string, Dataplane>;
  /** Absent in tests of what has nothing to do with networks. */
  readonly network?: NetworkDependencies;
  readonly settings: CoreSettings;
  /** Makes a range of leases this agent's own on the host; rejects with `CONFIG_INVALID` where another has a part of it. */
  readonly claimLeases?: (kind: LeaseKind) => Promise<void>;
  /** Removes a directory that somebody hostile may have filled, whatever its depth; already gone is success. */
  readonly removeTree: (path: string) => Promise<unknown>;
  readonly clock: Clock;
  readonly log: Logger;
  readonly metrics: CoreMetrics;
  /** Tells those who follow of an event; what the log is to keep is durable before. */
  readonly publish: (event: EventRow) => void;
  readonly crashPoint: CrashHook;
}
