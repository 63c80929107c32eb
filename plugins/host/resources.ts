// What the control groups of one sandbox say and bound, on either hierarchy. A file that is not there is a controller
// that this host does not give; a limit is set only when all that were asked for can be.
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type {
  MemoryUse,
  Pressure,
  PressureShares,
  ProcessIdentity,
  ResourceLimits,
  ResourceUse,
} from "../../src/contracts/backend.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { isAlive } from "./process.ts";

const CPU_PERIOD_US = 100_000;
/** What v1 shows where there is no bound is a number near 2^63. */
const UNBOUNDED_BYTES = 2 ** 60;

/** The groups of a sandbox; null where the host has no such hierarchy. */
export interface GroupPlaces {
  readonly v2: string | null;
  readonly memoryV1: string | null;
  readonly pidsV1: string | null;
}

export class GroupResources {
  constructor(private readonly places: GroupPlaces) {}

  /** Rejects with `CAPABILITY_MISSING` before anything is written, and with `BAD_REQUEST` for what the kernel refuses. */
  async limit(limits: ResourceLimits): Promise<void> {
    const writes = await this.#writes(limits);
    for (const { path, before } of writes) {
      if (before === null) throw missing(path);
    }
    const done: typeof writes = [];
    try {
      for (const write of writes) {
        await writeFile(write.path, write.value, { flag: "r+" });
        done.push(write);
      }
    } catch (cause) {
      for (const { path, before } of done.reverse()) await writeFile(path, before ?? "", { flag: "r+" });
      throw new AgentError("BAD_REQUEST", `the host refuses a limit (${(cause as NodeJS.ErrnoException).code})`, {
        cause,
      });
    }
  }

  async #writes(limits: ResourceLimits) {
    const { v2, memoryV1, pidsV1 } = this.places;
    const { cpuQuotaPercent: quota, memoryMaxBytes: memory, ioWeight: io, pidsMax: pids, cpusetCpus: cpus } = limits;
    const wanted: (readonly [string, string])[] = [];
    const want = (value: string | number | undefined, dir: string | null, file: string): void => {
      if (value !== undefined) wanted.push([join(dir ?? "", file), String(value)]);
    };
    const share = quota === undefined ? undefined : `${Math.ceil((quota * CPU_PERIOD_US) / 100)} ${CPU_PERIOD_US}`;
    want(share, v2, "cpu.max");
    want(memory, memoryV1 ?? v2, memoryV1 === null ? "memory.max" : "memory.limit_in_bytes");
    want(io === undefined ? undefined : `default ${io}`, v2, "io.weight");
    want(pids, pidsV1 ?? v2, "pids.max");
    want(cpus, v2, "cpuset.cpus");
    return await Promise.all(
      wanted.map(async ([path, value]) => ({ path, value, before: (await read(path))?.trim() ?? null })),
    );
  }

  async use(): Promise<ResourceUse> {
    const { v2, memoryV1, pidsV1 } = this.places;
    const [cpu, memory, memoryMax, pids, pidsMax, io] = await Promise.all([
      readIn(v2, "cpu.stat"),
      memoryV1 === null ? readIn(v2, "memory.current") : readIn(memoryV1, "memory.usage_in_bytes"),
      memoryV1 === null ? readIn(v2, "memory.max") : readIn(memoryV1, "memory.limit_in_bytes"),
      readIn(pidsV1 ?? v2, "pids.current"),
      readIn(pidsV1 ?? v2, "pids.max"),
      readIn(v2, "io.stat"),
    ]);
    return {
      cpuUsageUs: cpu === null ? null : sumOf(cpu, /^usage_usec (\d+)$/gm),
      memoryBytes: numberOf(memory),
      memoryMaxBytes: numberOf(memoryMax),
      pids: numberOf(pids),
      pidsMax: numberOf(pidsMax),
      ioReadBytes: io === null ? null : sumOf(io, /\brbytes=(\d+)/g),
      ioWriteBytes: io === null ? null : sumOf(io, /\bwbytes=(\d+)/g),
    };
  }

  async pressure(): Promise<Readonly<Record<"cpu" | "memory" | "io", Pressure>>> {
    const of = async (what: string): Promise<Pressure> => {
      const text = await readIn(this.places.v2, `${what}.pressure`);
      const some = text === null ? null : shares(text, "some");
      if (text === null || some === null) throw missing(`${what}.pressure`);
      return { some, full: shares(text, "full") };
    };
    const [cpu, memory, io] = await Promise.all([of("cpu"), of("memory"), of("io")]);
    return { cpu, memory, io };
  }

  async cpuset(): Promise<{ cpus: string; mems: string }> {
    const [cpus, mems] = await Promise.all([
      readIn(this.places.v2, "cpuset.cpus.effective"),
      readIn(this.places.v2, "cpuset.mems.effective"),
    ]);
    if (cpus === null || mems === null) throw missing("cpuset.cpus");
    return { cpus: cpus.trim(), mems: mems.trim() };
  }
}

/** Rejects with `SANDBOX_GONE` for a process that has ended. */
export async function memoryOf(identity: ProcessIdentity): Promise<MemoryUse> {
  const text = await readFile(`/proc/${identity.pid}/smaps_rollup`, "utf8").catch(() => null);
  // Afterwards, so that the numbers are of this process and of none that got its pid.
  if (text === null || !(await isAlive(identity))) throw new AgentError("SANDBOX_GONE");
  const kib = (name: string): number => sumOf(text, new RegExp(`^${name}: +(\\d+) kB$`, "gm"));
  return {
    rssKib: kib("Rss"),
    pssKib: kib("Pss"),
    privateKib: kib("Private_(?:Clean|Dirty)"),
    sharedKib: kib("Shared_(?:Clean|Dirty)"),
    swapKib: kib("Swap"),
  };
}

function shares(text: string, kind: "some" | "full"): PressureShares | null {
  const found = new RegExp(`^${kind} avg10=([\\d.]+) avg60=([\\d.]+) avg300=([\\d.]+) total=(\\d+)$`, "m").exec(text);
  if (found === null) return null;
  const [avg10 = 0, avg60 = 0, avg300 = 0, totalUs = 0] = found.slice(1).map(Number);
  return { avg10, avg60, avg300, totalUs };
}

/** Null for what is missing and for `max`. */
function numberOf(text: string | null): number | null {
  const value = text === null ? Number.NaN : Number(text.trim());
  return Number.isFinite(value) && value < UNBOUNDED_BYTES ? value : null;
}

function sumOf(text: string, pattern: RegExp): number {
  return [...text.matchAll(pattern)].reduce((sum, [, digits]) => sum + Number(digits), 0);
}

async function readIn(dir: string | null, file: string): Promise<string | null> {
  return dir === null ? null : await read(join(dir, file));
}

async function read(path: string): Promise<string | null> {
  return await readFile(path, "utf8").catch(() => null);
}

function missing(path: string): AgentError {
  const file = path.slice(path.lastIndexOf("/") + 1);
  const [capability = file] = file.split(".");
  return new AgentError("CAPABILITY_MISSING", `the control groups of this host have no ${file}`, {
    details: { capability: `cgroup:${capability}` },
  });
}
