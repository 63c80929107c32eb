// The stream of flows: its lines, filters, tenants, going on where a client was, and clients that stall.
import { afterEach, expect, test } from "bun:test";
import { limits } from "../../config/limits.ts";
import { Harness, type TestToken } from "../testing/harness.ts";

const NDJSON = "application/x-ndjson";
const BOX = { id: "s-1", tenant: null };

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** Follows the stream on the application itself. `line` is the next line that is no sign of life. */
async function follow(harness: Harness, query = "", headers: Record<string, string> = { accept: NDJSON }) {
  const request = new Request(`http://127.0.0.1/v1/network/flows/stream${query}`, { headers });
  const response = await harness.http.app.handle(request);
  const reader = response.body!.getReader();
  cleanups.push(() => reader.cancel());
  let text = "";
  const line = async (): Promise<any> => {
    while (!text.includes("\n")) text += new TextDecoder().decode((await reader.read()).value);
    const [first = "", ...rest] = text.split("\n");
    text = rest.join("\n");
    return JSON.parse(first);
  };
  return { response, line };
}

test("a line is what the exporter of the contract writes, and where the stream is", async () => {
  const harness = new Harness();
  harness.flows!.packet(BOX, "10.0.0.1");
  const { response, line } = await follow(harness, "", {});
  expect(response.headers.get("content-type")).toBe(NDJSON);
  const { epoch } = harness.flows!.feed;
  expect(await line()).toEqual({ type: "following", epoch, sequence: 0 });
  harness.flows!.packet(BOX, "10.0.0.1");
  expect(await line()).toEqual({
    type: "fluxvm.network.flow",
    vm_id: "s-1",
    flow: {
      identity: 0,
      family: 4,
      source: "10.0.0.1",
      destination: "198.51.100.1",
      source_port: 40_000,
      destination_port: 443,
      protocol: 6,
      verdict: "allow",
      packets: 2,
      bytes: 120,
      last_seen_ns: 1_000_000_002,
    },
    epoch,
    sequence: 1,
  });
});

test("sandbox and verdict are filters", async () => {
  const harness = new Harness();
  const id = await harness.sandbox();
  const own = { id, tenant: null };
  const all = await follow(harness);
  const dropped = await follow(harness, `?vm_id=${id}&verdict=drop`);
  for (const { line } of [all, dropped]) await line();
  harness.flows!.packet(BOX, "a", "drop");
  harness.flows!.packet(own, "b", "allow");
  harness.flows!.packet(own, "c", "drop");
  expect(await dropped.line()).toMatchObject({ vm_id: id, flow: { source: "c", verdict: "drop" } });
  const sources = [await all.line(), await all.line(), await all.line()].map(({ flow }) => flow.source);
  expect(sources.toSorted()).toEqual(["a", "b", "c"]);
});

test("a tenant sees its own, and no sandbox of another by name", async () => {
  const tokens: TestToken[] = [{ token: "t-blue", role: "read-only", tenant: "blue" }];
  const harness = new Harness({ auth: { tokens } });
  const others = await harness.sandbox("green");
  const { line } = await follow(harness, "", { accept: NDJSON, authorization: "Bearer t-blue" });
  await line();
  harness.flows!.packet({ id: others, tenant: "green" }, "theirs");
  harness.flows!.packet({ id: "own", tenant: "blue" }, "own");
  expect(await line()).toMatchObject({ vm_id: "own" });
  const path = `/v1/network/flows/stream?vm_id=${others}`;
  expect((await harness.call("GET", path, { token: "t-blue" })).json.code).toBe("SANDBOX_NOT_FOUND");
});

test("goes on where a client was, and says when it cannot", async () => {
  const harness = new Harness();
  const first = await follow(harness);
  await first.line();
  harness.flows!.packet(BOX, "a");
  const { epoch, sequence } = await first.line();
  harness.flows!.packet(BOX, "b");
  expect(await first.line()).toMatchObject({ sequence: sequence + 1 });
  const again = await follow(harness, `?epoch=${epoch}&after=${sequence}`);
  expect(await again.line()).toMatchObject({ type: "following", sequence });
  expect(await again.line()).toMatchObject({ flow: { source: "b" } });
  const other = await follow(harness, "?epoch=other&after=1");
  expect(await other.line()).toEqual({ type: "lagged", epoch, missed: null });
  expect(await other.line()).toMatchObject({ type: "following", sequence: 2 });
});

test("a client that stalls loses by a mark, and costs no memory", async () => {
  const harness = new Harness();
  const { line } = await follow(harness);
  await line();
  const feed = harness.flows!.feed;
  const abort = new AbortController();
  cleanups.push(() => abort.abort());
  // Nobody reads the stream while more comes than the ring holds.
  let published = 0;
  while (published < 2 * limits.flowRingMax) {
    for (let at = 0; at < 4000; at++) harness.flows!.packet(BOX, `f${at}`);
    const before = published;
    while (published === before) {
      await Bun.sleep(1);
      published = await feed.join(abort.signal);
    }
  }
  expect(await line()).toMatchObject({ type: "lagged", missed: null });
  expect((await line()).sequence).toBeGreaterThan(limits.flowRingMax / 2);
}, 20_000);

test("without a dataplane that tells flows there is no stream", async () => {
  const harness = new Harness({ hasFlows: false });
  const answer = await harness.call("GET", "/v1/network/flows/stream");
  expect([answer.status, answer.json.code]).toEqual([501, "NOT_SUPPORTED"]);
});
