import { afterEach, describe, expect, test } from "bun:test";
import type { AgentError } from "../errors/agent-error.ts";
import { FrameKind } from "./frame.ts";
import { closeAll, connect, EXEC_END, failure, MIB, PATH, run, welcomed } from "./testing/harness.ts";
import { type PeerConnection } from "./testing/peer.ts";

afterEach(closeAll);

describe("a peer that breaks the protocol", () => {
  const violations: [string, (c: PeerConnection) => void][] = [
    ["more output than was asked for", (c) => c.data(1, 1, new Uint8Array(101))],
    ["more data than was granted", (c) => (c.data(1, 1, new Uint8Array(400_000)), c.data(1, 1, new Uint8Array(MIB)))],
    ["an unknown data channel", (c) => c.data(1, 3, new Uint8Array(1))],
    ["data on the input channel", (c) => c.data(1, 0, new Uint8Array(1))],
    ["data that is text", (c) => c.send(1, FrameKind.data, { c: 1, d: "x" })],
    ["an end without fields", (c) => c.send(1, FrameKind.end, {})],
    ["an exit code and a signal", (c) => c.send(1, FrameKind.end, { ...EXEC_END, exit_code: 0, signal: 9 })],
    ["neither exit code nor signal", (c) => c.send(1, FrameKind.end, EXEC_END)],
    ["an exit code out of range", (c) => c.send(1, FrameKind.end, { ...EXEC_END, exit_code: 256 })],
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
      (c) => (c.data(1, 1, new Uint8Array(9)), c.send(1, FrameKind.end, { ...EXEC_END, exit_code: 0 })),
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
    const error = await failure(channel.readFile(PATH, 10));
    expect(error.code).toBe(code as AgentError["code"]);
    expect(error.message).toContain("a b ");
    expect(error.message).not.toMatch(/\p{Cc}/u);
    expect(error.message.length).toBeLessThan(1200);
  });

  test.each([
    ["LIMIT", "SANDBOX_BUSY"],
    ["TOO_LARGE", "COMMAND_TOO_LARGE"],
    ["NOT_FOUND", "FILE_NOT_FOUND"],
  ])("%s of a command is %s", async (guestCode, code) => {
    const channel = await connect([
      welcomed(async (c) => c.send((await c.next()).stream, FrameKind.error, { code: guestCode, message: "m" })),
    ]);
    expect((await failure(channel.exec(run("x")))).code).toBe(code as AgentError["code"]);
  });
});
