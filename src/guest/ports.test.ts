import { afterEach, describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { GuestPorts } from "../contracts/ports.ts";
import { encodeData, FrameKind, type Message } from "./frame.ts";
import { closeAll, connect, failure, MIB, type Script } from "./testing/harness.ts";
import { type PeerConnection, WELCOME } from "./testing/peer.ts";

afterEach(closeAll);

/** A guest with ports that answers by `script`. */
async function ports(script: Script): Promise<GuestPorts> {
  const channel = await connect([
    async (c) => {
      await c.welcome({ ...WELCOME, features: ["exec", "ports"] });
      await script(c);
    },
  ]);
  return channel.ports!;
}

/** A guest that takes a connection and then goes on. */
const connected = (script: Script): Promise<GuestPorts> =>
  ports(async (c) => {
    await c.next();
    c.send(1, FrameKind.event, { event: "connected" });
    await script(c);
  });

const ended = (c: PeerConnection): void => c.write(encodeData(1, 1, new Uint8Array(0), true));
const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const error = (c: PeerConnection, code: string): void => c.send(1, FrameKind.error, { code, message: "why" });

test("a guest without ports has none", async () => {
  const channel = await connect([async (c) => void (await c.welcome())]);
  expect(channel.ports).toBeUndefined();
});

describe("what listens", () => {
  test("is listed, with a name where there is one, made safe to show", async () => {
    const guest = await ports(async (c) => {
      expect((await c.next()).message).toMatchObject({ op: "port-list" });
      const listed: Message[] = [
        { port: 80, address: "127.0.0.1", process: "a\nb" },
        { port: 81, address: "::1" },
      ];
      c.send(1, FrameKind.end, { ports: listed });
    });
    expect(await guest.list()).toEqual([
      { port: 80, address: "127.0.0.1", process: "a b" },
      { port: 81, address: "::1", process: null },
    ]);
  });

  test.each<Message>([
    {},
    { ports: 1 },
    { ports: [{ port: 80 }] },
    { ports: [{ port: 0, address: "a" }] },
    { ports: [{ port: 65_536, address: "a" }] },
    { ports: Array.from({ length: limits.portsListedMax + 1 }, () => ({ port: 1, address: "a" })) },
  ])("a list that is none (%#) is a breach of protocol", async (answer) => {
    const guest = await ports(async (c) => {
      await c.next();
      c.send(1, FrameKind.end, answer);
    });
    expect((await failure(guest.list())).code).toBe("GUEST_ERROR");
  });
});

describe("waiting", () => {
  test("ends with the listener, or with a code of its own", async () => {
    const guest = await ports(async (c) => {
      expect((await c.next()).message).toMatchObject({ op: "port-wait", port: 80, timeout_ms: 500 });
      c.send(1, FrameKind.end, { port: 80, address: "::", process: "p" });
      await c.next();
      c.send(2, FrameKind.error, { code: "TIMED_OUT", message: "late" });
      await c.next();
      c.send(3, FrameKind.end, { port: 81, address: "::" });
    });
    expect(await guest.wait(80, 500)).toEqual({ port: 80, address: "::", process: "p" });
    expect((await failure(guest.wait(80, 500))).code).toBe("PORT_WAIT_TIMEOUT");
    expect((await failure(guest.wait(80, 500))).code).toBe("GUEST_ERROR");
  });

  test("is given up with the caller", async () => {
    const cancelled = Promise.withResolvers<void>();
    const guest = await ports(async (c) => {
      await c.next();
      if ((await c.next()).kind === FrameKind.cancel) cancelled.resolve();
    });
    const leaving = new AbortController();
    const waiting = failure(guest.wait(80, 60_000, leaving.signal));
    leaving.abort();
    expect((await waiting).code).toBe("GUEST_UNREACHABLE");
    await cancelled.promise;
    expect((await failure(guest.wait(80, 60_000, leaving.signal))).code).toBe("GUEST_UNREACHABLE");
  });
});

describe("a connection", () => {
  test.each([
    ["REFUSED", "PORT_REFUSED"],
    ["TIMED_OUT", "DEADLINE_EXCEEDED"],
    ["LIMIT", "PORTS_BUSY"],
    ["CAPABILITY", "CAPABILITY_MISSING"],
    ["INTERRUPTED", "GUEST_UNREACHABLE"],
    ["GONE", "SANDBOX_GONE"],
  ] as const)("that is answered %s rejects with %s", async (code, expected) => {
    const guest = await ports(async (c) => {
      await c.next();
      error(c, code);
    });
    expect((await failure(guest.connect(80))).code).toBe(expected);
  });

  test("carries both directions, each to its own end", async () => {
    const finished = Promise.withResolvers<void>();
    const guest = await connected(async (c) => {
      c.data(1, 1, bytes("greeting"));
      ended(c);
      expect((await c.next()).message).toMatchObject({ c: 0, d: bytes("late") });
      expect((await c.next()).message).toMatchObject({ c: 0, eof: true });
      c.send(1, FrameKind.end, {});
      finished.resolve();
    });
    const connection = await guest.connect(80);
    expect(await connection.read()).toEqual(bytes("greeting"));
    expect(await connection.read()).toBeNull();
    await connection.write(bytes("late"));
    await connection.end();
    await connection.end();
    await finished.promise;
    expect(await failure(connection.write(bytes("x")))).toBeInstanceOf(TypeError);
    connection.close();
  });

  test("writes in order, no further than the guest takes", async () => {
    let received = 0;
    const granting = Promise.withResolvers<PeerConnection>();
    const guest = await connected(async (c) => {
      while (received < MIB) received += ((await c.next()).message.d as Uint8Array).length;
      granting.resolve(c);
    });
    const connection = await guest.connect(80);
    let isWritten = false;
    const writing = connection.write(new Uint8Array(MIB + 1)).then(() => {
      isWritten = true;
    });
    const next = connection.write(bytes("next"));
    const peer = await granting.promise;
    await Bun.sleep(20);
    expect([received, isWritten]).toEqual([MIB, false]);
    peer.send(1, FrameKind.credit, { n: 3 });
    await writing;
    expect((await peer.next()).message.d).toEqual(new Uint8Array(1));
    expect((await peer.next()).message.d).toEqual(bytes("ne"));
    peer.send(1, FrameKind.credit, { n: 100 });
    await next;
    expect((await peer.next()).message.d).toEqual(bytes("xt"));
  });

  test("waits for the others where all at once have much to send, and none is cut", async () => {
    const count = limits.guestUnsentMaxBytes / MIB + 8;
    const received = new Map<number, number>();
    const arrived = Promise.withResolvers<void>();
    const guest = await ports(async (c) => {
      for (let n = 1; n <= count; n += 1) {
        const { stream } = await c.next();
        c.send(stream, FrameKind.event, { event: "connected" });
      }
      for (let whole = 0; whole < count;) {
        const { stream, message } = await c.next();
        const length = (received.get(stream) ?? 0) + (message.d as Uint8Array).length;
        received.set(stream, length);
        if (length === MIB) whole += 1;
      }
      arrived.resolve();
    });
    const connections = await Promise.all(Array.from({ length: count }, () => guest.connect(80)));
    await Promise.all(connections.map((connection) => connection.write(new Uint8Array(MIB))));
    await arrived.promise;
    expect([...received.values()]).toEqual(Array.from({ length: count }, () => MIB));
  });

  test("grants credit for what was read only", async () => {
    const news: number[] = [];
    const guest = await connected(async (c) => {
      for (let sent = 0; sent < 4; sent += 1) c.data(1, 1, new Uint8Array(MIB / 4));
      for (;;) news.push((await c.next()).message.n as number);
    });
    const connection = await guest.connect(80);
    await Bun.sleep(20);
    expect(news).toEqual([]);
    let read = 0;
    while (news.length === 0) {
      if (read < MIB / 2) read += (await connection.read())?.length ?? 0;
      else await Bun.sleep(1);
    }
    expect(news).toEqual([read]);
  });

  test("that breaks fails reads and writes, after what came before", async () => {
    const guest = await connected(async (c) => {
      c.data(1, 1, bytes("last"));
      error(c, "BROKEN");
    });
    const connection = await guest.connect(80);
    const writing = failure(connection.write(new Uint8Array(2 * MIB)));
    expect(await connection.read()).toEqual(bytes("last"));
    expect((await failure(connection.read())).code).toBe("PORT_BROKEN");
    expect((await writing).code).toBe("PORT_BROKEN");
    expect((await failure(connection.end())).code).toBe("PORT_BROKEN");
  });

  test("that is closed is cancelled, and its readers are told", async () => {
    const kinds: FrameKind[] = [];
    const guest = await connected(async (c) => {
      for (;;) kinds.push((await c.next()).kind);
    });
    const connection = await guest.connect(80);
    const reading = failure(connection.read());
    connection.close();
    connection.close();
    expect((await reading).code).toBe("GUEST_UNREACHABLE");
    while (kinds.length === 0) await Bun.sleep(1);
    expect(kinds).toEqual([FrameKind.cancel]);
  });

  test("that is closed when both directions have ended is left to arrive", async () => {
    const kinds: FrameKind[] = [];
    const guest = await connected(async (c) => {
      ended(c);
      for (;;) kinds.push((await c.next()).kind);
    });
    const connection = await guest.connect(80);
    expect(await connection.read()).toBeNull();
    await connection.end();
    connection.close();
    await Bun.sleep(20);
    expect(kinds).toEqual([FrameKind.data]);
  });

  test.each<[string, Script]>([
    ["bytes before it is made", async (c) => void (await c.next(), c.data(1, 1, bytes("x")))],
    ["bytes on another channel", async (c) => void (await begin(c), c.data(1, 2, bytes("x")))],
    ["bytes after the last", async (c) => void (await begin(c), ended(c), c.data(1, 1, bytes("x")))],
    ["an end of one direction only", async (c) => void (await begin(c), ended(c), c.send(1, FrameKind.end, {}))],
  ])("with %s breaks the protocol", async (_, script) => {
    const guest = await ports(script);
    const using = async (): Promise<void> => {
      const connection = await guest.connect(80);
      await connection.write(new Uint8Array(2 * MIB));
    };
    expect((await failure(using())).code).toBe("GUEST_ERROR");
  });
});

async function begin(c: PeerConnection): Promise<void> {
  await c.next();
  c.send(1, FrameKind.event, { event: "connected" });
}
