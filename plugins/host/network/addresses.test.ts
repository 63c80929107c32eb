import { expect, test } from "bun:test";
import { addressesOf, BLOCKS, RESERVED_BLOCKS } from "./addresses.ts";

test("a block is sixteen addresses, counted from the beginning of the range", () => {
  expect(addressesOf(1)).toEqual({ host: "169.254.0.17", namespace: "169.254.0.18", guest: "169.254.0.19" });
  expect(addressesOf(17)).toEqual({ host: "169.254.1.17", namespace: "169.254.1.18", guest: "169.254.1.19" });
  expect(addressesOf(4095).guest).toBe("169.254.255.243");
});

// Defect n: a sandbox has the address where clouds tell secrets.
test("no sandbox has the addresses of the inside, or those of a cloud", () => {
  for (const block of [0, 2719, -1, 4096, 1.5]) expect(() => addressesOf(block)).toThrow(RangeError);
  const known = Array.from({ length: BLOCKS }, (_, block) => block)
    .filter((block) => !RESERVED_BLOCKS.has(block))
    .map((block) => addressesOf(block));
  const all = known.flatMap(({ host, namespace, guest }) => [host, namespace, guest]);
  expect(new Set(all).size).toBe(3 * (BLOCKS - 2));
  expect(all).not.toContain("169.254.169.254");
  expect(all.filter((address) => /^169\.254\.169\.(24\d|25\d)$/.test(address))).toEqual([]);
});
