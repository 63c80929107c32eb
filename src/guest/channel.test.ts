import { afterEach, describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { GuestChannel } from "../contracts/channel.ts";
import type { AgentError } from "../errors/agent-error.ts";
import { createGuestConnector } from "./connector.ts";
import { encodeFrame, FrameKind } from "./frame.ts";
import { closeAll, connect, EXEC_END, failure, MIB, PATH, run, TOKEN, welcomed } from "./testing/harness.ts";
import { type PeerConnection, WELCOME } from "./testing/peer.ts";

afterEach(closeAll);

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

test("tells of every connection that ends", async () => {
  let cuts = 0;
  const first = Promise.withResolvers<PeerConnection>();
  const channel = await connect(
    [
      welcomed(async (c) => first.resolve(c)),
      welcomed(async (c) => c.send((await c.next()).stream, FrameKind.end, {})),
    ],
    { onCut: () => cuts++ },
  );
  expect(cuts).toBe(0);
  (await first.promise).cut();
  while (cuts === 0) await Bun.sleep(1);
  await channel.ping();
  expect(cuts).toBe(1);
  channel.close();
  expect(cuts).toBe(2);
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
        c.send(1, FrameKind.end, { ...EXEC_END, exit_code: 3, stdout_len: 900, stderr_len: 3 });
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
          c.send(stream, FrameKind.end, { ...EXEC_END, exit_code: 0, stdout_len: 5 });
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
        c.send(1, FrameKind.end, { ...EXEC_END, exit_code: 0, stdout_len: content.length });
      }),
    ]);
    expect(Buffer.compare((await channel.exec(run("yes"))).stdout, content)).toBe(0);
  });

  test("a timeout and a signal are told apart from an exit code", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        c.send((await c.next()).stream, FrameKind.end, { ...EXEC_END, signal: 9, timed_out: true, oom_killed: true });
      }),
    ]);
    expect(await channel.exec(run("x"))).toMatchObject({ exitCode: null, signal: 9, timedOut: true, oomKilled: true });
  });

  test("arguments that fit no frame are refused, and the channel goes on", async () => {
    const channel = await connect([
      welcomed(async (c) => c.send((await c.next()).stream, FrameKind.end, { ...EXEC_END, exit_code: 0 })),
    ]);
    expect((await failure(channel.exec(run("x".repeat(limits.frameMaxBytes))))).code).toBe("COMMAND_TOO_LARGE");
    expect((await channel.exec(run("true"))).exitCode).toBe(0);
  });
});

describe("a connection that is cut", () => {
  const operations: [string, (channel: GuestChannel) => Promise<unknown>][] = [
    ["exec", (channel) => channel.exec(run("x"))],
    ["ping", (channel) => channel.ping()],
    ["readFile", (channel) => channel.readFile(PATH, 10)],
    ["writeFile", (channel) => channel.writeFile(PATH, new Uint8Array(3 * MIB), 0o644, 10 * MIB)],
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
    const end = encodeFrame(1, FrameKind.end, { ...EXEC_END, exit_code: 0 });
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
          c.send(stream, FrameKind.end, { ...EXEC_END, exit_code: 0 });
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

  test("reseeding brings random numbers of the host, other ones each time", async () => {
    const entropies: unknown[] = [];
    const channel = await connect([
      welcomed(async (c) => {
        for (const id of [1, 2]) {
          entropies.push((await c.next()).message.entropy_base64);
          c.send(id, FrameKind.end, { applied: ["entropy"], failures: [] });
        }
      }),
    ]);
    for (const _ of [1, 2]) await channel.resetIdentity({ regenerateMachineId: false, reseedEntropy: true });
    expect(entropies.map((text) => Buffer.from(String(text), "base64").length)).toEqual([64, 64]);
    expect(entropies[0]).not.toBe(entropies[1]);
  });

  test("the clock is set where the guest has one of its own", async () => {
    const plain = await connect([welcomed(async () => {})]);
    expect(plain.clock).toBeUndefined();
    const channel = await connect([
      async (c) => {
        await c.welcome({ ...WELCOME, features: ["exec", "clock"] });
        expect({ ...(await c.next()).message }).toEqual({ op: "set-clock", unix_ms: 1_796_083_200_123 });
        c.send(1, FrameKind.end, {});
      },
    ]);
    await channel.clock?.set(1_796_083_200_123);
    expect(channel.clock).toBeDefined();
  });

  test("more streams than a connection may have are refused here, and the channel goes on", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        const opens = [];
        for (let n = 0; n < limits.streamsMax; n++) opens.push(await c.next());
        for (const { stream } of opens) c.send(stream, FrameKind.end, { ...EXEC_END, exit_code: 0 });
      }),
    ]);
    const running = Array.from({ length: limits.streamsMax }, () => channel.exec(run("x")));
    expect((await failure(channel.exec(run("one more")))).code).toBe("SANDBOX_BUSY");
    await Promise.all(running);
  });
});
