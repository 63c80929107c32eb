import { describe, expect, test } from "bun:test";
import { Packr } from "msgpackr";
import { MsgpackReader } from "./msgpack.ts";
import { ProtocolViolation, Truncated } from "./violation.ts";

const packer = new Packr({ useRecords: false });

function read(bytes: Uint8Array): unknown {
  const reader = new MsgpackReader();
  reader.reset(bytes);
  const value = reader.value();
  expect(reader.remaining).toBe(0);
  return value;
}

const hex = (text: string) => new Uint8Array(Buffer.from(text.replaceAll(" ", ""), "hex"));

describe("values", () => {
  test.each([
    [null],
    [true],
    [false],
    [0],
    [127],
    [128],
    [255],
    [256],
    [65_535],
    [65_536],
    [2 ** 32 - 1],
    [-1],
    [-32],
    [-33],
    [-129],
    [-40_000],
    [-(2 ** 31)],
    [1.5],
    [""],
    ["ü".repeat(20)],
    ["x".repeat(300)],
    ["x".repeat(70_000)],
    [new Uint8Array([1, 2])],
    [new Uint8Array(70_000)],
    [[1, ["a", [null]]]],
    [Array.from({ length: 20 }, (_, n) => n)],
  ])("are read as they were packed: %#", (value) => {
    expect(read(new Uint8Array(packer.pack(value)))).toEqual(value);
  });

  test("integers beyond 32 bits are exact up to 2^53", () => {
    for (const value of [2 ** 32, 2 ** 32 + 1, 2 ** 53 - 1, 2 ** 53]) {
      expect(read(new Uint8Array(packer.pack(BigInt(value))))).toBe(value);
    }
    expect(read(hex("d3 ffffffff00000000"))).toBe(-(2 ** 32));
    expect(read(hex("cf ffffffffffffffff"))).toBe(2 ** 64);
  });

  test("a map has no prototype", () => {
    const map = read(hex("82 a9 5f5f70726f746f5f5f 01 a1 61 02")) as Record<string, unknown>;
    expect(Object.getPrototypeOf(map)).toBeNull();
    expect(Object.keys(map)).toEqual(["__proto__", "a"]);
  });
});

describe("hostile input is refused", () => {
  test.each([
    ["an extension", "d4 72 40"],
    ["a timestamp", "d6 ff 00000000"],
    ["the unused tag", "c1"],
    ["a map with a number as key", "81 01 02"],
    ["a map with an array as key", "81 91 01 02"],
    ["a map with too many entries", "df ffffffff a1 61 01"],
    ["an array with too many items", "dd ffffffff 01"],
    ["deep arrays", "91".repeat(5000) + "c0"],
    ["deep maps", "81 a1 61".repeat(5000) + "c0"],
  ])("%s", (_, text) => {
    expect(() => read(hex(text))).toThrow(ProtocolViolation);
  });

  test.each([["c6 ffffffff 00"], ["db 7fffffff 61"], ["a5 61"], ["cd 01"], ["82 a1 61 01"], ["92 01"], [""]])(
    "a length beyond the input: %s",
    (text) => {
      expect(() => read(hex(text))).toThrow(Truncated);
    },
  );

  test("what is not one map is not a payload", () => {
    const reader = new MsgpackReader();
    for (const text of ["80 80", "90", "c0", "01", "a1 61", "c4 01 00"]) {
      reader.reset(hex(text));
      expect(() => reader.wholeMap()).toThrow(ProtocolViolation);
    }
  });
});
