// The cases that the guest agent's own tests run too, as far as they concern what a guest sends to the host.
import { describe, expect, test } from "bun:test";
import { ENTRY_KINDS, type ManifestEntry, type ManifestSink } from "../contracts/channel.ts";
import { bytes, integer } from "./fields.ts";
import { FrameParser } from "./frame.ts";
import { ListingReader } from "./listing.ts";
import { MsgpackReader, type Fields } from "./msgpack.ts";
import { ProtocolViolation } from "./violation.ts";

const MIB = 1024 * 1024;

async function load<T>(name: string): Promise<(T & { name: string })[]> {
  const file = Bun.file(new URL(`../../guest-agent/vectors/${name}.json`, import.meta.url));
  return ((await file.json()) as { cases: (T & { name: string })[] }).cases;
}

const unhex = (text: string) => new Uint8Array(Buffer.from(text, "hex"));

interface FrameCase {
  readonly hex: string;
  readonly frames?: { stream: number; kind: number; payload_hex: string }[];
  readonly error?: string;
}

interface MessageCase {
  readonly message: string;
  readonly payload_hex: string;
  readonly value?: unknown;
  readonly error?: string;
}

interface StateCase {
  readonly kind: number;
  readonly fingerprint_hex: string;
  readonly size: string;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
}

interface ManifestCase {
  readonly hex: string;
  readonly items?: (StateCase & { path_hex: string; now?: StateCase | null; before?: StateCase | null })[];
  readonly error?: string;
}

const manifests = await load<ManifestCase>("manifest");
const frames = await load<FrameCase>("frames");
const messages = await load<MessageCase>("messages");

describe("frames", () => {
  test.each(frames.map((one) => [one.name, one] as const))("%s", (_, { hex, frames: expected, error }) => {
    for (const pieceBytes of [1, 4, 1_000_000]) {
      const found: FrameCase["frames"] = [];
      const parser = new FrameParser((stream, kind, payload) =>
        found.push({ stream, kind, payload_hex: Buffer.from(payload).toString("hex") }),
      );
      const push = (): void => {
        const all = unhex(hex);
        for (let at = 0; at < all.length; at += pieceBytes) parser.push(all.slice(at, at + pieceBytes));
      };
      if (error === undefined) {
        push();
        expect(found).toEqual(expected ?? []);
      } else {
        expect(push).toThrow(ProtocolViolation);
      }
    }
  });
});

describe("manifests", () => {
  type Found = [string, ManifestEntry | null, (ManifestEntry | null)?];

  function read(listing: Uint8Array, pieceBytes: number): Found[] {
    const found: Found[] = [];
    const sink: ManifestSink = {
      entry: (path, entry) => found.push([Buffer.from(path).toString("hex"), entry]),
      difference: (path, now, before) => found.push([Buffer.from(path).toString("hex"), now, before]),
      drained: () => Promise.resolve(),
    };
    const reader = new ListingReader(sink, 1000);
    for (let at = 0; at < listing.length; at += pieceBytes) {
      reader.push(listing.slice(at, at + pieceBytes));
      expect(reader.read(Number.POSITIVE_INFINITY)).toBe(true);
    }
    if (reader.unfinishedBytes > 0) throw new ProtocolViolation("unfinished");
    return found;
  }

  const entryOf = (state: StateCase): ManifestEntry => ({
    kind: ENTRY_KINDS[state.kind] ?? "other",
    fingerprint: unhex(state.fingerprint_hex),
    size: Number(state.size),
    mode: state.mode,
    uid: state.uid,
    gid: state.gid,
  });

  test.each(manifests.map((one) => [one.name, one] as const))("%s", (_, { hex, items, error }) => {
    for (const pieceBytes of [1, 5, 1_000_000]) {
      if (error !== undefined) {
        expect(() => read(unhex(hex), pieceBytes)).toThrow(ProtocolViolation);
        continue;
      }
      const expected = (items ?? []).map((item): Found => {
        if (item.now === undefined) return [item.path_hex, entryOf(item)];
        return [item.path_hex, item.now && entryOf(item.now), item.before ? entryOf(item.before) : null];
      });
      expect(read(unhex(hex), pieceBytes)).toEqual(expected);
    }
  });
});

describe("messages", () => {
  const read = (hex: string): Fields => {
    const reader = new MsgpackReader();
    reader.reset(unhex(hex));
    return reader.wholeMap();
  };

  /** `{"hex"}` and `{"int"}` as the values they stand for. */
  const plain = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(plain);
    if (typeof value !== "object" || value === null) return value;
    if ("hex" in value) return unhex(String(value.hex));
    if ("int" in value) return Number(value.int);
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
  };

  const withPrototypes = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(withPrototypes);
    if (typeof value !== "object" || value === null || value instanceof Uint8Array) return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withPrototypes(item)]));
  };

  const valid = messages.filter((one) => one.value !== undefined);
  test.each(valid.map((one) => [one.name, one] as const))("%s", (_, { payload_hex, value }) => {
    expect(withPrototypes(read(payload_hex))).toEqual(plain(value));
  });

  /** How the host takes the fields of what a guest sends. */
  const checks: Record<string, (fields: Fields) => unknown> = {
    credit: (fields) => integer(fields, "n"),
    beat: (fields) => integer(fields, "t"),
    data: (fields) => [integer(fields, "c", 2), bytes(fields, "d", MIB)],
  };
  const invalid = messages.filter((one) => one.error !== undefined && one.message in checks);
  test.each(invalid.map((one) => [one.name, one] as const))("%s is refused", (_, { message, payload_hex }) => {
    expect(() => checks[message]?.(read(payload_hex))).toThrow(ProtocolViolation);
  });
});
