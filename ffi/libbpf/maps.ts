// Maps of BPF: elements by their bytes. Elements are read and written at once, on this thread; everything else is a job.
import { constants } from "node:os";
import { runJob } from "../channel.ts";
import { hostLibrary } from "../library.ts";
import { copyOfBytes, unsignedWords } from "../memory.ts";
import { check } from "../status.ts";
import { Held, openPin } from "./held.ts";

export interface MapFacts {
  /** The kernel's number of it. */
  readonly id: number;
  /** `mapTypes`. */
  readonly type: number;
  readonly keyBytes: number;
  /** Of one processor. */
  readonly valueBytes: number;
  /** A value as it is read and written: where each processor has its own, all of them, each padded to eight bytes. */
  readonly elementBytes: number;
  readonly maxEntries: number;
  readonly flags: number;
  /** At most 15 characters of it. */
  readonly name: string;
}

/** Types of maps that this project uses, by the kernel's numbers. */
export const mapTypes = {
  hash: 1,
  array: 2,
  perCpuHash: 5,
  perCpuArray: 6,
  lruHash: 9,
  lpmTrie: 11,
  ringBuffer: 27,
} as const;

/** The one flag of new maps that callers need: LPM tries must have it. */
export const MAP_NO_PREALLOC = 1;

export interface NewMap {
  readonly name: string;
  readonly type: number;
  readonly keyBytes: number;
  readonly valueBytes: number;
  readonly maxEntries: number;
  readonly flags?: number;
}

export interface WriteOptions {
  /** `create`: only a new one; `replace`: only one that is there. */
  readonly mode?: "any" | "create" | "replace";
  /** Under the lock that the value has inside. */
  readonly lock?: boolean;
}

export interface MapElement {
  readonly key: Uint8Array;
  readonly value: Uint8Array;
}

const FACTS_BYTES = 48;
const NAME_AT = 32;
const WRITE_MODES = { any: 0, create: 1, replace: 2 } as const;
const WITH_LOCK = 4;
const POSITION_MIN_BYTES = 4;
/** Native code refuses more in one call. */
const CALL_MAX_BYTES = 1024 * 1024;
const PAGE_ELEMENTS = 256;

export class BpfMap extends Held {
  readonly facts: MapFacts;
  // Storage that native code reads and writes in one call; calls of one map are never at the same time.
  readonly #key: Uint8Array<ArrayBuffer>;
  readonly #value: Uint8Array<ArrayBuffer>;

  /** For `openPinned`, `create` and `BpfObject`. */
  constructor(handle: number, what: string) {
    super(handle, what);
    this.facts = readFacts(handle, what);
    this.#key = new Uint8Array(new ArrayBuffer(Math.max(1, this.facts.keyBytes)));
    this.#value = new Uint8Array(new ArrayBuffer(Math.max(1, this.facts.elementBytes)));
  }

  /** Opens a pinned map. Rejects with a `HostError`: `ENOENT`: nothing is pinned there. */
  static async openPinned(path: string): Promise<BpfMap> {
    return new BpfMap(await openPin(path, "map"), path);
  }

  /** Makes a map that no object knows. */
  static async create(map: NewMap): Promise<BpfMap> {
    const { handle } = await runJob("bpfMapCreate", { ...map, kind: map.type, flags: map.flags ?? 0 }, map.name);
    return new BpfMap(handle, map.name);
  }

  /** The element with this key, or null. */
  get(key: Uint8Array, options: { readonly lock?: boolean } = {}): Uint8Array<ArrayBuffer> | null {
    const { keyBytes, elementBytes } = this.facts;
    const [lentKey, value] = [this.#lendKey(key), this.#value];
    const flags = options.lock === true ? WITH_LOCK : 0;
    const status = hostLibrary().fluxvm_host_bpf_map_lookup(this.handle, lentKey, keyBytes, value, elementBytes, flags);
    if (status === -constants.errno.ENOENT) return null;
    check(status, "read element of map", this.what);
    return value.slice(0, elementBytes);
  }

  /** Writes an element. Throws a `HostError`: `E2BIG`: the map is full; `EEXIST`, `ENOENT`: by its mode. */
  set(key: Uint8Array, value: Uint8Array, options: WriteOptions = {}): void {
    const { keyBytes, elementBytes } = this.facts;
    if (value.length !== elementBytes) throw new RangeError(`${this.what}: a value has ${elementBytes} bytes`);
    const [lentKey, lentValue] = [this.#lendKey(key), this.#value];
    lentValue.set(value);
    const library = hostLibrary();
    check(
      library.fluxvm_host_bpf_map_update(this.handle, lentKey, keyBytes, lentValue, elementBytes, writeFlags(options)),
      "write element of map",
      this.what,
    );
  }

  /** Removes an element. False: there was none. */
  delete(key: Uint8Array): boolean {
    const status = hostLibrary().fluxvm_host_bpf_map_delete(this.handle, this.#lendKey(key), this.facts.keyBytes);
    if (status === -constants.errno.ENOENT) return false;
    check(status, "remove element of map", this.what);
    return true;
  }

  /**
   * Writes many elements; keys and values one after the other. Throws a `HostError` at the first that cannot be written:
   * those before it stay.
   */
  setAll(keys: Uint8Array, values: Uint8Array, options: WriteOptions = {}): void {
    const { keyBytes, elementBytes } = this.facts;
    const count = this.#count(keys);
    if (values.length !== count * elementBytes) throw new RangeError(`${this.what}: ${count} keys have other values`);
    for (const [from, to] of this.#parts(count)) {
      const lentKeys = copyOfBytes(keys.subarray(from * keyBytes, to * keyBytes));
      const lentValues = copyOfBytes(values.subarray(from * elementBytes, to * elementBytes));
      const library = hostLibrary();
      check(
        library.fluxvm_host_bpf_map_update_batch(
          this.handle,
          lentKeys,
          lentKeys.length,
          lentValues,
          lentValues.length,
          writeFlags(options),
        ),
        "write elements of map",
        this.what,
      );
    }
  }

  /** Removes those of these keys that are there; returns how many were. */
  deleteAll(keys: Uint8Array): number {
    const { keyBytes } = this.facts;
    let removed = 0;
    for (const [from, to] of this.#parts(this.#count(keys))) {
      const lent = copyOfBytes(keys.subarray(from * keyBytes, to * keyBytes));
      const status = hostLibrary().fluxvm_host_bpf_map_delete_batch(this.handle, lent, lent.length);
      removed += check(status, "remove elements of map", this.what);
    }
    return removed;
  }

  /**
   * All elements, some hundred at a time. The map may change meanwhile: an element may then come twice or not at all. What
   * is taken out of the generator is the caller's.
   */
  *entries(): Generator<MapElement, void, undefined> {
    const { keyBytes, elementBytes } = this.facts;
    const position = new Uint8Array(new ArrayBuffer(Math.max(keyBytes, POSITION_MIN_BYTES)));
    let first = true;
    for (let size = Math.min(PAGE_ELEMENTS, this.#elementsMax()); ;) {
      const keys = new Uint8Array(new ArrayBuffer(size * keyBytes));
      const values = new Uint8Array(new ArrayBuffer(size * elementBytes));
      const page = this.#readPage(position, first, keys, values);
      if (page === "larger") {
        if (size >= this.#elementsMax()) throw new Error(`${this.what}: a part of it is too large to be read`);
        size = Math.min(size * 4, this.#elementsMax());
        continue;
      }
      first = false;
      for (let index = 0; index < page.count; index++) {
        yield {
          key: keys.subarray(index * keyBytes, (index + 1) * keyBytes),
          value: values.subarray(index * elementBytes, (index + 1) * elementBytes),
        };
      }
      if (page.end) return;
    }
  }

  /** Memory of the kernel that it takes now, as the kernel counts it. */
  async memoryBytes(): Promise<number> {
    return (await runJob("bpfMapMemory", { map: this.handle }, this.what)).bytes;
  }

  #readPage(
    position: Uint8Array<ArrayBuffer>,
    first: boolean,
    keys: Uint8Array<ArrayBuffer>,
    values: Uint8Array<ArrayBuffer>,
  ): { readonly count: number; readonly end: boolean } | "larger" {
    const count = unsignedWords(1);
    const status = hostLibrary().fluxvm_host_bpf_map_read_batch(
      this.handle,
      position,
      position.length,
      first ? 1 : 0,
      keys,
      keys.length,
      values,
      values.length,
      count,
    );
    if (status === -constants.errno.ENOSPC) return "larger";
    return { end: check(status, "read elements of map", this.what) === 1, count: count[0] ?? 0 };
  }

  #lendKey(key: Uint8Array): Uint8Array<ArrayBuffer> {
    if (key.length !== this.facts.keyBytes)
      throw new RangeError(`${this.what}: a key has ${this.facts.keyBytes} bytes`);
    this.#key.set(key);
    return this.#key;
  }

  #count(keys: Uint8Array): number {
    const count = keys.length / this.facts.keyBytes;
    if (!Number.isInteger(count)) throw new RangeError(`${this.what}: a key has ${this.facts.keyBytes} bytes`);
    return count;
  }

  #elementsMax(): number {
    return Math.max(1, Math.floor(CALL_MAX_BYTES / Math.max(this.facts.keyBytes, this.facts.elementBytes)));
  }

  *#parts(count: number): Generator<readonly [number, number]> {
    const step = Math.min(4 * PAGE_ELEMENTS, this.#elementsMax());
    for (let from = 0; from < count; from += step) yield [from, Math.min(from + step, count)];
  }
}

function writeFlags(options: WriteOptions): number {
  return WRITE_MODES[options.mode ?? "any"] | (options.lock === true ? WITH_LOCK : 0);
}

function readFacts(handle: number, what: string): MapFacts {
  const bytes = new Uint8Array(new ArrayBuffer(FACTS_BYTES));
  check(hostLibrary().fluxvm_host_bpf_map_facts(handle, bytes), "facts of map", what);
  const view = new DataView(bytes.buffer);
  const word = (index: number): number => view.getUint32(index * 4, true);
  return {
    id: word(0),
    type: word(1),
    keyBytes: word(2),
    valueBytes: word(3),
    elementBytes: word(4),
    maxEntries: word(5),
    flags: word(6),
    name: textAt(bytes, NAME_AT),
  };
}

/** The text that begins there and ends before the first NUL. */
export function textAt(bytes: Uint8Array, at: number): string {
  const end = bytes.indexOf(0, at);
  return new TextDecoder().decode(bytes.subarray(at, end < 0 ? bytes.length : end));
}
