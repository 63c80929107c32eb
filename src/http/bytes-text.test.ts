// Bytes come out as they are or as Base64, never as other bytes.
import { expect, test } from "bun:test";
import { nameListFields, outputFields } from "./bytes-text.ts";

const bytes = (...values: number[]) => new Uint8Array(values);
const encode = (text: string) => new TextEncoder().encode(text);

test("UTF-8 output is text alone, also with a byte order mark and NULs", () => {
  expect(outputFields("stdout", encode("\uFEFFä\0\n"))).toEqual({ stdout: "\uFEFFä\0\n" });
});

test("other output has the exact bytes beside", () => {
  const fields = outputFields("stdout", bytes(0x61, 0xff, 0x0a));
  expect(fields.stdout).toBe("a\uFFFD\n");
  expect(Uint8Array.fromBase64(fields.stdout_base64!)).toEqual(bytes(0x61, 0xff, 0x0a));
});

test("a name that is not UTF-8 is in the Base64 list only", () => {
  const names = [encode("/a"), bytes(0x2f, 0x80), encode("/ü"), bytes(0x2f, 0xc3)];
  expect(nameListFields("added", names)).toEqual({ added: ["/a", "/ü"], added_base64: ["L4A=", "L8M="] });
});

test("random bytes survive", () => {
  for (let round = 0; round < 2000; round += 1) {
    const name = crypto.getRandomValues(new Uint8Array(1 + (round % 9)));
    const { added, added_base64: others } = nameListFields("added", [name]);
    const back = others === undefined ? encode(added[0]!) : Uint8Array.fromBase64(others[0]!);
    expect(back).toEqual(name);
  }
});
