// The plumbing of a host at work, as a program of its own in the namespace that stands for the host: it can be killed at
// any step, and what it held is in a file. Its arguments are a directory, and a command of those below with its words.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { HostTable } from "../../plugins/host/host-table.ts";
import { HostPlumbing } from "../../plugins/host/network/plumbing.ts";
import { Resolver } from "../../plugins/host/network/resolver.ts";
import { prepareHostLibrary } from "../../ffi/library.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { NetworkWish, PrepareRequest, SandboxNetwork } from "../../src/contracts/network.ts";
import type { Resource, ResourceScope } from "../../src/contracts/resource.ts";
import { silentLog } from "../../src/telemetry/silent-log.ts";

const NATIVE = process.env.FLUXVM_TEST_NATIVE ?? join(import.meta.dir, "../../dist/native");
const [runDir = "", command = "", ...words] = process.argv.slice(2);
const rowsFile = join(runDir, "rows.json");

/** Kills this process at the passing of this number. */
let diesAt = Number.POSITIVE_INFINITY;
let passed = 0;

function step(): void {
  passed += 1;
  if (passed === diesAt) process.kill(process.pid, "SIGKILL");
}

/** A journal in a file, as the agent's is: written before anything is made. */
class FileScope implements ResourceScope {
  #rows: Resource[] = readRows();

  async acquire<T>(resource: Resource, make: () => Promise<T>): Promise<T> {
    this.#write([...this.#rows, resource]);
    step();
    const made = await make();
    step();
    return made;
  }

  async update(kind: string, name: string, data: JsonObject): Promise<void> {
    this.#write(this.#rows.map((row) => (row.kind === kind && row.name === name ? { kind, name, data } : row)));
    step();
  }

  async release(kind: string, name: string): Promise<void> {
    const row = this.#rows.find((held) => held.kind === kind && held.name === name);
    if (row !== undefined) await this.#release(row);
  }

  held(): readonly Resource[] {
    return this.#rows;
  }

  async releaseAll(): Promise<void> {
    for (const row of this.#rows.toReversed()) await this.#release(row);
  }

  async #release(row: Resource): Promise<void> {
    step();
    await plumbing.releases[row.kind]?.(row);
    step();
    this.#write(this.#rows.filter((other) => other !== row));
  }

  #write(rows: Resource[]): void {
    writeFileSync(rowsFile, JSON.stringify(rows));
    this.#rows = rows;
  }
}

function readRows(): Resource[] {
  try {
    return JSON.parse(readFileSync(rowsFile, "utf8")) as Resource[];
  } catch {
    return [];
  }
}

await prepareHostLibrary(join(NATIVE, "libfluxvm_host.so"), runDir);
const guestAgent = join(NATIVE, "fluxvm-guest-agent");
const plumbing = new HostPlumbing({
  directory: join(runDir, "networks"),
  guestAgent,
  hostTable: new HostTable({ agentPorts: [], log: silentLog }),
  resolver: new Resolver(guestAgent, join(runDir, "resolver")),
  log: silentLog,
});
const scope = new FileScope();

/** `place`: a bridge, or `tap:` and a tap device that is there, or `macvtap:` and an interface. */
function requestOf(guest: string, place: string | null = null): PrepareRequest {
  const tap = place?.startsWith("tap:") === true ? place.slice("tap:".length) : null;
  const lower = place?.startsWith("macvtap:") === true ? place.slice("macvtap:".length) : null;
  const wish: NetworkWish = {
    mode: lower === null ? "tap" : "macvtap",
    guest: guest === "process" ? "process" : "machine",
    netns: place === null,
    bridge: lower ?? (tap === null ? place : null),
    tap,
    mac: null,
    queues: 1,
  };
  return { sandboxId: "plumbed", shortName: words[1] ?? "plumbed22345", wish, addressBlock: 100, uid: 4711 };
}

async function connect(request: PrepareRequest): Promise<SandboxNetwork> {
  await plumbing.check(request.wish);
  const network = await plumbing.prepare(request, scope);
  step();
  await plumbing.up(network);
  step();
  return network;
}

const commands: Readonly<Record<string, () => Promise<unknown>>> = {
  /** GUEST [SHORT_NAME [PLACE]]: connects and leaves it so; says the network. */
  connect: () => connect(requestOf(words[0] ?? "", words[2] ?? null)),
  /** GUEST SHORT_NAME STEP [PLACE]: connects and gives it back, unless it dies at that step; says how many there are. */
  die: async () => {
    diesAt = Number(words[2]);
    await connect(requestOf(words[0] ?? "", words[3] ?? null));
    await scope.releaseAll();
    return passed;
  },
  /** GUEST SHORT_NAME TIMES: connects and gives back; says the milliseconds of each connection. */
  cycle: async () => {
    const times: number[] = [];
    for (let turn = 0; turn < Number(words[2]); turn += 1) {
      const began = performance.now();
      await connect(requestOf(words[0] ?? ""));
      times.push(performance.now() - began);
      await scope.releaseAll();
    }
    return times;
  },
  /** GUEST SHORT_NAME NETWORK [PLACE]: as an agent that begins; says whether it is there. */
  repair: () =>
    plumbing.repair(requestOf(words[0] ?? "", words[3] ?? null), JSON.parse(words[2] ?? "") as SandboxNetwork, scope),
  /** GUEST SHORT_NAME NETWORK [PLACE]: as an agent that looks after it; says whether all is there. */
  whole: () =>
    plumbing.isWhole(requestOf(words[0] ?? "", words[3] ?? null), JSON.parse(words[2] ?? "") as SandboxNetwork, scope),
  /** Gives back what is in the file. */
  clean: () => scope.releaseAll(),
  /** Whether nobody has the block. */
  free: () => plumbing.addressIsFree(100),
};

const run = commands[command];
if (run === undefined) throw new Error(`no command ${command}`);
try {
  console.log(JSON.stringify({ said: (await run()) ?? null }));
  process.exit(0);
} catch (error) {
  console.log(JSON.stringify({ code: (error as { code?: string }).code, message: (error as Error).message }));
  process.exit(1);
}
