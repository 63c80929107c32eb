// A dataplane in a process of its own, which a test starts in the namespace that stands for the host, asks line by line, and
// may kill. Arguments: the plugin's id, its options as JSON, a directory for what it keeps. Journal rows are in a file there,
// as durable as an agent's, so that the next process goes on where this one was killed.
import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { decodeFlowEvent, type FlowEvent } from "../../ffi/layout/bpf.ts";
import { BpfMap } from "../../ffi/libbpf/maps.ts";
import { RingBuffer } from "../../ffi/libbpf/ring.ts";
import { builtInPlugins } from "../../plugins/index.ts";
import type { AttachRequest, Dataplane } from "../../src/contracts/dataplane.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { Logger } from "../../src/contracts/log.ts";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import type { HostFacts, PluginContext } from "../../src/contracts/plugin.ts";
import type { Resource, ResourceScope } from "../../src/contracts/resource.ts";
import { asAgentError } from "../../src/errors/agent-error.ts";
import { silentLog } from "../../src/telemetry/silent-log.ts";

const NATIVE = join(import.meta.dir, "../../dist/native");
const [id = "", optionsText = "{}", folder = ""] = process.argv.slice(2);

class FileScope implements ResourceScope {
  #rows: Resource[];

  constructor(
    private readonly path: string,
    private readonly releases: () => Dataplane["releases"],
  ) {
    this.#rows = readRows(path);
  }

  async acquire<T>(resource: Resource, make: () => Promise<T>): Promise<T> {
    this.#keep([...this.#rows, resource]);
    return await make();
  }

  async update(kind: string, name: string, data: JsonObject): Promise<void> {
    this.#keep(this.#rows.map((row) => (row.kind === kind && row.name === name ? { ...row, data } : row)));
  }

  async release(kind: string, name: string): Promise<void> {
    const row = this.#rows.find((held) => held.kind === kind && held.name === name);
    if (row === undefined) return;
    await this.releases()[kind]?.(row);
    this.#keep(this.#rows.filter((held) => held !== row));
  }

  held(): readonly Resource[] {
    return this.#rows;
  }

  #keep(rows: Resource[]): void {
    this.#rows = rows;
    writeFileSync(`${this.path}.new`, JSON.stringify(rows));
    renameSync(`${this.path}.new`, this.path);
  }
}

function readRows(path: string): Resource[] {
  try {
    return JSON.parse(readFileSync(path, "utf8")) as Resource[];
  } catch {
    return [];
  }
}

/** Says what is not as it should be. */
const log: Logger = {
  ...silentLog,
  warn: (fields, message) => console.error(message, fields),
  error: (fields, message) => console.error(message, fields),
  child: () => log,
};

const host: HostFacts = {
  uid: 0,
  gid: 0,
  kernelRelease: "",
  arch: process.arch,
  stateDir: join(folder, "state"),
  runDir: join(folder, "run"),
  instancesDir: join(folder, "state", "instances"),
  guestAgentPath: null,
  hypervisorPath: null,
  engineLibraryPath: null,
  trafficObjectPath: join(NATIVE, "fluxvm_tc.bpf.o"),
  guardObjectPath: join(NATIVE, "fluxvm_xdp.bpf.o"),
};
for (const dir of [host.stateDir, host.runDir]) mkdirSync(dir, { recursive: true, mode: 0o700 });

const plugin = builtInPlugins.find((known) => known.kind === "dataplane" && known.id === id);
if (plugin === undefined) throw new Error(`there is no dataplane ${id}`);
const options = plugin.options.parse(JSON.parse(optionsText));
const report = await plugin.probe(host, options);
if (!report.usable) throw new Error(report.missing.map(({ reason }) => reason).join("; "));
const context = { options, host, report, log, guest: null } as unknown as PluginContext<unknown>;
const dataplane = (await plugin.init(context)) as Dataplane;

const scopeOf = (sandboxId: string) => new FileScope(join(folder, `${sandboxId}.json`), () => dataplane.releases);

const events: FlowEvent[] = [];

/** What a test may ask. */
const calls: Readonly<Record<string, (...args: never[]) => Promise<unknown>>> = {
  attach: (request: AttachRequest) => dataplane.attach(request, scopeOf(request.sandboxId)),
  attachAll: (requests: readonly AttachRequest[]) =>
    Promise.all(requests.map((request) => dataplane.attach(request, scopeOf(request.sandboxId)))),
  async detach(sandboxId: string) {
    const scope = scopeOf(sandboxId);
    for (const { kind, name } of scope.held().toReversed()) await scope.release(kind, name);
  },
  setPolicy: (sandboxId: string, policy: EffectivePolicy) => dataplane.setPolicy(sandboxId, policy),
  /** Sets each policy in turn, `times` in all; how long each took, in milliseconds. */
  async toggle(sandboxId: string, policies: readonly EffectivePolicy[], times: number) {
    const took: number[] = [];
    for (let turn = 0; turn < times; turn++) {
      const policy = policies[turn % policies.length];
      const before = performance.now();
      if (policy !== undefined) await dataplane.setPolicy(sandboxId, policy);
      took.push(performance.now() - before);
    }
    return took;
  },
  /** The time that programs go by, in nanoseconds; 0 is the kernel's. */
  async setClock(ns: { readonly bigint: string }) {
    await writePinned("fluxvm_clock", new Uint32Array([0]), new BigUint64Array([BigInt(ns.bigint)]));
  },
  /** From now on the programs' events are taken. */
  async watchEvents() {
    await RingBuffer.open(await openPinned("fluxvm_events"), (record) => events.push(decodeFlowEvent(record)));
  },
  /** Those that came since it was asked last, as far as a test compares them. */
  async events() {
    return events.splice(0).map(({ verdict, reason, protocol, destinationPort }) => {
      return { verdict, reason, protocol, destinationPort };
    });
  },
  /** Programs know nothing of an interface any more. */
  forget: (interfaceIndex: number) => writePinned("fluxvm_iface", new Uint32Array([interfaceIndex]), null),
  setPhase: (sandboxId: string, phase: "running" | "quiescing" | "restoring") => migration().setPhase(sandboxId, phase),
  exportConnections: (sandboxId: string) => migration().exportConnections(sandboxId),
  importConnections: (sandboxId: string, document: JsonObject) => migration().importConnections(sandboxId, document),
  attachment: (sandboxId: string) => dataplane.attachment(sandboxId),
  mend: (request: AttachRequest) => dataplane.mend(request),
  repair: (expected: readonly AttachRequest[]) => dataplane.repair(expected),
  health: () => dataplane.health(),
  stats: (sandboxId: string) => observation().stats(sandboxId),
  flows: (sandboxId: string | null, limit: number) => observation().flows(sandboxId, limit),
  drops: (sandboxId: string | null, limit: number) => observation().drops(sandboxId, limit),
  connections: (sandboxId: string, limit: number) => observation().connections(sandboxId, limit),
  learnedAddress: (sandboxId: string) => observation().learnedAddress(sandboxId),
};

function openPinned(name: string): Promise<BpfMap> {
  const { pin_root: pinRoot } = options as { pin_root: string };
  return BpfMap.openPinned(join(pinRoot, "maps", name));
}

async function writePinned(name: string, key: Uint32Array, value: BigUint64Array | null): Promise<void> {
  await using map = await openPinned(name);
  const keyBytes = new Uint8Array(key.buffer);
  if (value === null) map.delete(keyBytes);
  else map.set(keyBytes, new Uint8Array(value.buffer));
}

function observation() {
  if (dataplane.observation === undefined) throw new Error(`dataplane ${id} tells nothing`);
  return dataplane.observation;
}

function migration() {
  if (dataplane.migration === undefined) throw new Error(`dataplane ${id} moves no connections`);
  return dataplane.migration;
}

function say(answer: unknown): void {
  process.stdout.write(
    `${JSON.stringify(answer, (_, value) => (typeof value === "bigint" ? { bigint: String(value) } : value))}\n`,
  );
}

say({ ready: true });
for await (const line of createInterface({ input: process.stdin })) {
  const { call, args } = JSON.parse(line) as { call: string; args: never[] };
  try {
    say({ result: (await calls[call]?.(...args)) ?? null });
  } catch (error) {
    const { code, message } = asAgentError(error);
    say({ error: { code, message, stack: error instanceof Error ? error.stack : null } });
  }
}
process.exit(0);
