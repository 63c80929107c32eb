// The SSH server with clients of ssh2: who may log in, what a session does, and what no client can do to the agent.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { connect as connectTcp, type Socket } from "node:net";
import type { Client, ClientChannel } from "ssh2";
import { limits } from "../config/limits.ts";
import type { PortConnection } from "../contracts/ports.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { FakeExecution } from "../http/testing/executions.ts";
import { isLoopback } from "./forward.ts";
import { ended, exec, FOREIGN, raw, SANDBOX, SshTestStation, until } from "./testing/station.ts";

const MIB = 1024 * 1024;

let station: SshTestStation;
beforeEach(async () => {
  station = await SshTestStation.start();
});
afterEach(() => station.stop());

/** What a channel says until it closes. */
async function heard(channel: ClientChannel) {
  const said = { out: "", err: "", status: null as number | null, signal: null as string | null };
  channel.on("data", (bytes: Buffer) => void (said.out += bytes.toString()));
  channel.stderr.on("data", (bytes: Buffer) => void (said.err += bytes.toString()));
  channel.on("exit", (status: number | null, signal?: string) =>
    Object.assign(said, { status, signal: signal ?? null }),
  );
  await new Promise((resolve) => channel.once("close", resolve));
  return said;
}

async function started(): Promise<FakeExecution> {
  await until(() => station.executions.all.size > 0, "nothing was started");
  return [...station.executions.all.values()].at(-1)!;
}

const failure = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "no failure",
    (error: Error) => error.message,
  );

describe("a login", () => {
  test("is by a key of the configuration, for a sandbox that the key sees", async () => {
    await station.connect("admin", SANDBOX);
    await station.connect("admin", FOREIGN);
    await station.connect("other", FOREIGN);
    expect(station.denied).toEqual([]);
    expect(
      station.audits
        .filter(({ path }) => path === `/${FOREIGN}/login`)
        .map(({ actor, tenant, status }) => [actor, tenant, status]),
    ).toEqual([
      ["admin", null, 200],
      [expect.stringMatching(/^ssh-/), "other", 200],
    ]);
  });

  test("is refused in the same words and after the same time, whatever is wrong", async () => {
    const attempts = [
      ["stranger", SANDBOX],
      ["admin", "no-such-sandbox"],
      ["other", SANDBOX],
      ["admin", "../../etc"],
    ] as const;
    for (const [key, user] of attempts) {
      const startedAt = performance.now();
      expect(await failure(station.connect(key, user))).toBe("All configured authentication methods failed");
      expect(performance.now() - startedAt).toBeGreaterThan(limits.sshDenyDelayMs);
    }
    expect(station.denied.length).toBe(attempts.length);
    const refused = station.audits.filter(({ status }) => status === 401);
    expect(refused.map(({ actor, path }) => [actor, path])).toEqual([
      ["anonymous", `/${SANDBOX}/login`],
      ["anonymous", "/no-such-sandbox/login"],
      ["anonymous", `/${SANDBOX}/login`],
      // What is no id is not written down.
      ["anonymous", "/-/login"],
    ]);
  });

  test("of a key that may only read opens nothing", async () => {
    const client = await station.connect("reader");
    expect(await failure(exec(client, "true"))).toContain("read-only");
    expect(station.audits.at(-1)).toMatchObject({ status: 403, role: "read-only" });
  });

  test("has a bounded number of connections for each key", async () => {
    const clients: Client[] = [];
    for (let at = 0; at < limits.sshConnectionsPerKeyMax; at++) clients.push(await station.connect());
    const extra = await station.connect();
    await ended(extra);
    clients[0]!.end();
    await ended(clients[0]!);
    await station.connect();
  }, 30_000);
});

describe("a session", () => {
  test("starts what it is told, as an execution that blocks and dies with it", async () => {
    const client = await station.connect();
    const channel = await exec(client, "printf x", { env: { LANG: "C", PATH: "/x", TERM: "t" } });
    const said = heard(channel);
    const execution = await started();
    expect(execution.request).toMatchObject({
      id: expect.stringMatching(/^ssh-[0-9a-f-]{36}$/),
      command: "printf x",
      env: { LANG: "C", TERM: "t" },
      stdin: true,
      overflow: "block",
      onDisconnect: "kill",
    });
    execution.write("stdout", "out");
    execution.write("stderr", "err");
    execution.exit({ exitCode: 4 });
    expect(await said).toEqual({ out: "out", err: "err", status: 4, signal: null });
  });

  test.each([
    [{ signal: 15 }, { status: null, signal: "TERM" }],
    [{ signal: 7 }, { status: 135, signal: null }],
    [
      { timedOut: true, exitCode: null },
      { status: 124, signal: null },
    ],
  ])("tells the end %o", async (end, told) => {
    const said = heard(await exec(await station.connect(), "x"));
    (await started()).exit(end);
    const { status, signal } = await said;
    expect([status ?? null, signal?.replace("SIG", "") ?? null]).toEqual([told.status, told.signal]);
  });

  test("sends input in order, with its end, at the pace of the command", async () => {
    const channel = await exec(await station.connect(), "cat");
    const execution = await started();
    const gate = Promise.withResolvers<void>();
    execution.stdinGate = gate.promise;
    const bytes = crypto.getRandomValues(new Uint8Array(65_536));
    let sent = 0;
    const more = (): void => {
      while (sent < 16 * MIB && channel.write(Buffer.from(bytes))) sent += bytes.length;
      if (sent >= 16 * MIB) channel.end();
    };
    channel.on("drain", more);
    more();
    await Bun.sleep(300);
    // What the client has in its own queue is its affair; the agent has taken no more than a window.
    expect(execution.state.stdin.bytesWritten).toBe(0);
    gate.resolve();
    await until(() => execution.state.stdin.closed, "the input has no end");
    expect(execution.state.stdin.bytesWritten).toBe(execution.stdin.reduce((sum, piece) => sum + piece.length, 0));
    expect(execution.stdin.every((piece) => piece.length <= limits.stdinPieceMaxBytes)).toBe(true);
    execution.exit();
    await heard(channel);
  }, 20_000);

  test("has a terminal that follows the client's, and signals", async () => {
    const client = await station.connect();
    const channel = await new Promise<ClientChannel>((resolve, reject) => {
      client.shell({ term: "xterm-kitty", cols: 100, rows: 30 }, (error, opened) =>
        error === undefined ? resolve(opened) : reject(error),
      );
    });
    const execution = await started();
    expect(execution.request).toMatchObject({ tty: { cols: 100, rows: 30 }, env: { TERM: "xterm-kitty" } });
    channel.setWindow(50, 120, 0, 0);
    channel.signal("INT");
    channel.signal("USR1");
    await until(() => execution.signals.length === 2 && execution.sizes.length === 1);
    expect([execution.signals, execution.sizes]).toEqual([[2, 10], [{ cols: 120, rows: 50 }]]);
    execution.write("stdout", "$ ");
    execution.exit();
    expect((await heard(channel)).out).toBe("$ ");
  });

  test("that is lost hangs up, and leaves when that does not help", async () => {
    const client = await station.connect();
    await exec(client, "sleep 1000");
    const execution = await started();
    await until(() => execution.attached.length === 1);
    client.destroy();
    await until(() => execution.signals.includes(1), "no hang-up");
    expect(execution.attached[0]!.signal.aborted).toBe(false);
    await Bun.sleep(limits.sshHangUpGraceMs);
    await until(() => execution.attached[0]!.signal.aborted, "the reader stays");
  }, 10_000);

  test("that the agent ends by stopping hangs nothing up", async () => {
    const client = await station.connect();
    await exec(client, "sleep 1000");
    const execution = await started();
    await until(() => execution.attached.length === 1);
    const gone = ended(client);
    await station.server.stop();
    await gone;
    await Bun.sleep(50);
    expect(execution.signals).toEqual([]);
  });

  test("says why a command could not be started, or was lost", async () => {
    const client = await station.connect();
    station.executions.gate = Bun.sleep(20).then(() => {
      throw new AgentError("CAPABILITY_MISSING", "no terminals here");
    });
    const refused = await heard(await exec(client, "x", { pty: true }));
    expect([refused.status, refused.err]).toEqual([255, expect.stringContaining("ssh -T")]);
    station.executions.gate = Promise.resolve();
    const said = heard(await exec(client, "y"));
    (await started()).fail(new AgentError("SANDBOX_GONE"));
    expect(await said).toMatchObject({ status: 255, err: "fluxvm: the sandbox has ended\r\n" });
  });

  test("does nothing that reaches back into the client, and nothing twice", async () => {
    const client = await station.connect();
    await expect(exec(client, "x", { x11: true })).rejects.toThrow();
    const { promise, resolve } = Promise.withResolvers<Error | undefined>();
    client.forwardIn("127.0.0.1", 0, (error) => resolve(error));
    expect(await promise).toBeInstanceOf(Error);
    client.subsys("no-such", (error) => expect(error).toBeInstanceOf(Error));
  });
});

describe("output", () => {
  const piece = new Uint8Array(256 * 1024).fill(46);

  test("is not asked for while the client gives no window", async () => {
    const client = await station.connect();
    const channel = await exec(client, "yes");
    channel.pause();
    const execution = await started();
    for (let at = 0; at < 128; at++) execution.write("stdout", piece);
    await Bun.sleep(300);
    const before = execution.framesRead;
    expect(before * piece.length).toBeLessThan(6 * MIB);
    execution.exit();
    let bytes = 0;
    channel.on("data", (data: Buffer) => void (bytes += data.length));
    channel.resume();
    await new Promise((resolve) => channel.once("close", resolve));
    expect(bytes).toBe(128 * piece.length);
  }, 20_000);

  test("of many channels comes whole", async () => {
    const client = await station.connect();
    const lengths = await Promise.all(
      Array.from({ length: 32 }, async (_, at) => {
        const channel = await exec(client, `command ${at}`);
        const all = () => [...station.executions.all.values()];
        await until(() => all().some(({ request }) => request.command === `command ${at}`));
        const execution = all().find(({ request }) => request.command === `command ${at}`)!;
        let bytes = 0;
        channel.on("data", (data: Buffer) => void (bytes += data.length));
        for (let part = 0; part < 16; part++) execution.write("stdout", piece);
        execution.exit();
        await new Promise((resolve) => channel.once("close", resolve));
        return bytes;
      }),
    );
    expect(new Set(lengths)).toEqual(new Set([16 * piece.length]));
  }, 30_000);

  test("is not asked for while the client reads nothing, however large the window that it gave", async () => {
    const client = await station.connect();
    const socket = (client as unknown as { _sock: Socket })._sock;
    raw(client).session(900, 0xffff_ffff, 32_768);
    await Bun.sleep(50);
    raw(client).exec(0, "yes", false);
    const execution = await started();
    socket.pause();
    const before = process.memoryUsage().rss;
    for (let at = 0; at < 512; at++) execution.write("stdout", piece);
    await Bun.sleep(500);
    expect(execution.framesRead * piece.length).toBeLessThan(24 * MIB);
    expect(process.memoryUsage().rss - before).toBeLessThan(96 * MIB);
  }, 20_000);
});

describe("what breaks the protocol ends the connection and nothing else", () => {
  const cases: Record<string, (client: Client) => void> = {
    "more data than the window": (client) => {
      raw(client).session(900, MIB, 32_768);
      setTimeout(() => {
        for (let at = 0; at < 8; at++) raw(client).channelData(0, Buffer.alloc(32_768));
      }, 50);
    },
    "data for a channel that was never opened": (client) => raw(client).channelData(77, Buffer.from("x")),
  };

  test.each(Object.keys(cases))("%s", async (name) => {
    const bystander = await station.connect();
    const client = await station.connect();
    const gone = ended(client);
    cases[name]!(client);
    await gone;
    const said = heard(await exec(bystander, "true"));
    (await started()).exit();
    expect((await said).status).toBe(0);
  });

  test("packets of no bytes are no channel", async () => {
    const client = await station.connect();
    for (const packetMax of [0, 1, limits.sshPacketMinBytes - 1]) raw(client).session(900 + packetMax, MIB, packetMax);
    await Bun.sleep(50);
    expect(station.executions.all.size).toBe(0);
    await exec(client, "still here");
  });

  test("a flood of channels and requests stays within its bounds", async () => {
    const client = await station.connect();
    for (let at = 0; at < 3000; at++) raw(client).session(1000 + at, MIB, 32_768);
    for (let at = 0; at < 3000; at++) raw(client).ping();
    await Bun.sleep(100);
    const before = performance.now();
    const other = await station.connect();
    expect(performance.now() - before).toBeLessThan(3000);
    expect(await failure(exec(client, "one more"))).toContain("as many channels as it may");
    const said = heard(await exec(other, "true"));
    (await started()).exit();
    expect((await said).status).toBe(0);
  }, 20_000);

  test("bytes that are no SSH", async () => {
    const attempts = [
      Buffer.from("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
      crypto.getRandomValues(Buffer.alloc(60_000)),
      Buffer.alloc(1_000_000, "A"),
      Buffer.from("SSH-2.0-x\r\n\xff\xff\xff\xff\xff\xff\xff\xff", "latin1"),
      Buffer.from("SSH-1.0-x\r\n"),
      Buffer.concat([Buffer.from("SSH-2.0-x\r\n"), Buffer.alloc(4096)]),
      Buffer.concat([Buffer.from("SSH-2.0-x\r\n"), crypto.getRandomValues(Buffer.alloc(40_000))]),
    ];
    for (const bytes of attempts) {
      const socket = connectTcp(station.port, "127.0.0.1");
      socket.on("error", () => undefined);
      socket.on("connect", () => void socket.write(bytes));
      socket.resume();
      await new Promise((resolve) => socket.once("close", resolve));
    }
    await station.connect();
  });

  test("those who only hold their place make room for those who log in", async () => {
    const idle: Socket[] = [];
    for (let at = 0; at < 2 * limits.sshUnauthenticatedMax; at++) {
      const socket = connectTcp(station.port, "127.0.0.1");
      socket.on("error", () => undefined);
      socket.resume();
      idle.push(socket);
      await new Promise((resolve) => socket.once("connect", resolve));
    }
    await station.connect();
    await until(() => idle.filter(({ destroyed, readableEnded }) => destroyed || readableEnded).length >= 30);
    for (const socket of idle) socket.destroy();
  }, 10_000);
});

describe("a forwarded port", () => {
  /** A port that sends back what it gets, and says in the end how much it was. */
  function echo(): PortConnection & { written: number; isClosed: boolean } {
    const pieces: Uint8Array[] = [];
    let wake = Promise.withResolvers<void>();
    let hasEnded = false;
    return {
      written: 0,
      isClosed: false,
      async write(data) {
        this.written += data.length;
        pieces.push(data);
        wake.resolve();
      },
      async end() {
        pieces.push(Buffer.from(`|${this.written}`));
        hasEnded = true;
        wake.resolve();
      },
      async read() {
        for (;;) {
          const piece = pieces.shift();
          if (piece !== undefined) return piece;
          if (hasEnded || this.isClosed) return null;
          wake = Promise.withResolvers<void>();
          await wake.promise;
        }
      },
      close() {
        this.isClosed = true;
        wake.resolve();
      },
    };
  }

  const forwardTo = (client: Client, host: string, port: number): Promise<ClientChannel> =>
    new Promise((resolve, reject) => {
      client.forwardOut("127.0.0.1", 1, host, port, (error, channel) =>
        error === undefined ? resolve(channel) : reject(error),
      );
    });

  test("carries bytes both ways, each to its own end", async () => {
    const connection = echo();
    const asked: number[] = [];
    station.connectPort = async (port) => {
      asked.push(port);
      return connection;
    };
    const channel = await forwardTo(await station.connect(), "localhost", 8080);
    channel.end("hello");
    expect(await heard(channel)).toMatchObject({ out: "hello|5" });
    await until(() => connection.isClosed);
    expect(asked).toEqual([8080]);
    expect(station.audits.at(-1)).toMatchObject({ path: `/${SANDBOX}/forward/8080`, status: 200 });
  });

  test("ends with its client", async () => {
    const connection = echo();
    station.connectPort = async () => connection;
    const client = await station.connect();
    await forwardTo(client, "127.0.0.1", 80);
    client.destroy();
    await until(() => connection.isClosed);
  });

  test("leads to the loopback alone", async () => {
    for (const host of ["localhost", "127.0.0.1", "127.255.0.9", "::1"])
      expect([host, isLoopback(host)]).toEqual([host, true]);
    const foreign = [
      "169.254.169.254",
      "0.0.0.0",
      "::",
      "example.com",
      "LOCALHOST.evil",
      "127.1",
      "0177.0.0.1",
      "127.0.0.1 ",
      "",
      "2130706433",
      "::ffff:127.0.0.1",
      "127.0.0.256",
    ];
    for (const host of foreign) expect([host, isLoopback(host)]).toEqual([host, false]);
    const client = await station.connect();
    expect(await failure(forwardTo(client, "169.254.169.254", 80))).toContain("loopback only");
    expect(await failure(forwardTo(client, "localhost", 70_000))).toContain("loopback only");
    expect(await failure(forwardTo(client, "localhost", 81))).not.toContain("loopback only");
    expect(station.audits.filter(({ status }) => status === 403).length).toBe(2);
  });
});
