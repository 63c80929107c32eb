import { describe, expect, test } from "bun:test";
import { unpack } from "msgpackr";
import type { Frame } from "./frame.ts";
import { acceptedFraming, type Framing, framings } from "./framing.ts";

const { msgpack, ndjson, serverSentEvents } = framings;
const data = new Uint8Array([0, 255, 10]);

function whole(framing: Framing, frame: Frame): Buffer {
  return Buffer.concat(framing.encode(frame));
}

/** The maps of a msgpack stream. */
function decode(bytes: Uint8Array): unknown[] {
  const maps: unknown[] = [];
  let rest = Buffer.from(bytes);
  while (rest.length > 0) {
    const length = rest.readUInt32BE(0);
    maps.push(unpack(rest.subarray(4, 4 + length)));
    rest = rest.subarray(4 + length);
  }
  return maps;
}

describe("msgpack", () => {
  test("frames with and without content are maps behind their length", () => {
    const frames: Frame[] = [
      { type: "output", channel: "stdout", offset: 5, data },
      { type: "output", channel: "pty", offset: 0, data: new Uint8Array(70_000).fill(7) },
      { type: "keep_alive" },
      { type: "started", execution: { id: "e", argv: ["a", "b"], exit_code: null } },
    ];
    const decoded = decode(Buffer.concat(frames.flatMap((frame) => msgpack.encode(frame)))) as Record<
      string,
      unknown
    >[];
    const plain: unknown[] = decoded.map(({ data, ...rest }) =>
      data === undefined ? rest : { ...rest, data: new Uint8Array(data as Uint8Array) },
    );
    expect(plain).toEqual(frames);
  });

  test("large content is not copied", () => {
    const content = new Uint8Array(70_000);
    const parts = msgpack.encode({ type: "output", data: content });
    expect(parts).toHaveLength(2);
    expect(parts[1]?.buffer).toBe(content.buffer);
    expect(parts[1]?.length).toBeGreaterThan(content.length / 2);
    expect(Buffer.concat(parts).subarray(-content.length).equals(content)).toBe(true);
  });

  test.each([2 ** 32 - 1, 2 ** 32, 2 ** 53 - 1, -(2 ** 33)])("the integer %d arrives exactly", (offset) => {
    const bytes = whole(msgpack, { type: "output", offset, nested: { offset }, data });
    const [map] = decode(bytes) as [{ offset: number | bigint; nested: { offset: number | bigint } }];
    expect([Number(map.offset), Number(map.nested.offset)]).toEqual([offset, offset]);
    // No float, which other clients would not take for an offset.
    expect(bytes.includes(0xcb)).toBe(false);
  });
});

test("JSON lines carry bytes as Base64", () => {
  const text = whole(ndjson, { type: "output", offset: 1, data }).toString();
  expect(text).toBe('{"type":"output","offset":1,"data_base64":"AP8K"}\n');
});

test("server-sent events are named by their type and stay on one line", () => {
  const text = whole(serverSentEvents, { type: "error", message: "a\nb" }).toString();
  expect(text).toBe('event: error\ndata: {"type":"error","message":"a\\nb"}\n\n');
});

test.each([
  [null, null],
  ["*/*", null],
  ["application/json", null],
  ["application/x-ndjson", ndjson],
  ["text/html, Text/Event-Stream;q=0.5, application/x-ndjson;q=0.4", serverSentEvents],
  ["application/x-ndjson;q=0, application/vnd.fluxvm.stream+msgpack", msgpack],
  ["application/x-ndjson;q=0", null],
  ["application/x-ndjson;q=nonsense", null],
] as const)("Accept %p", (accept, framing) => {
  expect(acceptedFraming(accept)).toBe(framing);
});
