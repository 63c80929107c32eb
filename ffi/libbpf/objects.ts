// Object files of BPF: parsed by libbpf, adjusted and loaded in one step. What remains are maps and programs.
import { runJob } from "../channel.ts";
import { hostLibrary } from "../library.ts";
import { copyOfBytes } from "../memory.ts";
import { check, HostError } from "../status.ts";
import { BpfMap, textAt } from "./maps.ts";
import { BpfProgram } from "./programs.ts";

export interface MapSetting {
  /** Room for elements, instead of what the object says. */
  readonly maxEntries?: number;
  /**
   * A map that is pinned here is used, and must be of the same kind and size; where there is none, the new one is pinned.
   * The directory must exist.
   */
  readonly pin?: string;
}

export interface LoadOptions {
  /** For errors. */
  readonly name: string;
  /** By the names of maps in the object. */
  readonly maps?: Readonly<Record<string, MapSetting>>;
}

/** An object that was not loaded. */
export class BpfLoadError extends HostError {
  // Not a property, so that it is not printed with every report of the error.
  readonly #log: string;

  constructor(errno: number, name: string, log: string) {
    super(errno, "load", name);
    this.#log = log;
    const reason = reasonIn(log);
    if (reason !== undefined) this.message += `: ${reason}`;
  }

  /** What libbpf and the verifier said, at most its last 48 KiB. */
  get log(): string {
    return this.#log;
  }
}

/** The verifier's last word where it had one, else libbpf's first. */
function reasonIn(log: string): string | undefined {
  const lines = log.split("\n").map((line) => line.trim());
  const counted = lines.findIndex((line) => /^processed \d+ insns/.test(line));
  return (counted > 0 ? lines[counted - 1] : lines[0])?.replace(/^libbpf: /, "") || undefined;
}

const LOG_MAX_BYTES = 64 * 1024;
const NAME_MAX_BYTES = 256;

export class BpfObject implements AsyncDisposable {
  private constructor(
    readonly name: string,
    /** By their names in the object. */
    readonly maps: ReadonlyMap<string, BpfMap>,
    /** By the names of their functions. */
    readonly programs: ReadonlyMap<string, BpfProgram>,
    /** What libbpf had to say though it went well. */
    readonly log: string,
  ) {}

  /**
   * Loads the object whose file has these bytes. Rejects with a `BpfLoadError`; maps that were pinned until then stay
   * pinned, with the same content in the next attempt.
   */
  static async load(file: Uint8Array, options: LoadOptions): Promise<BpfObject> {
    const { name } = options;
    const library = hostLibrary();
    const bytes = copyOfBytes(file);
    const object = check(library.fluxvm_host_bpf_object_new(bytes, bytes.length), "read object", name);
    try {
      for (const [map, setting] of Object.entries(options.maps ?? {})) adjust(object, name, map, setting);
      const { errno } = await runJob("bpfObjectLoad", { object }, name);
      const log = logOf(object, name);
      if (errno !== 0) throw new BpfLoadError(errno, name, log);
      const takeMap = (out: Uint8Array<ArrayBuffer>): number =>
        library.fluxvm_host_bpf_object_take_map(object, out, out.length);
      const takeProgram = (out: Uint8Array<ArrayBuffer>): number =>
        library.fluxvm_host_bpf_object_take_program(object, out, out.length);
      const maps = takeAll(name, takeMap, (handle, what) => new BpfMap(handle, what));
      return new BpfObject(
        name,
        maps,
        takeAll(name, takeProgram, (handle, what) => new BpfProgram(handle, what)),
        log,
      );
    } finally {
      await runJob("bpfClose", { handle: object }, name);
    }
  }

  /** Throws when the object has no such map. */
  map(name: string): BpfMap {
    const map = this.maps.get(name);
    if (map === undefined) throw new Error(`${this.name} has no map ${name}`);
    return map;
  }

  /** Throws when the object has no such program. */
  program(name: string): BpfProgram {
    const program = this.programs.get(name);
    if (program === undefined) throw new Error(`${this.name} has no program ${name}`);
    return program;
  }

  /** Closes all its maps and programs that are still open. */
  async close(): Promise<void> {
    const held = [...this.maps.values(), ...this.programs.values()];
    await Promise.all(held.map((one) => one[Symbol.asyncDispose]()));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

function adjust(object: number, objectName: string, map: string, setting: MapSetting): void {
  const [name, pin] = [textToLend(map), textToLend(setting.pin ?? "")];
  const maxEntries = setting.maxEntries ?? 0;
  if (!Number.isInteger(maxEntries) || maxEntries < 0 || maxEntries > 0xffff_ffff) {
    throw new RangeError(`${maxEntries} elements of ${map}`);
  }
  const status = hostLibrary().fluxvm_host_bpf_object_adjust(
    object,
    name.bytes,
    name.length,
    maxEntries,
    pin.bytes,
    pin.length,
  );
  check(status, "adjust map of object", objectName);
}

/** Never without storage, which cannot be lent. */
function textToLend(text: string): { readonly bytes: Uint8Array<ArrayBuffer>; readonly length: number } {
  const encoded = new TextEncoder().encode(text);
  const bytes = new Uint8Array(new ArrayBuffer(encoded.length + 1));
  bytes.set(encoded);
  return { bytes, length: encoded.length };
}

function logOf(object: number, name: string): string {
  const out = new Uint8Array(new ArrayBuffer(LOG_MAX_BYTES));
  const length = check(hostLibrary().fluxvm_host_bpf_object_text(object, out, out.length), "log of object", name);
  return new TextDecoder().decode(out.subarray(0, length));
}

function takeAll<Thing>(
  object: string,
  take: (name: Uint8Array<ArrayBuffer>) => number,
  open: (handle: number, what: string) => Thing,
): Map<string, Thing> {
  const all = new Map<string, Thing>();
  const out = new Uint8Array(new ArrayBuffer(NAME_MAX_BYTES));
  for (;;) {
    const handle = check(take(out), "open parts of object", object);
    if (handle === 0) return all;
    const name = textAt(out, 0);
    all.set(name, open(handle, name));
  }
}
