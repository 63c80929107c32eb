// The programs and maps of this host, loaded once and pinned: found again by later agents, and replaced when the object is
// another one. Maps are kept over that as long as their layout is the same.
import { existsSync } from "node:fs";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { BPF_PROGRAMS, BPF_SCHEMA_VERSION, type MapShape, TRAFFIC_MAPS } from "../../../ffi/layout/bpf.ts";
import { BpfMap } from "../../../ffi/libbpf/maps.ts";
import { BpfLoadError, BpfObject } from "../../../ffi/libbpf/objects.ts";
import { BpfProgram } from "../../../ffi/libbpf/programs.ts";
import { isHostError } from "../../../ffi/status.ts";
import type { Logger } from "../../../src/contracts/log.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";
import type { TrafficMap, TrafficMaps } from "./kernel-map.ts";
import { type ObjectChoice, type ObjectFile, readObject } from "./object-file.ts";
import type { Direction, EbpfPlaces } from "./places.ts";

const NAMES: Readonly<Record<Direction, string>> = { in: BPF_PROGRAMS.egress, out: BPF_PROGRAMS.ingress };
const MAP_NAMES = Object.keys(TRAFFIC_MAPS) as TrafficMap[];
const LOG_SHOWN_CHARS = 2000;

interface ObjectRecord {
  readonly digest: string;
  readonly schemaVersion: number;
}

type Programs = Readonly<Record<Direction, BpfProgram>>;
type Maps = Readonly<Record<TrafficMap, BpfMap>>;

export class ProgramSet {
  readonly #programs: Programs;
  readonly #maps: Maps;
  #pinning: Promise<boolean> | null = null;

  private constructor(
    /** What is shown of where they come from. */
    readonly label: string,
    maps: Maps,
    programs: Programs,
    readonly ids: Readonly<Record<Direction, number>>,
  ) {
    this.#maps = maps;
    this.#programs = programs;
  }

  /**
   * The pinned ones when they are of this object, else loaded from it and pinned. Rejects with `DATAPLANE_FAILED` when the
   * object cannot be loaded; then what was pinned stays, and what is attached goes on.
   */
  static async open(places: EbpfPlaces, choice: ObjectChoice, log: Logger): Promise<ProgramSet> {
    await makePlaces(places);
    const object = await readObject(choice);
    const record = await readObjectRecord(places.objectRecord);
    const maps = record?.schemaVersion === BPF_SCHEMA_VERSION ? await pinnedMaps(places) : null;
    const programs = maps !== null && record?.digest === object.digest ? await pinnedPrograms(places) : null;
    if (maps !== null && programs !== null) return ProgramSet.#of(object, { maps, programs });
    const started = performance.now();
    const set = ProgramSet.#of(object, await load(places, object, maps !== null));
    const elapsedMs = Math.round(performance.now() - started);
    log.info({ object: object.label, elapsedMs, keptMaps: maps !== null }, "programs of the dataplane loaded");
    return set;
  }

  static #of(object: ObjectFile, { maps, programs }: Opened): ProgramSet {
    const ids = { in: programs.in.facts().id, out: programs.out.facts().id };
    return new ProgramSet(object.label, maps, programs, ids);
  }

  get maps(): TrafficMaps {
    return this.#maps;
  }

  program(direction: Direction): BpfProgram {
    return this.#programs[direction];
  }

  /** Whether a later agent would find everything. */
  isPinned(places: EbpfPlaces): boolean {
    return existsSync(places.links) && this.#unpinned(places).length === 0;
  }

  /**
   * Pins again what is not pinned any more, and answers whether there was anything: what is loaded, with all that is in
   * the maps, outlives its pins for as long as this agent runs. The directories above are the caller's.
   */
  pinAgain(places: EbpfPlaces): Promise<boolean> {
    if (this.isPinned(places)) return Promise.resolve(false);
    this.#pinning ??= this.#pinAgain(places).finally(() => {
      this.#pinning = null;
    });
    return this.#pinning;
  }

  async #pinAgain(places: EbpfPlaces): Promise<boolean> {
    await makePlaces(places);
    for (const { thing, path } of this.#unpinned(places)) await thing.pin(path);
    return true;
  }

  #unpinned(places: EbpfPlaces) {
    const maps = MAP_NAMES.map((name) => ({ thing: this.#maps[name], path: join(places.maps, name) }));
    const programs = (["in", "out"] as const).map((direction) => ({
      thing: this.#programs[direction],
      path: join(places.programs, NAMES[direction]),
    }));
    return [...maps, ...programs].filter(({ path }) => !existsSync(path));
  }
}

async function makePlaces(places: EbpfPlaces): Promise<void> {
  for (const directory of [places.programs, places.maps, places.links]) {
    await mkdir(directory, { recursive: true, mode: 0o700 });
  }
}

interface Opened {
  readonly maps: Maps;
  readonly programs: Programs;
}

/** Null when one of them is missing, or is not what its name says. */
async function pinnedMaps(places: EbpfPlaces): Promise<Maps | null> {
  const maps = await pinned(() =>
    Promise.all(MAP_NAMES.map(async (name) => [name, await BpfMap.openPinned(join(places.maps, name))] as const)),
  );
  if (maps === null || maps.some(([name, map]) => !hasShape(map, TRAFFIC_MAPS[name]))) return null;
  return Object.fromEntries(maps) as Record<TrafficMap, BpfMap>;
}

async function pinnedPrograms(places: EbpfPlaces): Promise<Programs | null> {
  return await pinned(async () => ({
    in: await BpfProgram.openPinned(join(places.programs, NAMES.in)),
    out: await BpfProgram.openPinned(join(places.programs, NAMES.out)),
  }));
}

async function pinned<T>(open: () => Promise<T>): Promise<T | null> {
  try {
    return await open();
  } catch (error) {
    if (isHostError(error, "ENOENT", "EINVAL")) return null;
    throw error;
  }
}

function hasShape({ facts }: BpfMap, shape: MapShape): boolean {
  return (
    facts.maxEntries === shape.maxEntries && facts.keyBytes === shape.keyBytes && facts.valueBytes === shape.valueBytes
  );
}

/**
 * Loads, pins, and writes down what was loaded, in this order: cut off in between it is done again. Interfaces keep the
 * older programs, with the maps that those have, until theirs are exchanged.
 */
async function load(places: EbpfPlaces, object: ObjectFile, keepMaps: boolean): Promise<Opened> {
  const pins = Object.fromEntries(MAP_NAMES.map((name) => [name, { pin: join(places.maps, name) }]));
  const loaded = await loadObject(object, keepMaps ? pins : {});
  const maps = Object.fromEntries(MAP_NAMES.map((name) => [name, part(object, name, loaded.maps.get(name))]));
  const programs = {
    in: part(object, NAMES.in, loaded.programs.get(NAMES.in)),
    out: part(object, NAMES.out, loaded.programs.get(NAMES.out)),
  };
  for (const name of keepMaps ? [] : MAP_NAMES) {
    const map = maps[name] as BpfMap;
    if (!hasShape(map, TRAFFIC_MAPS[name])) throw unfit(object, `its map ${name} has another layout`);
    await replacePin(map, join(places.maps, name));
  }
  for (const direction of ["in", "out"] as const) {
    await replacePin(programs[direction], join(places.programs, NAMES[direction]));
  }
  await writeObjectRecord(places.objectRecord, { digest: object.digest, schemaVersion: BPF_SCHEMA_VERSION });
  return { maps: maps as Maps, programs };
}

async function replacePin(thing: BpfMap | BpfProgram, path: string): Promise<void> {
  await rm(path, { force: true });
  await thing.pin(path);
}

async function loadObject(object: ObjectFile, maps: Readonly<Record<string, { pin: string }>>): Promise<BpfObject> {
  try {
    return await BpfObject.load(object.bytes, { name: "fluxvm_tc", maps });
  } catch (error) {
    const log = error instanceof BpfLoadError ? error.log.slice(-LOG_SHOWN_CHARS) : "";
    const reason = isHostError(error) ? error.code : String(error);
    throw new AgentError("DATAPLANE_FAILED", `the BPF object ${object.label} cannot be loaded (${reason})`, {
      details: { log },
      cause: error,
    });
  }
}

function part<T>(object: ObjectFile, name: string, found: T | undefined): T {
  if (found === undefined) throw unfit(object, `it has no ${name}`);
  return found;
}

function unfit(object: ObjectFile, why: string): AgentError {
  return new AgentError("DATAPLANE_FAILED", `the BPF object ${object.label} is not for this agent: ${why}`);
}

/** Null for what is missing, or was cut by a crash. */
async function readObjectRecord(path: string): Promise<ObjectRecord | null> {
  try {
    const { digest, schema_version: schemaVersion } = JSON.parse(await readFile(path, "utf8")) as Record<
      string,
      unknown
    >;
    return typeof digest === "string" && typeof schemaVersion === "number" ? { digest, schemaVersion } : null;
  } catch {
    return null;
  }
}

async function writeObjectRecord(path: string, { digest, schemaVersion }: ObjectRecord): Promise<void> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  await writeFile(`${path}.new`, JSON.stringify({ digest, schema_version: schemaVersion }), { mode: 0o600 });
  await rename(`${path}.new`, path);
}
