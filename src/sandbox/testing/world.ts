// One test world: a host and a state in memory, directories on disk, and any number of cores one after the other, of
// which each may die at a crash point.
import { mkdir, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { EventRow, Store } from "../../state/change.ts";
import { silentLog } from "../../telemetry/silent-log.ts";
import { createCore, type SandboxCore } from "../core.ts";
import type { CrashHook } from "../crash-points.ts";
import type { CoreSettings } from "../dependencies.ts";
import type { Caller } from "../operations.ts";
import { FakeHost } from "./fake-host.ts";
import { fakeChangeSet } from "./fake-guest.ts";
import { MemoryState } from "./memory-store.ts";

export const admin: Caller = { actor: "admin", role: "admin", tenant: null, token: null };

export const UID_FIRST = 200_000;

export class World {
  readonly host = new FakeHost();
  readonly state = new MemoryState();
  readonly events: EventRow[] = [];
  nowUnixMs = 1_800_000_000_000;
  readonly #ended: { dead: boolean }[] = [];

  private constructor(readonly root: string) {}

  static async create(): Promise<World> {
    const world = new World(await mkdtemp(join(tmpdir(), "core-")));
    await mkdir(world.instancesDir);
    await mkdir(world.runDir);
    return world;
  }

  get instancesDir(): string {
    return join(this.root, "instances");
  }

  get runDir(): string {
    return join(this.root, "run");
  }

  /** A core on this world's host and state; an earlier one is dead from now on. */
  core(options: { crashPoint?: CrashHook; settings?: Partial<CoreSettings>; store?: Store } = {}): SandboxCore {
    this.killAgents();
    const life = { dead: false };
    this.#ended.push(life);
    return createCore({
      store: options.store ?? this.state.handle(life),
      backends: new Map([["fake", this.host.backend()]]),
      storage: this.host.storage(this.root),
      changeSets: [fakeChangeSet],
      dataplanes: new Map(),
      network: this.host.networks.dependencies(),
      settings: {
        instancesDir: this.instancesDir,
        runDir: this.runDir,
        sandboxesMax: 16,
        vmsMaxPerToken: null,
        memoryMibMaxPerToken: null,
        leaseRanges: { uid: { first: UID_FIRST, count: 8 }, address: { first: 1, count: 8, excluded: new Set([1]) } },
        readyTimeoutMs: 60_000,
        reaperIntervalMs: 5,
        networksLookedAtMs: 5,
        reservedHostPorts: new Set(),
        ...options.settings,
      },
      removeTree: (path) => rm(path, { recursive: true, force: true }),
      clock: { nowUnixMs: () => this.nowUnixMs, sleep: () => Promise.resolve() },
      log: silentLog,
      metrics: { created: () => undefined, started: () => undefined },
      publish: (event) => this.events.push(event),
      crashPoint: options.crashPoint ?? (() => undefined),
    });
  }

  killAgents(): void {
    for (const life of this.#ended) life.dead = true;
  }

  /** What the host holds, for comparing with what the state says. */
  async holdings() {
    const sockets = await readdir(join(this.runDir, "sandboxes")).catch(() => []);
    return {
      volumes: [...this.host.volumes.keys()].sort(),
      groups: [...this.host.groups].sort(),
      processes: [...this.host.processes.keys()].sort(),
      networks: [...this.host.networks.interfaces.keys()].sort(),
      instances: (await readdir(this.instancesDir)).sort(),
      sockets: sockets.sort(),
      records: Object.keys(this.state.tables.records).sort(),
      secrets: Object.values(this.state.tables.secrets).map(({ id }) => id),
      resources: Object.values(this.state.tables.resources).map(({ kind, name }) => `${kind} ${name}`),
      leases: this.#leases("leased"),
    };
  }

  /** Values that wait until nothing uses them. */
  quarantined(): number[] {
    return this.#leases("quarantined");
  }

  #leases(wanted: string): number[] {
    return Object.values(this.state.tables.leases)
      .filter(({ state }) => state === wanted)
      .map(({ value }) => value);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.killAgents();
    await rm(this.root, { recursive: true, force: true });
  }
}

export const NOTHING_HELD = {
  volumes: [],
  groups: [],
  processes: [],
  networks: [],
  instances: [],
  sockets: [],
  records: [],
  secrets: [],
  resources: [],
  leases: [],
};
