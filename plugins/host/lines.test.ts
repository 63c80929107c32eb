import { expect, test } from "bun:test";
import { Lines } from "./lines.ts";

test("pieces become lines, also where a piece ends within a character", () => {
  const taken: string[] = [];
  const lines = new Lines(10, (line) => taken.push(line));
  const bytes = Buffer.from("one\ntwo é\n\nrest");
  for (const byte of bytes) expect(lines.receive(Uint8Array.of(byte))).toBe(true);
  expect(taken).toEqual(["one", "two é", ""]);
  expect(lines.receive(Buffer.from("\na\nb\n"))).toBe(true);
  expect(taken.slice(3)).toEqual(["rest", "a", "b"]);
});

test("what goes on without an end is told once it is longer than a line", () => {
  const lines = new Lines(10, () => undefined);
  expect(lines.receive(Buffer.from("x".repeat(10)))).toBe(true);
  expect(lines.receive(Buffer.from("x"))).toBe(false);
});
