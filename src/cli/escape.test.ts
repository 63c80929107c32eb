import { expect, test } from "bun:test";
import { printable, printableName } from "./escape.ts";
import { fields, table } from "./table.ts";

const name = (text: string): string => printableName(new TextEncoder().encode(text));

test("plain names are shown as they are", () => {
  for (const plain of ["/work/a.txt", "/with space/ü", "/日本語", "/a'b"]) expect(name(plain)).toBe(plain);
});

test("anything that could mislead is quoted and escaped", () => {
  expect(name("/a\nb")).toBe('"/a\\nb"');
  expect(name("/\x1b[2J")).toBe('"/\\x1b[2J"');
  expect(name("/a\u202eb")).toBe('"/a\\u{202e}b"');
  expect(name("/zero\u200bwidth")).toBe('"/zero\\u{200b}width"');
  expect(name('/quo"te')).toBe('"/quo\\"te"');
  expect(name("/back\\n")).toBe('"/back\\\\n"');
  expect(name("/trailing ")).toBe('"/trailing "');
  expect(name("\x9b31m")).toBe('"\\u{9b}31m"');
});

test("bytes that are not UTF-8 are shown as bytes", () => {
  expect(printableName(new Uint8Array([0x2f, 0xff, 0x61, 0xc3]))).toBe('"/\\xffa\\xc3"');
});

test("two different names never look the same", () => {
  const names = ["/a\nb", "/a\\nb", '"/a\\nb"', "/a\x00b", "/a\\x00b", "/\u202e", "/\\u{202e}"].map(name);
  expect(new Set(names).size).toBe(names.length);
});

test("messages and cells cannot reach the terminal", () => {
  expect(printable("a\x1b]0;title\x07\r\n")).toBe("a\\x1b]0;title\\x07\\r\\n");
  expect(
    table(
      ["A", "B"],
      [
        ["x\ny", "é"],
        ["日本", ""],
      ],
    ),
  ).toBe("A     B\nx\\ny  é\n日本  -\n");
  expect(
    fields([
      ["id", "a\x1bb"],
      ["name", ""],
    ]),
  ).toBe("id:   a\\x1bb\nname: -\n");
});
