// Addresses and ranges against other implementations of the same: the URL parser's for text, sets of addresses for sums.
import { describe, expect, test } from "bun:test";
import { isIP } from "node:net";
import { formatAddress, parseAddress, unmapped } from "./address.ts";
import {
  aggregate,
  type Cidr,
  compare,
  contains,
  formatCidr,
  hostRange,
  parseCidr,
  RangeMap,
  rangeOf,
} from "./cidr.ts";

/** The same numbers each time. */
function numbers(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

const range = (text: string): Cidr => {
  const parsed = parseCidr(text);
  if (parsed === null) throw new Error(text);
  return parsed;
};

describe("the text of an address", () => {
  test.each([
    ["0.0.0.0", "0.0.0.0"],
    ["255.255.255.255", "255.255.255.255"],
    ["::", "::"],
    ["::1", "::1"],
    ["2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"],
    ["1:0:0:2:0:0:0:3", "1:0:0:2::3"],
    ["::ffff:10.0.0.1", "::ffff:a00:1"],
    ["1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"],
    ["0:1:2:3:4:5:6:7", "0:1:2:3:4:5:6:7"],
  ])("%s is %s", (text, canonical) => {
    expect(formatAddress(parseAddress(text)!)).toBe(canonical);
  });

  test.each([
    "",
    "1",
    "1.2.3",
    "1.2.3.4.5",
    "01.2.3.4",
    "1.2.3.256",
    "1.2.3.-1",
    "0x1.2.3.4",
    " 1.2.3.4",
    "1.2.3.4 ",
    ":",
    ":::",
    "1::2::3",
    "1:2:3:4:5:6:7",
    "1:2:3:4:5:6:7:8:9",
    "1:2:3:4:5:6:7::8:9",
    "12345::",
    "g::",
    "fe80::1%eth0",
    "1.2.3.4::",
    "1.2.3.4::1.2.3.4",
    "::1.2.3",
    "::1.2.3.4:5",
    "1:2:3:4:5:6:7:1.2.3.4",
    ":1::2",
    "1::2:",
    "١.2.3.4",
  ])("%j is none", (text) => {
    expect(parseAddress(text)).toBeNull();
  });

  test("is what the URL parser makes of it, for ten thousand of them", () => {
    const below = numbers(1);
    for (let round = 0; round < 10_000; round += 1) {
      const groups = Array.from({ length: 8 }, () => (below(3) === 0 ? below(65_536) : below(3)));
      const long = groups.map((group) => group.toString(16).padStart(1 + below(4), "0")).join(":");
      const parsed = parseAddress(long)!;
      expect(`[${formatAddress(parsed)}]`).toBe(new URL(`http://[${long}]/`).hostname);
      expect(parseAddress(formatAddress(parsed))).toEqual(parsed);
    }
  });

  test("is one where the system's own parser says so, for texts that are nearly addresses", () => {
    const below = numbers(2);
    const letters = "0123456789abcdef:::...%/ ";
    for (let round = 0; round < 20_000; round += 1) {
      const text = Array.from({ length: 1 + below(16) }, () => letters[below(letters.length)]).join("");
      // Zones belong to an interface, so ours has none.
      const isAddress = !text.includes("%") && isIP(text) !== 0;
      expect([text, parseAddress(text) !== null]).toEqual([text, isAddress]);
    }
  });

  test("of IPv4 in the form of IPv6 is that of IPv4", () => {
    expect(unmapped(parseAddress("::ffff:169.254.169.254")!)).toEqual(parseAddress("169.254.169.254")!);
    expect(unmapped(parseAddress("::fffe:1.2.3.4")!).family).toBe(6);
  });
});

describe("a range", () => {
  test.each([
    ["10.1.2.3/8", "10.0.0.0/8"],
    ["10.1.2.3/32", "10.1.2.3/32"],
    ["1.2.3.4/0", "0.0.0.0/0"],
    ["FD00:1::1/8", "fd00::/8"],
    ["::1/0", "::/0"],
    ["2001:db8::1/127", "2001:db8::/127"],
  ])("%s is %s", (text, canonical) => {
    expect(formatCidr(range(text))).toBe(canonical);
  });

  test.each([
    "10.0.0.0",
    "10.0.0.0/",
    "10.0.0.0/33",
    "::/129",
    "10.0.0.0/08",
    "10.0.0.0/-1",
    "/8",
    "10.0.0.0/8/8",
    "a/8",
    "10.0.0.0/1e1",
  ])("%j is none", (text) => expect(parseCidr(text)).toBeNull());

  test("contains what it contains", () => {
    expect(contains(range("10.0.0.0/8"), range("10.255.0.0/16"))).toBe(true);
    expect(contains(range("10.0.0.0/8"), range("11.0.0.0/16"))).toBe(false);
    expect(contains(range("10.0.0.0/16"), range("10.0.0.0/8"))).toBe(false);
    expect(contains(range("0.0.0.0/0"), range("::/0"))).toBe(false);
  });
});

describe("aggregated ranges", () => {
  test("are the shortest list with the same addresses, for random lists", () => {
    const below = numbers(3);
    for (let round = 0; round < 200; round += 1) {
      const family = below(2) === 0 ? 4 : 6;
      const width = family === 4 ? 32 : 128;
      // Everything lies in 256 addresses, so that they can be counted one by one.
      const base = family === 4 ? parseAddress("10.0.7.0")!.value : parseAddress("fd00::ff00")!.value;
      const ranges = Array.from({ length: below(24) }, () =>
        rangeOf({ family, value: base + BigInt(below(256)) }, width - below(9)),
      );
      const inside = (list: readonly Cidr[]) =>
        Array.from({ length: 256 }, (_, at) => {
          const host = hostRange({ family, value: base + BigInt(at) });
          return list.some((candidate) => contains(candidate, host));
        });
      const merged = aggregate(ranges);
      expect(inside(merged)).toEqual(inside(ranges));
      expect(merged.length).toBe(fewest(inside(ranges)));
      expect(merged).toEqual([...merged].sort(compare));
    }
  });

  test("keep the families apart, and join to everything", () => {
    const halves = ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"].map(range);
    expect(aggregate(halves).map(formatCidr)).toEqual(["0.0.0.0/0", "::/0"]);
  });

  test("of many are found in time", () => {
    const below = numbers(4);
    const many = Array.from({ length: 20_000 }, () =>
      rangeOf({ family: 4, value: BigInt(below(2 ** 32)) }, 8 + below(25)),
    );
    const startedMs = performance.now();
    aggregate(many);
    expect(performance.now() - startedMs).toBeLessThan(4000);
  });
});

/** Ranges needed for a set of 256 addresses, counted from the whole down. */
function fewest(isIn: readonly boolean[]): number {
  if (isIn.every(Boolean)) return 1;
  if (!isIn.some(Boolean)) return 0;
  const half = isIn.length / 2;
  return fewest(isIn.slice(0, half)) + fewest(isIn.slice(half));
}

test("a value is found by the longest range that an address is in", () => {
  const map = new RangeMap<string>();
  map.set(range("10.0.0.0/8"), "wide");
  map.set(range("10.1.0.0/16"), "narrow");
  map.set(range("fd00::/8"), "six");
  expect(map.find(parseAddress("10.1.2.3")!)).toBe("narrow");
  expect(map.find(parseAddress("10.2.2.3")!)).toBe("wide");
  expect(map.find(parseAddress("11.0.0.1")!)).toBeUndefined();
  expect(map.find(parseAddress("fd12::1")!)).toBe("six");
});
