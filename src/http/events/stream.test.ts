// The stream of events: framings, filters, tenants, loss, and going on where a client was.
import { afterEach, describe, expect, test } from "bun:test";
import { Harness, type TestToken } from "../testing/harness.ts";
import { eventFraming, parseEventId } from "./framing.ts";
import { EventFrames } from "./source.ts";

const NDJSON = "application/x-ndjson";

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** Follows a stream on the application itself; `until` reads on until the text holds. */
async function follow(harness: Harness, query = "", headers: Record<string, string> = {}) {
  const request = new Request(`http://127.0.0.1/v1/events/stream${query}`, { headers });
  const response = await harness.http.app.handle(request);
  const reader = response.body!.getReader();
  cleanups.push(() => reader.cancel());
  let text = "";
  const until = async (holds: (text: string) => boolean): Promise<string> => {
    while (!holds(text)) {
      const { value, done } = await reader.read();
      if (done) break;
      text += new TextDecoder().decode(value);
    }
    return text;
  };
  return { response, until };
}

let clock = 1_700_000_000_000;
function publish(harness: Harness, action: string, sandboxId = "s", tenant: string | null = null) {
  return harness.events.publish({ atUnixMs: clock++, sandboxId, tenant, action, attributes: { n: 1 } });
}

const lines = (text: string) =>
  text
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));
const names = (text: string) => lines(text).flatMap(({ type, event }) => (type === "event" ? [event] : []));

describe("the framing", () => {
  test("is server-sent events under the event's own name by default", async () => {
    const harness = new Harness();
    const { response, until } = await follow(harness);
    expect(response.headers.get("content-type")).toBe("text/event-stream");
    await until((text) => text !== "");
    const { atUnixMs, epoch } = publish(harness, "sandbox.created");
    const text = await until((all) => all.includes("data:"));
    const data = {
      at: new Date(atUnixMs).toISOString(),
      event: "sandbox.created",
      vm: "s",
      tenant: null,
      attributes: { n: 1 },
      sequence: 1,
      epoch,
    };
    expect(text).toBe(`id: ${epoch}:0\n\nid: ${epoch}:1\nevent: sandbox.created\ndata: ${JSON.stringify(data)}\n\n`);
  });

  test("is JSON lines where they are accepted, and says from where on", async () => {
    const harness = new Harness();
    publish(harness, "before");
    const { until } = await follow(harness, "", { accept: NDJSON });
    await until((text) => text !== "");
    publish(harness, "exec.started");
    const [following, event] = lines(await until((text) => text.includes("exec")));
    expect(following).toEqual({ type: "following", epoch: harness.events.epoch, sequence: 1 });
    expect(event).toMatchObject({ type: "event", event: "exec.started", sequence: 2 });
  });

  test("lets no name break out of its line", () => {
    const frame = { type: "event", event: "a\ndata: forged", epoch: "e", sequence: 1 };
    expect(Buffer.concat(eventFraming(null).encode(frame)).toString()).toStartWith(
      "id: e:1\nevent: adata: forged\ndata: {",
    );
  });

  test.each([
    ["e:5", { epoch: "e", sequence: 5 }],
    [null, null],
    ["", null],
    [":5", null],
    ["e", null],
    ["e:-1", null],
    ["e:5:6", null],
  ])("reads the position %p", (text, position) => {
    expect(parseEventId(text)).toEqual(position);
  });
});

describe("the filter", () => {
  test.each([
    ["?vm=a", ["sandbox.created", "exec.started"]],
    ["?event=sandbox.", ["sandbox.created", "sandbox.ready"]],
    ["?vm=b&event=exec", []],
    ["?since=2100-01-01T00:00:00Z", []],
  ])("%s", async (query, expected) => {
    const harness = new Harness();
    const { until } = await follow(harness, query, { accept: NDJSON });
    await until((text) => text !== "");
    publish(harness, "sandbox.created", "a");
    publish(harness, "sandbox.ready", "b");
    publish(harness, "exec.started", "a");
    harness.events.publish({
      atUnixMs: Date.UTC(2200),
      sandboxId: "a",
      tenant: null,
      action: "exec.last",
      attributes: {},
    });
    harness.events.publish({
      atUnixMs: Date.UTC(2200),
      sandboxId: "b",
      tenant: null,
      action: "sandbox.last",
      attributes: {},
    });
    harness.events.publish({
      atUnixMs: Date.UTC(2200),
      sandboxId: "b",
      tenant: null,
      action: "exec.last",
      attributes: {},
    });
    expect(names(await until((text) => text.includes(".last"))).filter((name) => !name.endsWith("last"))).toEqual(
      expected,
    );
  });

  test("shows a tenant its own, and never how much of the others it missed", async () => {
    const tokens: TestToken[] = [{ token: "t-blue", role: "read-only", tenant: "blue" }];
    const harness = new Harness({ auth: { tokens } });
    const { until } = await follow(harness, "", { accept: NDJSON, authorization: "Bearer t-blue" });
    await until((text) => text !== "");
    publish(harness, "sandbox.created", "g", "green");
    publish(harness, "sandbox.created", "n", null);
    publish(harness, "sandbox.ready", "b", "blue");
    expect(names(await until((text) => text.includes("ready")))).toEqual(["sandbox.ready"]);
    for (let n = 0; n < 300; n++) publish(harness, "sandbox.created", "g", "green");
    publish(harness, "sandbox.stopped", "b", "blue");
    const seen = lines(await until((text) => text.includes("stopped"))).slice(2);
    expect(seen).toMatchObject([
      { type: "lagged", missed: null },
      { type: "event", event: "sandbox.stopped" },
    ]);
  });

  test("that is malformed is refused", async () => {
    const harness = new Harness();
    expect((await harness.call("GET", "/v1/events/stream?since=yesterday")).json.code).toBe("BAD_REQUEST");
    expect((await harness.call("GET", "/v1/events/stream?after=x")).json.code).toBe("INVALID_FIELD");
  });
});

describe("a client that was there before", () => {
  test("goes on behind what it has seen", async () => {
    const harness = new Harness();
    for (const name of ["one", "two", "three"]) publish(harness, name);
    const { epoch } = harness.events;
    for (const { query, headers } of [
      { query: `?epoch=${epoch}&after=1`, headers: {} },
      { query: "", headers: { "last-event-id": `${epoch}:1` } },
    ]) {
      const { until } = await follow(harness, query, { accept: NDJSON, ...headers });
      expect(names(await until((text) => text.includes("three")))).toEqual(["two", "three"]);
    }
  });

  test("is told of what was lost, and how much when it follows everything", async () => {
    const harness = new Harness();
    for (let n = 0; n < 300; n++) publish(harness, "many");
    const { until } = await follow(harness, `?epoch=${harness.events.epoch}&after=10`, { accept: NDJSON });
    const [, lagged, first] = lines(await until((text) => text.includes("many")));
    expect(lagged).toEqual({ type: "lagged", epoch: harness.events.epoch, missed: 34 });
    expect(first.sequence).toBe(45);
  });

  test("of another life of the agent begins anew with a mark", async () => {
    const harness = new Harness();
    publish(harness, "one");
    const { until } = await follow(harness, "?epoch=other&after=70", { accept: NDJSON });
    const seen = lines(await until((text) => text.includes("one")));
    expect(seen).toMatchObject([
      { type: "lagged", missed: null },
      { type: "following", sequence: 0 },
      { type: "event", event: "one", sequence: 1 },
    ]);
  });
});

test("a client that leaves is not followed any more", async () => {
  const harness = new Harness();
  const frames = new EventFrames(harness.events, { tenant: null }, null);
  await frames.next();
  const waiting = frames.next();
  frames.close();
  expect(await waiting).toBeNull();
});
