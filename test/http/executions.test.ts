// Executions over HTTP on the real core, with a guest in memory: what a client sees when it is slow, when it leaves, and
// when the agent is another one in the middle.
import { afterEach, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { Execution } from "../../sdk/typescript/execution.ts";
import { Transport } from "../../sdk/typescript/transport.ts";
import type { HttpServer } from "../../src/http/listen.ts";
import { Harness } from "../../src/http/testing/harness.ts";
import { ExecutionWorld, SANDBOX, until } from "../../src/sandbox/testing/execution-world.ts";

const PATH = `/v1/sandboxes/${SANDBOX}/executions`;
const MIB = 1024 * 1024;

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** An agent on the world's core; listens on `url` again when that is given. */
async function listen(at: ExecutionWorld, url = "http://127.0.0.1:0"): Promise<HttpServer> {
  const { operations, executions } = at.core;
  const store = at.world.state.handle({ dead: false });
  const harness = new Harness({ listen: url.replace("http://", ""), core: { operations, executions, store } });
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  return server;
}

async function setUp(): Promise<{ at: ExecutionWorld; server: HttpServer; transport: Transport }> {
  const at = await ExecutionWorld.create();
  cleanups.push(() => at[Symbol.asyncDispose]());
  const server = await listen(at);
  return { at, server, transport: new Transport({ url: server.url, unix: null, token: null, tls: null }) };
}

const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

async function collect(execution: Execution): Promise<{ hash: string; length: number; exitCode: number | undefined }> {
  const hash = createHash("sha256");
  let length = 0;
  for await (const frame of execution.frames()) {
    if (frame.type === "exited") return { hash: hash.digest("hex"), length, exitCode: frame.exit_code };
    expect(frame.offset).toBe(length);
    hash.update(frame.data);
    length += frame.data.length;
  }
  throw new Error("the frames ended without an exit");
}

test("a stream has every byte, also of more than the ring holds, when it began with the command", async () => {
  const { at, transport } = await setUp();
  const execution = await Execution.start(transport, SANDBOX, { command: "x" });
  const output = crypto.getRandomValues(Buffer.alloc(20 * MIB).subarray(0, 65_536));
  const whole = Buffer.concat(Array.from({ length: 320 }, () => output));
  const process = at.guest.get(execution.id);
  expect(process.block).toBe(true);
  const collected = collect(execution);
  await process.write("stdout", whole);
  process.exit(5);
  expect(await collected).toEqual({ hash: sha256(whole), length: whole.length, exitCode: 5 });
});

test("a stream loses and repeats nothing when the agent is another in the middle", async () => {
  const { at, server, transport } = await setUp();
  const execution = await Execution.start(transport, SANDBOX, { command: "x", stdin: true });
  const process = at.guest.get(execution.id);
  const pieces = Array.from({ length: 64 }, () => crypto.getRandomValues(Buffer.alloc(65_536)));
  const collected = collect(execution);
  for (const [index, piece] of pieces.entries()) {
    await process.write("stdout", piece);
    if (index !== 20 && index !== 40) continue;
    await server.stop(0).catch(() => {});
    await cleanups.pop()!();
    await at.restart({ kill: index === 40 });
    await listen(at, server.url);
  }
  await execution.writeStdin(Buffer.from("typed"));
  process.exit(0);
  const whole = Buffer.concat(pieces);
  expect(await collected).toEqual({ hash: sha256(whole), length: whole.length, exitCode: 0 });
  expect(process.input).toBe("typed");
});

test("a slow reader sees a jump where the ring went on, and nothing out of order", async () => {
  const { at, transport } = await setUp();
  await transport.json("POST", PATH, { json: { id: "e", command: "x" } });
  const process = at.guest.get("e");
  await process.write("stdout", new Uint8Array(12 * MIB));
  await until(async () => (await at.view("e")).stdoutLength === 12 * MIB, "the output is kept");
  process.exit(0);
  const response = await transport.request("GET", `${PATH}/e/stream`, { accept: "application/x-ndjson" });
  const frames = (await response.text())
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));
  const outputs = frames.filter(({ type }) => type === "output");
  expect(outputs[0].offset).toBe(4 * MIB);
  const total = outputs.reduce((sum, { data_base64 }) => sum + Buffer.from(data_base64, "base64").length, 0);
  expect(total).toBe(8 * MIB);
  expect(frames.at(-1)).toMatchObject({ type: "exited", exit_code: 0 });
});

test("a starter that leaves is the end of a command that wants it so", async () => {
  const { at, server } = await setUp();
  const abort = new AbortController();
  const response = await fetch(`${server.url}${PATH}`, {
    method: "POST",
    headers: { accept: "application/x-ndjson" },
    body: JSON.stringify({ id: "e", command: "x", on_disconnect: "kill" }),
    signal: abort.signal,
  });
  await response.body!.getReader().read();
  const process = at.guest.get("e");
  expect(process.exited).toBe(false);
  abort.abort();
  await until(() => process.exited, "the process is killed");
  expect(process.signals).toEqual([9]);
});

test("what a sandbox stopped says is its end, for those who follow and those who come later", async () => {
  const { at, transport } = await setUp();
  await transport.json("POST", PATH, { json: { id: "e", command: "x" } });
  await at.guest.get("e").write("stdout", "kept");
  await until(async () => (await at.view("e")).stdoutLength === 4, "the output is kept");
  const read = async () =>
    (await (await transport.request("GET", `${PATH}/e/stream`, { accept: "application/x-ndjson" })).text())
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line));
  const following = read();
  await Bun.sleep(20);
  await transport.json("POST", `/v1/sandboxes/${SANDBOX}/stop`);
  const ends = (frames: any[]) => frames.filter(({ type }) => type === "exited" || type === "error");
  const seen = await following;
  expect(ends(seen)).toHaveLength(1);
  expect(seen.at(-1)).toEqual(ends(seen)[0]);
  const later = await read();
  expect(later.find(({ type }) => type === "output")).toMatchObject({ offset: 0, data_base64: "a2VwdA==" });
  expect(ends(later)).toHaveLength(1);
  const shown = await transport.json<any>("GET", `${PATH}/e`);
  expect(shown).toMatchObject({ status: "exited", exit_code: null });
});
