import { afterEach, describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { ByteSource, GuestFiles } from "../contracts/files.ts";
import { AgentError } from "../errors/agent-error.ts";
import { FrameKind, type Message } from "./frame.ts";
import { closeAll, connect, failure, MIB, PATH, type Script } from "./testing/harness.ts";
import { type PeerConnection, WELCOME } from "./testing/peer.ts";

afterEach(closeAll);

const OPENED = { event: "opened", size: 0, offset: 0, length: 0, mode: 0, modified_ms: 0 };
const DONE = { size: 0, entries: 0 };

/** A guest that streams files and answers the first operation by `script`. */
async function files(script: Script): Promise<GuestFiles> {
  const channel = await connect([
    async (c) => {
      await c.welcome({ ...WELCOME, features: ["exec", "file-streams"] });
      await script(c);
    },
  ]);
  return channel.fileStreams!;
}

const opened = (c: PeerConnection, more: Message = {}): void => c.send(1, FrameKind.event, { ...OPENED, ...more });

function source(pieces: (Uint8Array | Error)[]): ByteSource & { reads: number; closed: number } {
  return {
    reads: 0,
    closed: 0,
    async read() {
      this.reads += 1;
      const piece = pieces.shift();
      if (piece instanceof Error) throw piece;
      return piece ?? null;
    },
    close() {
      this.closed += 1;
    },
  };
}

/** An entry as the guest encodes it. */
function entry(path: string, kind: number): Uint8Array {
  return Buffer.concat([
    Buffer.from([0x98, 0xc4, path.length]),
    Buffer.from(path),
    Buffer.from([kind, 5, 0xcd, 0x01, 0xa4, 1, 2, 0xce, 0, 0, 0, 7, 0xc4, 0]),
  ]);
}

test("a guest without streamed files has none", async () => {
  const channel = await connect([async (c) => void (await c.welcome())]);
  expect(channel.fileStreams).toBeUndefined();
});

describe("entries", () => {
  test("are read across the frames they come in", async () => {
    const both = Buffer.concat([entry("/d/a", 0), entry("/d/b", 2)]);
    const guest = await files(async (c) => {
      expect({ ...(await c.next()).message }).toEqual({ op: "list", path: PATH });
      opened(c);
      for (const byte of both) c.data(1, 1, new Uint8Array([byte]));
      c.send(1, FrameKind.end, DONE);
    });
    const [a, b] = await guest.list(PATH);
    expect(Buffer.from(a!.path).toString()).toBe("/d/a");
    expect(a).toMatchObject({ kind: "file", size: 5, mode: 0o644, uid: 1, gid: 2, modifiedAtUnixMs: 7 });
    expect(b).toMatchObject({ kind: "symlink" });
  });

  test.each([
    ["a wrong form", Buffer.from([0x97])],
    ["an unknown kind", entry("/a", 9)],
    ["less than one", Buffer.alloc(0)],
    ["two", Buffer.concat([entry("/a", 0), entry("/b", 0)])],
    ["one that ends early", entry("/a", 0).subarray(0, 10)],
  ])("are not made of %s", async (_, bytes) => {
    const guest = await files(async (c) => {
      await c.next();
      opened(c);
      if (bytes.length > 0) c.data(1, 1, bytes);
      c.send(1, FrameKind.end, DONE);
    });
    expect((await failure(guest.stat(PATH))).code).toBe("GUEST_ERROR");
  });
});

test.each([
  ["stat", "NOT_FOUND", "PATH_NOT_FOUND"],
  ["remove", "NOT_EMPTY", "DIRECTORY_NOT_EMPTY"],
  ["remove", "BAD_ARGUMENT", "PATH_INVALID"],
  ["list", "LIMIT", "LISTING_TOO_LARGE"],
  ["watch", "LIMIT", "SANDBOX_BUSY"],
  ["watch", "TOO_LARGE", "LISTING_TOO_LARGE"],
  ["stat", "INTERRUPTED", "GUEST_UNREACHABLE"],
  ["resolve", "SYMLINK", "FILE_IS_SYMLINK"],
  ["resolve", "CAPABILITY", "CAPABILITY_MISSING"],
] as const)("%s that fails with %s is %s", async (op, code, expected) => {
  const guest = await files(async (c) => {
    await c.next();
    c.send(1, FrameKind.error, { code, message: "why" });
  });
  const call: Promise<unknown> =
    op === "remove" ? guest.remove(PATH, false) : op === "watch" ? guest.watch(PATH, true) : guest[op](PATH);
  expect((await failure(call)).code).toBe(expected);
});

test("what has no bytes says its arguments and hears its counts", async () => {
  const asked: Message[] = [];
  const calls: [(guest: GuestFiles) => Promise<unknown>, Message, unknown][] = [
    [
      (guest) => guest.create(PATH, { mode: 0o640, exclusive: true, empty: false }),
      { op: "create", path: PATH, mode: 0o640, exclusive: true, empty: false },
      7,
    ],
    [
      (guest) => guest.setAttributes(PATH, { modifiedAtUnixMs: 2 ** 40, size: 3 }),
      { op: "set-attributes", path: PATH, modified_ms: 2 ** 40, size: 3 },
      undefined,
    ],
    [
      (guest) => guest.symlink(PATH, Buffer.from("to")),
      { op: "symlink", path: PATH, target: Buffer.from("to") },
      undefined,
    ],
    [(guest) => guest.link(PATH, PATH), { op: "link", from: PATH, to: PATH }, undefined],
  ];
  for (const [call, args, answer] of calls) {
    const guest = await files(async (c) => {
      asked.push({ ...(await c.next()).message } as Message);
      opened(c);
      c.send(1, FrameKind.end, { size: 7, entries: 1 });
    });
    expect(await call(guest)).toEqual(answer as never);
    expect(asked.pop()).toEqual(args);
  }
});

test("content for a place in a file, or for its end, is sent whole", async () => {
  for (const offset of [5, null]) {
    const guest = await files(async (c) => {
      expect({ ...(await c.next()).message }).toEqual({
        op: "write-at",
        path: PATH,
        ...(offset !== null && { offset }),
      });
      let data = await c.next();
      while (data.message.eof !== true) data = await c.next();
      c.send(1, FrameKind.end, { size: 9, entries: 1 });
    });
    expect(await guest.writeAt(PATH, offset, source([Buffer.from("abcd")]))).toBe(9);
  }
});

describe("downloads", () => {
  test("are never more than one credit ahead of their reader", async () => {
    const size = 4 * MIB;
    let sent = 0;
    const guest = await files(async (c) => {
      expect({ ...(await c.next()).message }).toEqual({ op: "read-range", path: PATH, offset: 0, from_end: false });
      opened(c, { size, length: size });
      let credit: number = limits.streamCreditBytes;
      while (sent < size) {
        while (credit < 65_536) credit += (await c.next()).message.n as number;
        c.data(1, 1, new Uint8Array(65_536).fill(sent / 65_536));
        sent += 65_536;
        credit -= 65_536;
      }
      c.send(1, FrameKind.end, { size, entries: 1 });
    });
    const download = await guest.read(PATH, { offset: 0, fromEnd: false });
    await Bun.sleep(30);
    expect([download.size, sent]).toEqual([size, limits.streamCreditBytes]);
    let received = 0;
    for (let bytes = await download.read(); bytes !== null; bytes = await download.read()) {
      expect(bytes[0]).toBe(Math.floor(received / 65_536));
      received += bytes.length;
    }
    expect(received).toBe(size);
  });

  const lies: [string, (c: PeerConnection) => void][] = [
    ["more than was announced", (c) => (opened(c, { length: 1 }), c.data(1, 1, new Uint8Array(2)))],
    ["less than was announced", (c) => (opened(c, { length: 1 }), c.send(1, FrameKind.end, DONE))],
  ];
  test.each(lies)("are never whole with %s", async (_, lie) => {
    const guest = await files(async (c) => (await c.next(), lie(c)));
    const download = await guest.read(PATH, { offset: 0, fromEnd: false });
    expect((await failure(download.read().then(() => download.read()))).code).toBe("GUEST_ERROR");
  });

  test("that nobody reads any more are cancelled", async () => {
    const heard = Promise.withResolvers<number>();
    const guest = await files(async (c) => {
      await c.next();
      opened(c, { length: 5 });
      heard.resolve((await c.next()).kind);
    });
    const download = await guest.read(PATH, { offset: 0, fromEnd: false });
    download.close();
    download.close();
    expect(await heard.promise).toBe(FrameKind.cancel);
  });
});

describe("uploads", () => {
  test("ask their source only for what the guest can take", async () => {
    const content = source(Array.from({ length: 40 }, () => new Uint8Array(65_536)));
    const guest = await files(async (c) => {
      const { message } = await c.next();
      expect({ ...message }).toEqual({ op: "write-stream", path: PATH, parents: true, mode: 0o600 });
      let bytes = 0;
      for (let isLast = false; !isLast;) {
        const data = await c.next();
        bytes += (data.message.d as Uint8Array).length;
        isLast = data.message.eof === true;
        if (bytes === MIB) {
          await Bun.sleep(30);
          expect(content.reads).toBeLessThanOrEqual(17);
        }
        if (bytes >= MIB) c.send(1, FrameKind.credit, { n: 65_536 });
      }
      c.send(1, FrameKind.end, { size: bytes, entries: 1 });
    });
    expect(await guest.write(PATH, { mode: 0o600 }, content)).toBe(40 * 65_536);
    expect(content.closed).toBe(1);
  });

  test("whose source fails are cancelled, with its own error", async () => {
    const heard: number[] = [];
    const guest = await files(async (c) => {
      await c.next();
      for (;;) heard.push((await c.next()).kind);
    });
    const content = source([new Uint8Array(1), new AgentError("BODY_TOO_SLOW")]);
    expect((await failure(guest.write(PATH, {}, content))).code).toBe("BODY_TOO_SLOW");
    await Bun.sleep(10);
    expect(heard).toEqual([FrameKind.data, FrameKind.cancel]);
    expect(content.closed).toBe(1);
  });

  test("that the guest refuses stop at once", async () => {
    const content = source(Array.from({ length: 1000 }, () => new Uint8Array(65_536)));
    const guest = await files(async (c) => {
      await c.next();
      c.send(1, FrameKind.error, { code: "BAD_ARGUMENT", message: "the archive is refused" });
    });
    expect((await failure(guest.writeArchive(PATH, content))).code).toBe("ARCHIVE_REFUSED");
    expect(content.closed).toBe(1);
    expect(content.reads).toBeLessThan(30);
  });

  test("an answer before everything was sent is no success", async () => {
    const guest = await files(async (c) => (await c.next(), c.send(1, FrameKind.end, { size: 9, entries: 1 })));
    const content = source(Array.from({ length: 100 }, () => new Uint8Array(65_536)));
    expect((await failure(guest.write(PATH, {}, content))).code).toBe("GUEST_ERROR");
  });
});

describe("watches", () => {
  const renamed = Buffer.from([0x93, 3, 0xc4, 2, 0x2f, 0x61, 0xc4, 2, 0x2f, 0x62]);

  test("give changes as they become whole, and end", async () => {
    const guest = await files(async (c) => {
      expect({ ...(await c.next()).message }).toEqual({ op: "watch", path: PATH, recursive: true });
      opened(c);
      c.data(1, 1, renamed.subarray(0, 4));
      await Bun.sleep(5);
      c.data(1, 1, Buffer.concat([renamed.subarray(4), renamed]));
      c.send(1, FrameKind.end, DONE);
    });
    const feed = await guest.watch(PATH, true);
    const first = await feed.next();
    expect(
      first!.map(({ kind, path, renamedTo }) => [
        kind,
        Buffer.from(path).toString(),
        Buffer.from(renamedTo).toString(),
      ]),
    ).toEqual([
      ["renamed", "/a", "/b"],
      ["renamed", "/a", "/b"],
    ]);
    expect(await feed.next()).toBeNull();
  });

  test("nonsense ends them", async () => {
    const guest = await files(async (c) => (await c.next(), opened(c), c.data(1, 1, new Uint8Array([0x92, 0]))));
    const feed = await guest.watch(PATH, true);
    expect((await failure(feed.next())).code).toBe("GUEST_ERROR");
  });
});
