// Executions over a WebSocket: both directions, refusals, readers that fall behind, and connections that break.
import { afterEach, expect, test } from "bun:test";
import { Harness } from "../../src/http/testing/harness.ts";
import { type ExitedFrame, FluxVm, type OutputFrame } from "./client.ts";

const MIB = 1024 * 1024;
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(listen?: string) {
  const harness = new Harness({ listen, auth: { tokens: [{ token: "t", role: "admin" }] } });
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  const client = new FluxVm({ url: server.url, token: "t" });
  return { harness, server, client };
}

async function begun() {
  const served = await serve();
  const { id } = await served.client.create({ procbox: {} });
  const fake = served.harness.executions.add(id, "e", { command: "x", stdin: true, tty: { cols: 80, rows: 24 } });
  const socket = served.client.sandbox(id).socket("e");
  cleanups.push(() => socket.close());
  return { ...served, id, fake, socket };
}

async function until(holds: () => boolean): Promise<void> {
  const deadline = Date.now() + 5000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(2);
  }
}

/** Reads to the end. */
function reading(frames: AsyncIterable<OutputFrame | ExitedFrame>) {
  const seen: (OutputFrame | ExitedFrame)[] = [];
  const over = (async () => {
    for await (const frame of frames) seen.push(frame);
  })();
  over.catch(() => {});
  const text = () => Buffer.concat(seen.flatMap((it) => (it.type === "output" ? [it.data] : []))).toString();
  return { seen, over, text };
}

test("carries both directions", async () => {
  const { fake, socket } = await begun();
  const early = socket.write(Buffer.from("early "));
  socket.resize(100, 30);
  socket.signal("WINCH");
  const { seen, over, text } = reading(socket.frames());
  await early;
  await socket.write(Buffer.from("late"));
  expect(Buffer.concat(fake.stdin).toString()).toBe("early late");
  await until(() => fake.signals.length > 0 && fake.sizes.length > 0);
  expect([fake.sizes, fake.signals]).toEqual([[{ cols: 100, rows: 30 }], [28]]);
  fake.write("stdout", "shown");
  await until(() => text() === "shown");
  fake.exit({ exitCode: 4 });
  await over;
  expect(seen.at(-1)).toMatchObject({ type: "exited", exit_code: 4 });
  expect(socket.write(Buffer.from("x"))).rejects.toMatchObject({ code: "EXECUTION_EXITED" });
});

test("sends more than the agent takes at once", async () => {
  const { fake, socket } = await begun();
  const { over } = reading(socket.frames());
  const large = crypto.getRandomValues(new Uint8Array(65_536));
  const whole = Buffer.concat(Array.from({ length: 48 }, () => large));
  await Promise.all([socket.write(whole), socket.write(new Uint8Array(0)), socket.write(Buffer.from("end"))]);
  expect(Buffer.concat(fake.stdin).equals(Buffer.concat([whole, Buffer.from("end")]))).toBe(true);
  fake.exit();
  await over;
});

test("says what was refused, and goes on with what is written next", async () => {
  const served = await serve();
  const { id } = await served.client.create({ procbox: {} });
  const fake = served.harness.executions.add(id, "e", { command: "x", stdin: true });
  const socket = served.client.sandbox(id).socket("e");
  const { over } = reading(socket.frames());
  await socket.write(Buffer.from("a"), true);
  const refused = await Promise.allSettled([socket.write(Buffer.from("b")), socket.write(Buffer.from("c"))]);
  expect(refused).toMatchObject([
    { status: "rejected", reason: { code: "STDIN_CLOSED" } },
    { status: "rejected", reason: { code: "STDIN_CLOSED" } },
  ]);
  fake.exit();
  await over;
});

test("is made again when the agent restarts, and sends again what was not taken", async () => {
  const { harness, server, id, fake, socket } = await begun();
  const { over, text, seen } = reading(socket.frames());
  fake.write("stdout", "one ");
  await socket.write(Buffer.from("before "));
  await until(() => text() === "one ");
  fake.stdinGate = new Promise(() => {});
  const during = socket.write(Buffer.from("during"));
  await Bun.sleep(20);
  await server.stop(0);
  const next = new Harness({
    listen: server.url.replace("http://", ""),
    auth: { tokens: [{ token: "t", role: "admin" }] },
  });
  await next.operations.create(
    { actor: "a", role: "admin", tenant: null, token: null } as never,
    { id, procbox: {} } as never,
  );
  const again = next.executions.add(id, "e", fake.request);
  again.write("stdout", "one two");
  again.takeInput({ offset: 0, data: Buffer.from("before "), eof: false });
  const listening = await next.http.listen();
  cleanups.push(() => listening.stop(0));
  await during;
  expect(Buffer.concat(again.stdin).toString()).toBe("before during");
  await until(() => text() === "one two");
  again.exit({ exitCode: 0 });
  await over;
  expect(seen.at(-1)?.type).toBe("exited");
  expect(harness.executions.all.size).toBe(1);
});

test("holds no more than its reader may lag behind, and loses nothing", async () => {
  const { fake, socket } = await begun();
  const frames = socket.frames();
  fake.write("stdout", "first");
  await frames.next();
  const piece = new Uint8Array(MIB).fill(1);
  for (let n = 0; n < 40; n++) fake.write("stdout", piece);
  await Bun.sleep(200);
  const before = fake.framesRead;
  await Bun.sleep(100);
  // It has stopped, long before the end.
  expect([fake.framesRead, fake.framesRead < 35]).toEqual([before, true]);
  let length = 0;
  fake.exit();
  for await (const frame of frames) if (frame.type === "output") length += frame.data.length;
  expect(length).toBe(40 * MIB);
});

test("ends where the sandbox was put back to an earlier state", async () => {
  const { fake, socket } = await begun();
  const { over, text } = reading(socket.frames());
  fake.write("stdout", "undone");
  await until(() => text() === "undone");
  expect(fake.attached[0]?.incarnation).toBe(0);
  fake.revert();
  await expect(over).rejects.toMatchObject({ code: "REVERTED" });
});

test("fails as everything else does", async () => {
  const { client } = await serve();
  const { id } = await client.create({ procbox: {} });
  const socket = client.sandbox(id).socket("nothing");
  const write = socket.write(Buffer.from("x"));
  write.catch(() => {});
  expect(socket.frames().next()).rejects.toMatchObject({ code: "EXECUTION_NOT_FOUND" });
  await expect(write).rejects.toMatchObject({ code: "EXECUTION_NOT_FOUND" });
});
