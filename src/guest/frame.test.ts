import { describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import { encodeData, encodeFrame, FrameKind, FrameParser, wide } from "./frame.ts";
import { MsgpackReader } from "./msgpack.ts";
import { ProtocolViolation } from "./violation.ts";

interface Parsed {
  stream: number;
  kind: number;
  message: unknown;
}

function parser() {
  const frames: Parsed[] = [];
  const reader = new MsgpackReader();
  const parse = new FrameParser((stream, kind, payload) => {
    reader.reset(payload);
    frames.push({ stream, kind, message: { ...reader.wholeMap() } });
  });
  return { frames, parse };
}

/** The parsed content of each stream and the other frames, where everything is given back at once and then overwritten. */
function parsedOnLoan(wire: Buffer, size: number) {
  const content = new Map<number, Buffer>();
  const others: Parsed[] = [];
  const reader = new MsgpackReader();
  const kept: Uint8Array[] = [];
  const parse = new FrameParser(
    (stream, kind, payload) => {
      reader.reset(payload);
      others.push({ stream, kind, message: { ...reader.wholeMap() } });
      kept.push(payload);
    },
    ({ stream, message }, loan) => {
      const piece = message.d as Uint8Array;
      content.set(stream, Buffer.concat([content.get(stream) ?? Buffer.alloc(0), piece]));
      loan?.giveBack(piece.length);
    },
  );
  let outstanding = 0;
  for (let at = 0; at < wire.length; at += size) {
    const bytes = new Uint8Array(wire.subarray(at, at + size));
    outstanding += bytes.length;
    parse.push(bytes, { giveBack: (count) => void (outstanding -= count) });
    bytes.fill(0xff);
  }
  return { content, others, outstanding };
}

describe("frames", () => {
  const content = crypto.getRandomValues(new Uint8Array(3000));
  const wire = Buffer.concat([
    encodeFrame(0, FrameKind.hello, { versions: [2], token: "é" }),
    encodeFrame(0xffff_ffff, FrameKind.credit, { n: wide(2 ** 40) }),
    encodeData(7, 1, content, false),
    encodeData(8, 0, new Uint8Array(0), true),
    encodeFrame(9, FrameKind.cancel, {}),
  ]);
  const expected: Parsed[] = [
    { stream: 0, kind: 1, message: { versions: [2], token: "é" } },
    { stream: 0xffff_ffff, kind: 6, message: { n: 2 ** 40 } },
    { stream: 7, kind: 5, message: { c: 1, d: content } },
    { stream: 8, kind: 5, message: { c: 0, eof: true, d: new Uint8Array(0) } },
    { stream: 9, kind: 9, message: {} },
  ];

  test.each([1, 2, 3, 4, 5, 8, 9, 10, 11, 100, 1000, 100_000])("survive being cut every %d bytes", (size) => {
    const { frames, parse } = parser();
    for (let at = 0; at < wire.length; at += size) parse.push(new Uint8Array(wire.subarray(at, at + size)));
    expect(frames).toEqual(expected);
  });

  test.each([1, 2, 9, 10, 15, 16, 17, 18, 30, 100, 1000, 3000, 100_000])(
    "on loan, all are given back but content, and nothing else is kept, when they are cut every %d bytes",
    (size) => {
      const { content: got, others, outstanding } = parsedOnLoan(Buffer.concat([wire, wire]), size);
      // A frame whose head was not in sight at once comes whole, as others do.
      const whole = others.filter(({ stream }) => stream === 7).map(({ message }) => (message as { d: Buffer }).d);
      expect(Buffer.concat([got.get(7) ?? Buffer.alloc(0), ...whole])).toEqual(Buffer.concat([content, content]));
      const control = expected.filter(({ stream }) => stream !== 7);
      expect(others.filter(({ stream }) => stream !== 7)).toEqual([...control, ...control]);
      expect(outstanding).toBe(0);
    },
  );

  test.each([1, 7, 30, 31, 32, 100, 1000, 3100])(
    "hand content on in pieces when they are cut every %d bytes",
    (size) => {
      const offset = 2 ** 33;
      const fields = [
        0x83, 0xa1, 0x63, 2, 0xa1, 0x6f, 0xcf, 0, 0, 0, 2, 0, 0, 0, 0, 0xa1, 0x64, 0xc6, 0, 0, 0x0b, 0xb8,
      ];
      const head = Buffer.from([0, 0, 0, 0, 0, 0, 0, 5, FrameKind.data, ...fields]);
      head.writeUInt32BE(head.length - 4 + content.length);
      const bytes = Buffer.concat([wire, head, content, wire]);
      const whole: number[] = [];
      const received = new Map<number, Uint8Array[]>();
      const announced = new Map<number, number>();
      let next = offset;
      const take = (stream: number, { c, o, d, eof }: Record<string, any>): void => {
        received.set(stream, [...(received.get(stream) ?? []), d]);
        expect([c, eof]).toEqual(stream === 5 ? [2, undefined] : stream === 7 ? [1, undefined] : [0, true]);
        if (stream !== 5) return;
        expect(o).toBe(next);
        next += d.length;
      };
      const reader = new MsgpackReader();
      const parse = new FrameParser(
        (stream, kind, payload) => {
          whole.push(kind);
          reader.reset(payload);
          if (kind === FrameKind.data) take(stream, reader.wholeMap());
        },
        ({ stream, message, announcedBytes }) => {
          announced.set(stream, (announced.get(stream) ?? 0) + announcedBytes);
          take(stream, message);
        },
      );
      for (let at = 0; at < bytes.length; at += size) parse.push(new Uint8Array(bytes.subarray(at, at + size)));
      expect(Buffer.concat(received.get(5) ?? [])).toEqual(Buffer.from(content));
      expect(Buffer.concat(received.get(7) ?? [])).toEqual(Buffer.concat([content, content]));
      expect(whole.filter((kind) => kind !== FrameKind.data)).toEqual([1, 6, 9, 1, 6, 9]);
      for (const [stream, count] of announced) expect([stream, count % content.length]).toEqual([stream, 0]);
    },
  );

  test("the largest DATA is a frame of its own, larger is not made", () => {
    const { frames, parse } = parser();
    parse.push(encodeData(1, 2, new Uint8Array(limits.frameDataMaxBytes), false));
    expect(frames).toHaveLength(1);
    expect(() => encodeFrame(1, FrameKind.open, { command: "x".repeat(limits.frameMaxBytes) })).toThrow(RangeError);
  });

  test("a long frame in small pieces is put together without copying it again and again", () => {
    const { frames, parse } = parser();
    const frame = encodeData(1, 1, new Uint8Array(limits.frameDataMaxBytes), false);
    const startedMs = performance.now();
    for (let at = 0; at < frame.length; at += 16) parse.push(frame.subarray(at, at + 16));
    expect(frames).toHaveLength(1);
    // 65,536 pieces; copying the whole each time would be 34 GB.
    expect(performance.now() - startedMs).toBeLessThan(2000);
  });
});

describe("what is not a frame", () => {
  test.each([
    ["too short", [0, 0, 0, 4, 0, 0, 0, 1, 7]],
    ["length zero", [0, 0, 0, 0, 0, 0, 0, 1, 7]],
    ["too long", [0, 0x20, 0, 1, 0, 0, 0, 1, 7]],
    ["far too long", [255, 255, 255, 255, 0, 0, 0, 1, 7]],
    ["unknown kind 0", [0, 0, 0, 6, 0, 0, 0, 1, 0, 0x80]],
    ["unknown kind 12", [0, 0, 0, 6, 0, 0, 0, 1, 12, 0x80]],
  ])("%s is refused at its header", (_, bytes) => {
    expect(() => parser().parse.push(new Uint8Array(bytes))).toThrow(ProtocolViolation);
    const { parse } = parser();
    expect(() => {
      for (const byte of bytes) parse.push(new Uint8Array([byte]));
    }).toThrow(ProtocolViolation);
  });

  test("random bytes only ever give frames or a violation", () => {
    for (let round = 0; round < 3000; round++) {
      const bytes = crypto.getRandomValues(new Uint8Array(64));
      // Half of the rounds begin with a believable header, so that payloads are reached too.
      if (round % 2 === 0) bytes.set([0, 0, 0, 20, 0, 0, 0, 1, 1 + (round % 11), 0x80 + (round % 4)]);
      try {
        parser().parse.push(bytes);
      } catch (error) {
        expect(error).toBeInstanceOf(ProtocolViolation);
      }
    }
  });
});
