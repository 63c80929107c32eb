import { afterEach, describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { ExecRequest, GuestChannel } from "../contracts/channel.ts";
import type { AgentError } from "../errors/agent-error.ts";
import { createGuestConnector } from "./connector.ts";
import { encodeFrame, FrameKind } from "./frame.ts";
import { FakePeer, WELCOME, type PeerConnection } from "./testing/peer.ts";

const TOKEN = "secret-token-value";
const MIB = 1024 * 1024;

const opened: (() => void)[] = [];

afterEach(() => {
  for (const close of opened.splice(0)) close();
});

function listen(...scripts: ((connection: PeerConnection) => Promise<void>)[]): FakePeer {
  const peer = new FakePeer(...scripts);
  opened.push(() => peer.stop());
  return peer;
}

async function connect(
  scripts: ((connection: PeerConnection) => Promise<void>)[],
  options: { connectTimeoutMs?: number; heartbeat?: { idleMs: number; pongTimeoutMs: number } } = {},
): Promise<GuestChannel> {
  const { path } = listen(...scripts);
  const connector = createGuestConnector(options.heartbeat);
  const channel = await connector.unix({ path, token: TOKEN, connectTimeoutMs: options.connectTimeoutMs ?? 1000 });
  opened.push(() => channel.close());
  return channel;
}

/** A connection that has welcomed the host and then runs `script`. */
const welcomed = (script: (connection: PeerConnection) => Promise<void>) => async (connection: PeerConnection) => {
  await connection.welcome();
  await script(connection);
};

const run = (command: string): ExecRequest => ({ command, timeoutMs: 0, outputMaxBytes: 16 * MIB });
const path = new TextEncoder().encode("/a");
const END = { timed_out: false, oom_killed: false, stdout_len: 0, stderr_len: 0 };

async function failure(promise: Promise<unknown>): Promise<AgentError> {
  return promise.then(
    () => {
      throw new Error("it resolved");
    },
    (error: AgentError) => error,
  );
}

describe("the handshake", () => {
  test("shows the token only to a peer that answered the nonce", async () => {
    const heard = Promise.withResolvers<Record<string, unknown>>();
    const channel = await connect([async (connection) => heard.resolve(await connection.welcome())]);
    expect({ ...(await heard.promise) }).toEqual({ versions: [2], token: TOKEN });
    expect([...channel.features]).toEqual(WELCOME.features);
  });

  const refused: [string, string, (connection: PeerConnection) => Promise<void>][] = [
    [
      "another nonce",
      "GUEST_ERROR",
      async (c) => (await c.line(), c.write(Buffer.from(`FLUXVM/2 ${"0".repeat(32)}\n`))),
    ],
    ["noise", "GUEST_ERROR", async (c) => c.write(Buffer.from("SSH-2.0-OpenSSH\r\n"))],
    ["another version", "PROTOCOL_MISMATCH", async (c) => void (await c.welcome({ ...WELCOME, version: 3 }))],
    ["a welcome without fields", "GUEST_ERROR", async (c) => void (await c.welcome({ version: 2 }))],
    ["another frame", "GUEST_ERROR", async (c) => (await c.welcome(null), c.send(0, FrameKind.pong, { t: 1 }))],
    ["a stream", "GUEST_ERROR", async (c) => (await c.welcome(null), c.send(1, FrameKind.end, {}))],
    ["a frame that is too long", "GUEST_ERROR", async (c) => (await c.welcome(null), c.write(Buffer.alloc(9, 255)))],
    [
      "a refused token",
      "GUEST_ERROR",
      async (c) => (await c.welcome(null), c.send(0, FrameKind.error, { code: "UNAUTHORIZED", message: "no" })),
    ],
    ["silence", "GUEST_UNREACHABLE", async () => {}],
    ["a close", "GUEST_UNREACHABLE", async (c) => c.cut()],
    ["a close before the welcome", "GUEST_UNREACHABLE", async (c) => (await c.welcome(null), c.cut())],
  ];

  test.each(refused)("answered by %s fails with %s", async (_, code, script) => {
    const error = await failure(connect([script], { connectTimeoutMs: 100 }));
    expect(error.code).toBe(code as AgentError["code"]);
    expect(JSON.stringify([error.message, error.details])).not.toContain(TOKEN);
  });

  test("waits for a guest agent that is only starting", async () => {
    const nowhere = { path: `/tmp/fluxvm-${crypto.randomUUID()}.sock`, token: TOKEN, connectTimeoutMs: 50 };
    expect((await failure(createGuestConnector().unix(nowhere))).code).toBe("GUEST_UNREACHABLE");
    const channel = await connect([async (c) => c.cut(), async (c) => c.cut(), async (c) => void (await c.welcome())]);
    expect(channel.features.has("exec")).toBe(true);
  });
});

describe("exec", () => {
  test("sends the request and gathers both outputs", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        const { stream, kind, message } = await c.next();
        expect({ stream, kind }).toEqual({ stream: 1, kind: FrameKind.open });
        expect<object>({ ...message, env: { ...(message.env as object) } }).toEqual({
          op: "exec",
          command: "id",
          env: { A: "1" },
          cwd: "/x",
          timeout_ms: 5000,
          output_max: 100,
          stdin: false,
          kill_group: true,
        });
        c.send(1, FrameKind.event, { event: "started", pid: 7 });
        c.data(1, 1, Buffer.from("out"));
        c.data(1, 2, Buffer.from("err"));
        c.data(1, 1, Buffer.from("put"));
        c.send(1, FrameKind.end, { ...END, exit_code: 3, stdout_len: 900, stderr_len: 3 });
      }),
    ]);
    const result = await channel.exec({
      command: "id",
      env: { A: "1" },
      cwd: "/x",
      timeoutMs: 5000,
      outputMaxBytes: 100,
    });
    expect({
      ...result,
      stdout: Buffer.from(result.stdout).toString(),
      stderr: Buffer.from(result.stderr).toString(),
    }).toEqual({
      exitCode: 3,
      signal: null,
      timedOut: false,
      oomKilled: false,
      stdout: "output",
      stderr: "err",
      stdoutLength: 900,
      stderrLength: 3,
    });
  });

  test("a hundred at once are answered in any order, each with its own output", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        const opens = [];
        for (let n = 0; n < 100; n++) opens.push(await c.next());
        for (const { stream, message } of opens.reverse()) {
          c.data(stream, 1, Buffer.from(String(message.command)));
          c.send(stream, FrameKind.end, { ...END, exit_code: 0, stdout_len: 5 });
        }
      }),
    ]);
    const results = await Promise.all(Array.from({ length: 100 }, (_, n) => channel.exec(run(`c${n}`))));
    expect(results.map((result) => Buffer.from(result.stdout).toString())).toEqual(
      Array.from({ length: 100 }, (_, n) => `c${n}`),
    );
  });

  test("a long output is acknowledged as it comes", async () => {
    const content = new Uint8Array(5 * MIB).fill(9);
    const channel = await connect([
      welcomed(async (c) => {
        await c.next();
        let credit = MIB;
        for (let at = 0; at < content.length; at += 64 * 1024) {
          while (credit < 64 * 1024) credit += Number((await c.next()).message.n);
          c.data(1, 1, content.subarray(at, at + 64 * 1024));
          credit -= 64 * 1024;
        }
        c.send(1, FrameKind.end, { ...END, exit_code: 0, stdout_len: content.length });
      }),
    ]);
    expect(Buffer.compare((await channel.exec(run("yes"))).stdout, content)).toBe(0);
  });

  test("a timeout and a signal are told apart from an exit code", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        c.send((await c.next()).stream, FrameKind.end, { ...END, signal: 9, timed_out: true, oom_killed: true });
      }),
    ]);
    expect(await channel.exec(run("x"))).toMatchObject({ exitCode: null, signal: 9, timedOut: true, oomKilled: true });
  });

  test("arguments that fit no frame are refused, and the channel goes on", async () => {
    const channel = await connect([
      welcomed(async (c) => c.send((await c.next()).stream, FrameKind.end, { ...END, exit_code: 0 })),
    ]);
    expect((await failure(channel.exec(run("x".repeat(limits.frameMaxBytes))))).code).toBe("COMMAND_TOO_LARGE");
    expect((await channel.exec(run("true"))).exitCode).toBe(0);
  });
});

describe("a peer that breaks the protocol", () => {
  const violations: [string, (c: PeerConnection) => void][] = [
    ["more output than was asked for", (c) => c.data(1, 1, new Uint8Array(101))],
    ["more data than was granted", (c) => (c.data(1, 1, new Uint8Array(400_000)), c.data(1, 1, new Uint8Array(MIB)))],
    ["an unknown data channel", (c) => c.data(1, 3, new Uint8Array(1))],
    ["data on the input channel", (c) => c.data(1, 0, new Uint8Array(1))],
    ["data that is text", (c) => c.send(1, FrameKind.data, { c: 1, d: "x" })],
    ["an end without fields", (c) => c.send(1, FrameKind.end, {})],
    ["an exit code and a signal", (c) => c.send(1, FrameKind.end, { ...END, exit_code: 0, signal: 9 })],
    ["neither exit code nor signal", (c) => c.send(1, FrameKind.end, END)],
    ["an exit code out of range", (c) => c.send(1, FrameKind.end, { ...END, exit_code: 256 })],
    ["an error without a code", (c) => c.send(1, FrameKind.error, { message: "x" })],
    ["a stream that was never opened", (c) => c.send(2, FrameKind.end, {})],
    ["a kind of the host's", (c) => c.send(1, FrameKind.open, { op: "exec" })],
    [
      "endless credit",
      (c) => [0, 1].forEach(() => c.send(1, FrameKind.credit, { n: BigInt(Number.MAX_SAFE_INTEGER) })),
    ],
    ["a payload that is no map", (c) => c.write(new Uint8Array([0, 0, 0, 6, 0, 0, 0, 1, 7, 0x90]))],
    ["a frame without a payload", (c) => c.write(new Uint8Array([0, 0, 0, 5, 0, 0, 0, 1, 7]))],
    [
      "fewer bytes written than sent",
      (c) => (c.data(1, 1, new Uint8Array(9)), c.send(1, FrameKind.end, { ...END, exit_code: 0 })),
    ],
  ];

  test.each(violations)("%s: the operation fails and the connection is closed", async (name, violate) => {
    const closed = Promise.withResolvers<void>();
    const channel = await connect([
      welcomed(async (c) => {
        await c.next();
        violate(c);
        await c.closed;
        closed.resolve();
      }),
    ]);
    const outputMaxBytes = name.startsWith("more data") ? 16 * MIB : 100;
    const error = await failure(channel.exec({ command: "x", timeoutMs: 0, outputMaxBytes }));
    expect(error.code).toBe("GUEST_ERROR");
    await closed.promise;
  });

  test("frames of a stream that is over are ignored", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        for (;;) {
          const { stream } = await c.next();
          c.send(stream, FrameKind.end, {});
          c.send(stream, FrameKind.end, {});
          c.data(stream, 1, new Uint8Array(MIB));
          c.data(stream, 1, new Uint8Array(MIB));
        }
      }),
    ]);
    for (let n = 0; n < 3; n++) await channel.ping();
  });
});

describe("errors of the guest", () => {
  test.each([
    ["NOT_FOUND", "FILE_NOT_FOUND"],
    ["SYMLINK", "FILE_IS_SYMLINK"],
    ["DENIED", "FILE_DENIED"],
    ["NOT_REGULAR", "FILE_NOT_REGULAR"],
    ["NOT_DIRECTORY", "NOT_A_DIRECTORY"],
    ["TOO_LARGE", "FILE_TOO_LARGE"],
    ["NO_SPACE", "WORKSPACE_FULL"],
    ["WALK_FAILED", "WALK_FAILED"],
    ["LIMIT", "LISTING_TOO_LARGE"],
    ["GONE", "SANDBOX_GONE"],
    ["UNKNOWN_OP", "NOT_SUPPORTED"],
    ["INTERRUPTED", "GUEST_ERROR"],
    ["SPAWN_FAILED", "GUEST_ERROR"],
    ["WHAT_IS_THIS", "GUEST_ERROR"],
    ["__proto__", "GUEST_ERROR"],
  ])("%s is %s", async (guestCode, code) => {
    const message = `a\nb\u001b[31m ${"x".repeat(5000)}`;
    const channel = await connect([
      welcomed(async (c) => c.send((await c.next()).stream, FrameKind.error, { code: guestCode, message })),
    ]);
    const error = await failure(channel.readFile(path, 10));
    expect(error.code).toBe(code as AgentError["code"]);
    expect(error.message).toContain("a b ");
    expect(error.message).not.toMatch(/\p{Cc}/u);
    expect(error.message.length).toBeLessThan(1200);
  });
});

describe("a connection that is cut", () => {
  const operations: [string, (channel: GuestChannel) => Promise<unknown>][] = [
    ["exec", (channel) => channel.exec(run("x"))],
    ["ping", (channel) => channel.ping()],
    ["readFile", (channel) => channel.readFile(path, 10)],
    ["writeFile", (channel) => channel.writeFile(path, new Uint8Array(3 * MIB), 0o644, 10 * MIB)],
    ["shutdown", (channel) => channel.shutdown(10)],
  ];

  test.each(operations)("in the middle of %s fails it, and the next one reconnects", async (_, operate) => {
    const answering = welcomed(async (c) => {
      for (;;) c.send((await c.next()).stream, FrameKind.end, {});
    });
    const channel = await connect([welcomed(async (c) => (await c.next(), c.cut())), answering]);
    expect((await failure(operate(channel))).code).toBe("GUEST_UNREACHABLE");
    await Promise.all([channel.ping(), channel.ping()]);
  });

  test("fails everything that was in progress", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        for (let n = 0; n < 5; n++) await c.next();
        c.cut();
      }),
    ]);
    const errors = await Promise.all([0, 1, 2, 3, 4].map(() => failure(channel.exec(run("x")))));
    expect(errors.map((error) => error.code)).toEqual(new Array(5).fill("GUEST_UNREACHABLE"));
  });

  test("in the middle of a frame never gives half an answer", async () => {
    const end = encodeFrame(1, FrameKind.end, { ...END, exit_code: 0 });
    for (let cutAt = 1; cutAt < end.length; cutAt += 7) {
      const channel = await connect([
        welcomed(async (c) => {
          await c.next();
          c.write(end.subarray(0, cutAt));
          await Bun.sleep(1);
          c.cut();
        }),
      ]);
      expect((await failure(channel.exec(run("x")))).code).toBe("GUEST_UNREACHABLE");
    }
  });

  test("stays failed while the guest is gone, and is closed for good by close", async () => {
    const channel = await connect([welcomed(async (c) => (await c.next(), c.cut())), async (c) => c.cut()]);
    await failure(channel.ping());
    expect((await failure(channel.ping())).code).toBe("GUEST_UNREACHABLE");
    channel.close();
    expect((await failure(channel.ping())).message).toContain("closed");
  });

  test("close fails what is in progress", async () => {
    const channel = await connect([welcomed(async () => {})]);
    const pending = failure(channel.exec(run("sleep")));
    channel.close();
    expect((await pending).code).toBe("GUEST_UNREACHABLE");
  });
});

describe("the heartbeat", () => {
  const heartbeat = { idleMs: 40, pongTimeoutMs: 40 };

  test("keeps a quiet connection with a long command", async () => {
    const channel = await connect(
      [
        welcomed(async (c) => {
          const { stream } = await c.next();
          for (let pings = 0; pings < 3; pings++) {
            const { kind, message } = await c.next();
            expect(kind).toBe(FrameKind.ping);
            c.send(0, FrameKind.pong, { t: Number(message.t) });
          }
          c.send(stream, FrameKind.end, { ...END, exit_code: 0 });
        }),
      ],
      { heartbeat },
    );
    expect((await channel.exec(run("sleep 1"))).exitCode).toBe(0);
  });

  test("gives up on a guest that shows no sign of life", async () => {
    const channel = await connect([welcomed(async () => {})], { heartbeat });
    const error = await failure(channel.exec(run("sleep 1")));
    expect(error.code).toBe("GUEST_UNREACHABLE");
    expect(error.message).toContain("no sign of life");
  });

  test("answers the guest's own", async () => {
    const answered = Promise.withResolvers<unknown>();
    await connect([
      welcomed(async (c) => {
        c.send(0, FrameKind.ping, { t: BigInt(2 ** 50) });
        answered.resolve((await c.next()).message.t);
      }),
    ]);
    expect(await answered.promise).toBe(2 ** 50);
  });
});

describe("files", () => {
  test("are read whole", async () => {
    const content = crypto.getRandomValues(new Uint8Array(3 * 64 * 1024));
    const channel = await connect([
      welcomed(async (c) => {
        const { message } = await c.next();
        expect({ ...message }).toEqual({ op: "read-file", path, max: MIB });
        c.send(1, FrameKind.event, { event: "file", size: content.length, mode: 0o100_4755 });
        for (let at = 0; at < content.length; at += 65_536) c.data(1, 1, content.subarray(at, at + 65_536));
        c.send(1, FrameKind.end, { size: content.length });
      }),
    ]);
    const file = await channel.readFile(path, MIB);
    expect(file.mode).toBe(0o755);
    expect(Buffer.compare(file.content, content)).toBe(0);
  });

  const lies: [string, (c: PeerConnection) => void][] = [
    ["content before the file", (c) => c.data(1, 1, new Uint8Array(1))],
    ["a size beyond the limit", (c) => c.send(1, FrameKind.event, { event: "file", size: 2 * MIB, mode: 0o644 })],
    ["an end before the file", (c) => c.send(1, FrameKind.end, { size: 0 })],
    [
      "less than it says",
      (c) => {
        c.send(1, FrameKind.event, { event: "file", size: 10, mode: 0o644 });
        c.data(1, 1, new Uint8Array(9));
        c.send(1, FrameKind.end, { size: 10 });
      },
    ],
  ];

  test.each(lies)("are never made of %s", async (_, lie) => {
    const channel = await connect([welcomed(async (c) => (await c.next(), lie(c)))]);
    expect((await failure(channel.readFile(path, MIB))).code).toBe("GUEST_ERROR");
  });

  test("are written under credit, with the end marked", async () => {
    const content = crypto.getRandomValues(new Uint8Array(2 * MIB + 5));
    const stalledAt = Promise.withResolvers<number>();
    const channel = await connect([
      welcomed(async (c) => {
        const { message } = await c.next();
        expect({ ...message }).toEqual({ op: "write-file", path, mode: 0o755, parents: true, max: 10 * MIB });
        const received: Uint8Array[] = [];
        let bytes = 0;
        for (let eof = false; !eof;) {
          const data = await c.next();
          received.push(data.message.d as Uint8Array);
          bytes += (data.message.d as Uint8Array).length;
          eof = data.message.eof === true;
          if (bytes === MIB) {
            await Bun.sleep(30);
            stalledAt.resolve(bytes);
            c.send(1, FrameKind.credit, { n: 100_000 });
          } else if (bytes > MIB) {
            c.send(1, FrameKind.credit, { n: 100_000 });
          }
        }
        expect(Buffer.compare(Buffer.concat(received), content)).toBe(0);
        c.send(1, FrameKind.end, { size: content.length });
      }),
    ]);
    await channel.writeFile(path, content, 0o4755, 10 * MIB);
    expect(await stalledAt.promise).toBe(MIB);
  });

  test("an empty file is one frame", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        await c.next();
        expect({ ...(await c.next()).message }).toEqual({ c: 0, eof: true, d: new Uint8Array(0) });
        c.send(1, FrameKind.end, { size: 0 });
      }),
    ]);
    await channel.writeFile(path, new Uint8Array(0), 0o644, 10);
  });

  test("a refusal stops the sending", async () => {
    const seen = Promise.withResolvers<number>();
    const channel = await connect([
      welcomed(async (c) => {
        await c.next();
        c.send(1, FrameKind.error, { code: "NO_SPACE", message: "full" });
        c.send(1, FrameKind.credit, { n: 10 * MIB });
        let frames = 0;
        void (async () => {
          for (;;) {
            await c.next();
            frames++;
          }
        })();
        await Bun.sleep(30);
        seen.resolve(frames);
      }),
    ]);
    const error = await failure(channel.writeFile(path, new Uint8Array(8 * MIB), 0o644, 10 * MIB));
    expect(error.code).toBe("WORKSPACE_FULL");
    expect(await seen.promise).toBeLessThanOrEqual(4);
  });

  test("an end before everything was sent is not a success", async () => {
    const channel = await connect([
      welcomed(async (c) => (await c.next(), c.send(1, FrameKind.end, { size: 8 * MIB }))),
    ]);
    const error = await failure(channel.writeFile(path, new Uint8Array(8 * MIB), 0o644, 10 * MIB));
    expect(error.code).toBe("GUEST_ERROR");
  });

  test("beyond the limit are not even sent", async () => {
    const channel = await connect([welcomed(async () => {})]);
    expect((await failure(channel.writeFile(path, new Uint8Array(11), 0o644, 10))).code).toBe("FILE_TOO_LARGE");
  });
});

describe("the rest", () => {
  test("identity reset reports what was done", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        expect({ ...(await c.next()).message }).toEqual({
          op: "reset-identity",
          hostname: "h",
          regenerate_machine_id: true,
          reseed_entropy: false,
        });
        c.send(1, FrameKind.end, { applied: ["hostname"], failures: ["machine-id: no"] });
      }),
    ]);
    expect(await channel.resetIdentity({ hostname: "h", regenerateMachineId: true, reseedEntropy: false })).toEqual({
      applied: ["hostname"],
      failures: ["machine-id: no"],
    });
  });

  test("more streams than a connection may have are refused here, and the channel goes on", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        const opens = [];
        for (let n = 0; n < limits.streamsMax; n++) opens.push(await c.next());
        for (const { stream } of opens) c.send(stream, FrameKind.end, { ...END, exit_code: 0 });
      }),
    ]);
    const running = Array.from({ length: limits.streamsMax }, () => channel.exec(run("x")));
    expect((await failure(channel.exec(run("one more")))).code).toBe("SANDBOX_BUSY");
    await Promise.all(running);
  });
});
