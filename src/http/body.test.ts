// Bodies are bounded whatever they declare, JSON is UTF-8, and strings are whole Unicode.
import { describe, expect, test } from "bun:test";
import { checkJsonType, parseJson, readBody } from "./body.ts";
import { BodyBudget } from "./body-budget.ts";

const budget = () => new BodyBudget(1 << 30, 1000);
const encode = (text: string) => new TextEncoder().encode(text);

function chunked(chunks: number, bytesEach: number, seen = { pulled: 0, cancelled: false }): Request {
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      seen.pulled += 1;
      if (seen.pulled > chunks) controller.close();
      else controller.enqueue(new Uint8Array(bytesEach).fill(97));
    },
    cancel() {
      seen.cancelled = true;
    },
  });
  return new Request("http://127.0.0.1/", { method: "POST", body });
}

describe("readBody", () => {
  test("joins the chunks", async () => {
    const { bytes } = await readBody(chunked(3, 1000), 3000, budget(), "me");
    expect(bytes.byteLength).toBe(3000);
    expect(bytes.every((byte) => byte === 97)).toBe(true);
  });

  test("stops a body without a length soon after the limit", async () => {
    const seen = { pulled: 0, cancelled: false };
    const reading = readBody(chunked(1_000_000, 1000, seen), 10_000, budget(), "me");
    await expect(reading).rejects.toMatchObject({ code: "BODY_TOO_LARGE", details: { limit_bytes: 10_000 } });
    expect(seen.pulled).toBeLessThan(20);
    expect(seen.cancelled).toBe(true);
  });

  test("refuses by the declared length before reading", async () => {
    const request = new Request("http://127.0.0.1/", {
      method: "POST",
      headers: { "content-length": "10001" },
      body: "x",
    });
    await expect(readBody(request, 10_000, budget(), "me")).rejects.toMatchObject({ code: "BODY_TOO_LARGE" });
    expect(request.bodyUsed).toBe(false);
  });

  test("gives the share back when reading fails", async () => {
    const small = new BodyBudget(400_000, 10);
    await expect(readBody(chunked(1000, 1000), 200_000, small, "me")).rejects.toMatchObject({ code: "BODY_TOO_LARGE" });
    (await small.reserve(200_000, "me"))();
  });

  test("gives up on a body that comes too slowly, and on one that stalls", async () => {
    const drip = new ReadableStream<Uint8Array>({
      async pull(controller) {
        await Bun.sleep(5);
        controller.enqueue(new Uint8Array(1));
      },
    });
    const stall = new ReadableStream<Uint8Array>({ pull: () => new Promise(() => {}) });
    for (const body of [drip, stall]) {
      const reading = readBody(new Request("http://127.0.0.1/", { method: "POST", body }), 100, budget(), "me", 20);
      await expect(reading).rejects.toMatchObject({ code: "BODY_TOO_SLOW" });
    }
  });

  test("announced bytes buy no time", async () => {
    const body = new ReadableStream<Uint8Array>({ pull: () => new Promise(() => {}) });
    const headers = { "content-length": String(1 << 25) };
    const request = new Request("http://127.0.0.1/", { method: "POST", headers, body });
    const started = performance.now();
    await expect(readBody(request, 1 << 25, budget(), "me", 20)).rejects.toMatchObject({ code: "BODY_TOO_SLOW" });
    expect(performance.now() - started).toBeLessThan(2_000);
  });

  test("a body that is cut off is an error, never a shorter body", async () => {
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        controller.error(new Error("reset"));
      },
    });
    const reading = readBody(new Request("http://127.0.0.1/", { method: "POST", body }), 100, budget(), "me");
    await expect(reading).rejects.toMatchObject({ code: "BAD_REQUEST" });
  });

  test("no body is no bytes", async () => {
    const { bytes } = await readBody(new Request("http://127.0.0.1/"), 10, budget(), "me");
    expect(bytes.byteLength).toBe(0);
  });
});

describe("JSON", () => {
  test.each(["", "{", '{"a":}', "nul", '{"a":1}x', "\u0000", "[".repeat(200_000)])("refuses %#", (text) => {
    expect(() => parseJson(encode(text))).toThrow("not valid JSON");
  });

  test("refuses bytes that are not UTF-8", () => {
    expect(() => parseJson(new Uint8Array([0x22, 0xff, 0x22]))).toThrow("not valid JSON");
  });

  test.each(['{"path":"\\ud800"}', '["\\uDFFF\\ud800"]', '{"\\udc00":1}', '{"a":[{"b":"\\ud83d x"}]}'])(
    "refuses half a surrogate pair: %s",
    (text) => {
      expect(() => parseJson(encode(text))).toThrow("not valid Unicode");
    },
  );

  test("accepts whole pairs and keeps __proto__ a plain key", () => {
    expect(parseJson(encode('["\\ud83d\\ude00"]'))).toEqual(["😀"]);
    const value = parseJson(encode('{"__proto__":{"polluted":true}}')) as Record<string, unknown>;
    expect(({} as Record<string, unknown>).polluted).toBeUndefined();
    expect(Object.keys(value)).toEqual(["__proto__"]);
  });

  test.each([null, "application/json", "application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'])(
    "accepts content type %p",
    (type) => {
      const headers: Record<string, string> = type === null ? {} : { "content-type": type };
      expect(() => checkJsonType(new Request("http://127.0.0.1/", { headers }))).not.toThrow();
    },
  );

  test.each([
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/json; charset=latin1",
    "application/jsonx",
    "",
  ])("refuses content type %p", (type) => {
    expect(() => checkJsonType(new Request("http://127.0.0.1/", { headers: { "content-type": type } }))).toThrow();
  });
});
