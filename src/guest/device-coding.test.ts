import { describe, expect, test } from "bun:test";
import vectors from "../../guest-agent/vectors/device.json";
import { DeviceDecoder, encodeForDevice, MARK } from "./device-coding.ts";

type Told = string | "began" | "broke";

/** What a decoder tells about `sent`, in pieces of `size` bytes; content that comes in a row is one. */
function decode(sent: Uint8Array, size = sent.length): Told[] {
  const told: Told[] = [];
  const decoder = new DeviceDecoder({
    content: (bytes) => {
      const text = Buffer.from(bytes).toString("hex");
      if (/^[0-9a-f]*$/.test(told.at(-1) ?? "began") && told.at(-1) !== "began") told.push((told.pop() ?? "") + text);
      else told.push(text);
    },
    began: () => told.push("began"),
    broke: () => told.push("broke"),
  });
  for (let at = 0; at < sent.length; at += size) decoder.push(sent.subarray(at, at + size));
  return told;
}

const bytes = (hex: string): Uint8Array => new Uint8Array(Buffer.from(hex, "hex"));

describe("vectors", () => {
  for (const { name, content_hex: content, sent_hex: sent } of vectors.cases) {
    test(name, () => {
      expect(Buffer.from(encodeForDevice(bytes(content))).toString("hex")).toBe(sent);
      for (let size = 1; size < 8; size++) expect(decode(bytes(`c1${sent}`), size)).toEqual(["began", content]);
    });
  }
});

test("content without such bytes is not copied", () => {
  const content = bytes("00ff20");
  expect(encodeForDevice(content)).toBe(content);
});

test("random content comes back whatever the pieces, and never holds a mark on its way", () => {
  for (let round = 0; round < 50; round++) {
    const content = crypto.getRandomValues(new Uint8Array(1 + ((round * 37) % 500)));
    const sent = encodeForDevice(content);
    expect(sent.includes(MARK)).toBe(false);
    const size = 1 + (round % 13);
    expect(decode(Uint8Array.of(MARK, ...sent), size)).toEqual(["began", Buffer.from(content).toString("hex")]);
  }
});

test("what comes before a mark is dropped, and a mark ends what is under way", () => {
  expect(decode(bytes("4142fec1c143"))).toEqual(["began", "began", "43"]);
  expect(decode(bytes("c141fec142"), 1)).toEqual(["began", "41", "began", "42"]);
});

test("what no sender writes is told once, and nothing more before the next mark", () => {
  expect(decode(bytes("c141fe7742fe7743c144"), 3)).toEqual(["began", "broke", "began", "44"].toSpliced(1, 0, "41"));
});
