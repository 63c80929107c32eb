import { expect, test } from "bun:test";
import { CONTENT_BYTES_MAX, encodeFrame, type Frame, FrameReader, framesOf, Kind } from "./frames.ts";

const FRAMES: readonly Frame[] = [
  { kind: Kind.ready, job: 0, content: Buffer.from("1.0") },
  { kind: Kind.input, job: 7, content: new Uint8Array(0) },
  { kind: Kind.output, job: 0xffff_fffe, content: Buffer.from("hello") },
];

test("frames come out as they went in, wherever the stream is cut", () => {
  const stream = Buffer.concat(FRAMES.map(encodeFrame));
  for (let cut = 0; cut <= stream.length; cut++) {
    const reader = new FrameReader();
    const got = [...reader.push(stream.subarray(0, cut)), ...reader.push(stream.subarray(cut))];
    expect(got.map(({ kind, job, content }) => [kind, job, Buffer.from(content).toString()])).toEqual(
      FRAMES.map(({ kind, job, content }) => [kind, job, Buffer.from(content).toString()]),
    );
  }
});

test("content of any size goes in frames that a reader takes", () => {
  const content = new Uint8Array(2 * CONTENT_BYTES_MAX + 3).fill(9);
  const reader = new FrameReader();
  const got = [...framesOf(Kind.errors, 3, content)].flatMap((frame) => [...reader.push(frame)]);
  expect(got.map((frame) => frame.content.length)).toEqual([CONTENT_BYTES_MAX, CONTENT_BYTES_MAX, 3]);
  expect([...framesOf(Kind.errors, 3, new Uint8Array(0))]).toEqual([]);
});

test("a length over the bound is refused before its content comes", () => {
  const header = encodeFrame({ kind: Kind.output, job: 1, content: new Uint8Array(0) });
  new DataView(header.buffer).setUint32(5, CONTENT_BYTES_MAX + 1, true);
  expect(() => [...new FrameReader().push(header)]).toThrow("too long");
});
