// `network flows --follow` against the real stream of flows: its lines, what was there before, how often, and an agent that
// is away.
import { afterEach, expect, test } from "bun:test";
import { join } from "node:path";
import { Harness } from "../../http/testing/harness.ts";

const MAIN = join(import.meta.dir, "../../main.ts");
const BOX = { id: "s-1", tenant: null };

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

function started(url: string, ...args: string[]) {
  const child = Bun.spawn([process.execPath, MAIN, "network", "flows", "--follow", ...args], {
    env: { PATH: process.env.PATH ?? "", HOME: "/nonexistent", FLUXVM_URL: url },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  cleanups.push(() => child.kill());
  return { line: linesOf(child.stdout), complaint: linesOf(child.stderr) };
}

function linesOf(stream: ReadableStream<Uint8Array>): () => Promise<string> {
  const reader = stream.getReader();
  let text = "";
  return async () => {
    while (!text.includes("\n")) {
      const { value, done } = await reader.read();
      if (done) throw new Error(`it ended with ${JSON.stringify(text)}`);
      text += new TextDecoder().decode(value);
    }
    const [first = "", ...rest] = text.split("\n");
    text = rest.join("\n");
    return first;
  };
}

/** Until the stream is followed: what comes before is none of its lines. */
async function followed(harness: Harness): Promise<void> {
  while (!harness.audit.some(({ path }) => path.startsWith("/v1/network/flows/stream"))) await Bun.sleep(5);
  await Bun.sleep(50);
}

test("a line a flow for people, and a restart of the agent is a mark", async () => {
  const harness = new Harness();
  const server = await harness.http.listen();
  const { line } = started(server.url, "--verdict", "drop");
  await followed(harness);
  harness.flows!.packet(BOX, "10.0.0.1", "allow");
  harness.flows!.packet(BOX, "10.0.0.2", "drop");
  expect(await line()).toMatch(/^s-1  drop  tcp  10\.0\.0\.2:40000 → \S+:443  1 packets, 60 bytes$/);
  await server.stop(500);
  const next = new Harness({ listen: server.url.replace("http://", "") });
  const again = await next.http.listen();
  cleanups.push(() => again.stop(0));
  expect(await line()).toBe("lagged: flows were lost");
  next.flows!.packet(BOX, "10.0.0.3", "drop");
  expect(await line()).toContain("10.0.0.3:40000");
}, 30_000);

test("exported, each line is what the contract says", async () => {
  const harness = new Harness();
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  const { line } = started(server.url, "--ndjson");
  await followed(harness);
  harness.flows!.packet(BOX, "10.0.0.1");
  const exported = JSON.parse(await line());
  expect(Object.keys(exported)).toEqual(["type", "vm_id", "flow"]);
  expect(exported).toMatchObject({ type: "fluxvm.network.flow", vm_id: "s-1", flow: { packets: 1 } });
}, 30_000);

test("an exporter that begins before its agent waits for it, and says so once", async () => {
  const first = new Harness();
  const { url, stop } = await first.http.listen();
  await stop(0);
  const { line, complaint } = started(url, "--ndjson");
  expect(await complaint()).toContain("waiting for the agent");
  const harness = new Harness({ listen: url.replace("http://", "") });
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  await followed(harness);
  harness.flows!.packet(BOX, "10.0.0.1");
  expect(JSON.parse(await line())).toMatchObject({ vm_id: "s-1", flow: { packets: 1 } });
}, 30_000);

test("with an interval, a flow that advances is told once in it, as it is then", async () => {
  const harness = new Harness();
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  const { line } = started(server.url, "--ndjson", "--interval", "2");
  await followed(harness);
  // Each is a state of its own in the stream.
  for (let turn = 0; turn < 4; turn++) {
    harness.flows!.packet(BOX, "10.0.0.1");
    await Bun.sleep(50);
  }
  harness.flows!.packet(BOX, "10.0.0.2");
  const told = [JSON.parse(await line()), JSON.parse(await line())];
  expect(told.map(({ flow }) => [flow.source, flow.packets])).toEqual([
    ["10.0.0.1", 4],
    ["10.0.0.2", 1],
  ]);
}, 30_000);

test("what does not go together is wrong usage", async () => {
  for (const args of [
    ["--follow", "--once"],
    ["--interval", "5"],
    ["--follow", "--interval", "0"],
  ]) {
    const child = Bun.spawn([process.execPath, MAIN, "network", "flows", ...args], {
      env: { PATH: process.env.PATH ?? "", HOME: "/nonexistent", FLUXVM_URL: "http://127.0.0.1:1" },
      stdin: "ignore",
      stdout: "ignore",
      stderr: "ignore",
    });
    expect([args, await child.exited]).toEqual([args, 2]);
  }
}, 30_000);
