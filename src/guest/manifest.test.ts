import { afterEach, describe, expect, test } from "bun:test";
import type { GuestChannel, ManifestEntry, ManifestRequest, ManifestSink } from "../contracts/channel.ts";
import { createGuestConnector } from "./connector.ts";
import { FrameKind, type Message } from "./frame.ts";
import { difference, fullEntry, int, bin, state } from "./testing/listing.ts";
import { failure } from "./testing/harness.ts";
import { FakePeer, WELCOME, type PeerConnection } from "./testing/peer.ts";

const MIB = 1024 * 1024;
const text = (value: string) => new TextEncoder().encode(value);
const request: ManifestRequest = { paths: [text("/")], filesMax: 200_000, listingMaxBytes: 64 * MIB };

const opened: (() => void)[] = [];

afterEach(() => {
  for (const close of opened.splice(0)) close();
});

async function connect(script: (c: PeerConnection) => Promise<void>): Promise<GuestChannel> {
  const peer = new FakePeer(async (c) => {
    await c.welcome();
    await script(c);
  });
  const channel = await createGuestConnector().unix({ path: peer.path, token: "t", connectTimeoutMs: 1000 });
  opened.push(
    () => channel.close(),
    () => peer.stop(),
  );
  return channel;
}

class Sink implements ManifestSink {
  readonly got: [string, ManifestEntry | null, (ManifestEntry | null)?][] = [];
  drains = 0;

  entry(path: Uint8Array, entry: ManifestEntry): void {
    this.got.push([Buffer.from(path).toString("latin1"), entry]);
  }

  difference(path: Uint8Array, now: ManifestEntry | null, before: ManifestEntry | null): void {
    this.got.push([Buffer.from(path).toString("latin1"), now, before]);
  }

  async drained(): Promise<void> {
    this.drains++;
  }
}

const sha256 = (bytes: Uint8Array) => new Bun.CryptoHasher("sha256").update(bytes).digest();

const end = (listing: Uint8Array, fields: Message = {}): Message => ({
  digest: sha256(listing),
  entries: 0,
  files: 0,
  delta: false,
  mode: "sha256",
  unchanged: 0,
  ...fields,
});

/** Answers one manifest with these bytes, cut every `pieceBytes`, and this end. */
const answer = (listing: Uint8Array, message: Message, pieceBytes = 65_536) =>
  connect(async (c) => {
    const { stream } = await c.next();
    for (let at = 0; at < listing.length; at += pieceBytes) c.data(stream, 1, listing.subarray(at, at + pieceBytes));
    c.send(stream, FrameKind.end, message);
  });

const tree: [Uint8Array, ManifestEntry][] = [
  [text("/"), state("directory", { mode: 0o700 })],
  [text("/a b"), state("file", { size: 2 ** 40, uid: 200_000, gid: 0xffff_ffff })],
  [text("/d"), state("directory", { mode: 0o1777 })],
  [text("/d/unreadable"), state("file", { fingerprint: new Uint8Array(0), mode: 0 })],
  [text("/l"), state("symlink", { fingerprint: text("../x".repeat(1000)), size: 4000 })],
  [text("/p"), state("other")],
  [new Uint8Array([0x2f, 0xff, 0xfe]), state("file")],
];
const listing = Buffer.concat(tree.map(([path, entry]) => fullEntry(path, entry)));

describe("a full listing", () => {
  test.each([1, 3, 7, 64, 1000, 65_536])("arrives entry by entry when it is cut every %d bytes", async (pieceBytes) => {
    const channel = await answer(listing, end(listing, { entries: tree.length, files: 3 }), pieceBytes);
    const sink = new Sink();
    const summary = await channel.manifest(request, sink);
    expect(summary).toEqual({ digest: new Uint8Array(sha256(listing)), files: 3, delta: false, unchanged: 0 });
    expect(sink.got).toEqual(tree.map(([path, entry]) => [Buffer.from(path).toString("latin1"), entry]));
    expect(sink.drains).toBe(Math.ceil(listing.length / pieceBytes));
  });

  test("may be empty", async () => {
    const channel = await answer(new Uint8Array(0), end(new Uint8Array(0)));
    expect((await channel.manifest(request, new Sink())).files).toBe(0);
  });

  test("is asked for with its limits, and with the base when there is one", async () => {
    const asked: Message[] = [];
    const channel = await connect(async (c) => {
      for (;;) {
        const { stream, message } = await c.next();
        asked.push({ ...message } as Message);
        c.send(stream, FrameKind.end, end(new Uint8Array(0)));
      }
    });
    await channel.manifest(request, new Sink());
    await channel.manifest({ ...request, base: new Uint8Array(32) }, new Sink());
    const fields = { op: "manifest", paths: [text("/")], files_max: 200_000, listing_max: 64 * MIB };
    expect(asked).toEqual([fields, { ...fields, base: new Uint8Array(32) }]);
  });
});

describe("a difference", () => {
  const base = { ...request, base: new Uint8Array(32) };
  const changed = state("file", { fingerprint: new Uint8Array(32).fill(1) });
  const bytes = Buffer.concat([
    difference(text("/a"), state("file"), null),
    difference(text("/b"), null, state("symlink", { fingerprint: text("t") })),
    difference(text("/c"), changed, state("file")),
  ]);
  const summary = { digest: new Uint8Array(32).fill(5), entries: 3, files: 12, delta: true, unchanged: 10 };

  test.each([1, 65_536])("names both sides, cut every %d bytes", async (pieceBytes) => {
    const sink = new Sink();
    const channel = await answer(bytes, end(bytes, summary), pieceBytes);
    const { digest, files, delta, unchanged } = summary;
    expect(await channel.manifest(base, sink)).toEqual({ digest, files, delta, unchanged });
    expect(sink.got).toEqual([
      ["/a", state("file"), null],
      ["/b", null, state("symlink", { fingerprint: text("t") })],
      ["/c", changed, state("file")],
    ]);
  });

  test("is refused when none was asked for", async () => {
    const channel = await answer(bytes, end(bytes, summary));
    expect((await failure(channel.manifest(request, new Sink()))).code).toBe("GUEST_ERROR");
  });
});

describe("a listing that cannot be trusted", () => {
  const full = { entries: tree.length, files: 3 };
  const entry = (path: string, fields: Partial<ManifestEntry> = {}) => fullEntry(text(path), state("file", fields));
  const raw = (...parts: Buffer[]) => Buffer.concat([Buffer.from([0x97]), ...parts]);
  const cases: [string, Uint8Array, Message][] = [
    ["with another digest", listing, end(listing, { ...full, digest: new Uint8Array(32) })],
    ["with a short digest", listing, end(listing, { ...full, digest: new Uint8Array(31) })],
    ["with one entry less", listing, end(listing, { ...full, entries: tree.length + 1 })],
    ["with another number of files", listing, end(listing, { ...full, files: 4 })],
    ["of another mode", listing, end(listing, { ...full, mode: "stat" })],
    ["that says it is a difference", listing, end(listing, { ...full, delta: true })],
    ["that ends within an entry", listing.subarray(0, -1), end(listing.subarray(0, -1), full)],
    ["out of order", Buffer.concat([entry("/b"), entry("/a")]), end(new Uint8Array(0))],
    ["with the same path twice", Buffer.concat([entry("/a"), entry("/a")]), end(new Uint8Array(0))],
    [
      "of both kinds",
      Buffer.concat([entry("/a"), difference(text("/b"), state("file"), null)]),
      end(new Uint8Array(0)),
    ],
    ["with a relative path", entry("a"), end(new Uint8Array(0))],
    ["with an empty path", entry(""), end(new Uint8Array(0))],
    ["with a NUL in a path", entry("/a\0"), end(new Uint8Array(0))],
    ["with a path too long", entry(`/${"x".repeat(4096)}`), end(new Uint8Array(0))],
    ["with a mode out of range", entry("/a", { mode: 0o10000 }), end(new Uint8Array(0))],
    ["with a uid out of range", entry("/a", { uid: 2 ** 32 }), end(new Uint8Array(0))],
    ["with a short fingerprint", entry("/a", { fingerprint: new Uint8Array(31) }), end(new Uint8Array(0))],
    [
      "with a fingerprint of a directory",
      fullEntry(text("/a"), state("directory", { fingerprint: new Uint8Array(1) })),
      end(listing),
    ],
    [
      "of an unknown kind",
      raw(bin(text("/a")), int(4), bin(new Uint8Array(0)), int(0), int(0), int(0), int(0)),
      end(listing),
    ],
    ["with an entry of another shape", Buffer.from([0x91, 0x01]), end(listing)],
    ["with a difference between nothing", difference(text("/a"), null, null), end(listing)],
    ["that is noise", Buffer.from("GET / HTTP/1.1\r\n"), end(listing)],
    ["with an entry that never ends", Buffer.concat([Buffer.from([0x97]), bin(new Uint8Array(40_000))]), end(listing)],
  ];

  test.each(cases)("%s rejects", async (_, bytes, message) => {
    const channel = await answer(bytes, message);
    expect((await failure(channel.manifest({ ...request, base: new Uint8Array(32) }, new Sink()))).code).toBe(
      "GUEST_ERROR",
    );
  });

  test("longer than asked for, or with more files, rejects", async () => {
    const many = Buffer.concat(["/a", "/b", "/c"].map((path) => entry(path)));
    for (const limit of [{ filesMax: 2 }, { listingMaxBytes: many.length - 1 }]) {
      const channel = await answer(many, end(many, { entries: 3, files: 3 }));
      expect((await failure(channel.manifest({ ...request, ...limit }, new Sink()))).code).toBe("GUEST_ERROR");
    }
  });

  test("cut before its end rejects as unreachable", async () => {
    const channel = await connect(async (c) => {
      c.data((await c.next()).stream, 1, listing);
      await Bun.sleep(10);
      c.cut();
    });
    expect((await failure(channel.manifest(request, new Sink()))).code).toBe("GUEST_UNREACHABLE");
  });

  test("of a walk that failed rejects with the guest's reason", async () => {
    const channel = await connect(async (c) => {
      const { stream } = await c.next();
      c.data(stream, 1, listing);
      c.send(stream, FrameKind.error, { code: "WALK_FAILED", message: "/secret: permission denied" });
    });
    const error = await failure(channel.manifest(request, new Sink()));
    expect(error).toMatchObject({ code: "WALK_FAILED" });
    expect(error.message).toContain("/secret: permission denied");
  });
});

test("a sink that fails gives the stream up, and the channel goes on", async () => {
  const channel = await connect(async (c) => {
    const { stream } = await c.next();
    c.data(stream, 1, listing);
    for (;;) {
      const frame = await c.next();
      if (frame.kind === FrameKind.open) c.send(frame.stream, FrameKind.end, {});
    }
  });
  const sink = new Sink();
  sink.drained = () => Promise.reject(new Error("disk full"));
  expect((await failure(channel.manifest(request, sink))).code).toBe("INTERNAL");
  await channel.ping();
});

test("a guest without the feature is not asked", async () => {
  const peer = new FakePeer(async (c) => void (await c.welcome({ ...WELCOME, features: ["exec"] })));
  const channel = await createGuestConnector().unix({ path: peer.path, token: "t", connectTimeoutMs: 1000 });
  opened.push(
    () => channel.close(),
    () => peer.stop(),
  );
  expect((await failure(channel.manifest(request, new Sink()))).code).toBe("NOT_SUPPORTED");
});

describe("a long listing", () => {
  const ENTRIES = 200_000;
  const long = Buffer.concat(
    Array.from({ length: ENTRIES }, (_, n) => {
      const path = text(`/some/directory/with/a/name/file-${String(n).padStart(6, "0")}`);
      return fullEntry(path, state("file", { size: n }));
    }),
  );

  /** Sends within the credit it has. */
  const sendAll = async (c: PeerConnection, onStall: () => void = () => {}): Promise<void> => {
    const { stream } = await c.next();
    let credit = MIB;
    for (let at = 0; at < long.length; at += 65_536) {
      const piece = long.subarray(at, at + 65_536);
      while (credit < piece.length) {
        onStall();
        credit += Number((await c.next()).message.n);
      }
      c.data(stream, 1, piece);
      credit -= piece.length;
    }
    c.send(stream, FrameKind.end, end(long, { entries: ENTRIES, files: ENTRIES }));
  };

  test("leaves the event loop to others while it is read", async () => {
    const channel = await connect((c) => sendAll(c));
    let worstMs = 0;
    let turns = 0;
    let lastMs = performance.now();
    let watching = true;
    const watch = (): void => {
      const nowMs = performance.now();
      worstMs = Math.max(worstMs, nowMs - lastMs);
      lastMs = nowMs;
      turns++;
      if (watching) setImmediate(watch);
    };
    setImmediate(watch);
    const startedMs = performance.now();
    const summary = await channel.manifest(request, new Sink());
    watching = false;
    console.log(
      `${ENTRIES} entries in ${(performance.now() - startedMs).toFixed(0)} ms, longest turn ${worstMs.toFixed(1)} ms`,
    );
    expect(summary.files).toBe(ENTRIES);
    expect(turns).toBeGreaterThan(20);
  });

  test("waits for a sink that is slow", async () => {
    const stalled = Promise.withResolvers<void>();
    const channel = await connect((c) => sendAll(c, stalled.resolve));
    const release = Promise.withResolvers<void>();
    const sink = new Sink();
    sink.drained = () => release.promise;
    const listed = channel.manifest(request, sink);
    await stalled.promise;
    await Bun.sleep(20);
    expect(sink.got.length).toBeLessThan(ENTRIES / 10);
    release.resolve();
    await listed;
    expect(sink.got).toHaveLength(ENTRIES);
  });
});
