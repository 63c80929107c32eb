// Addresses and ranges between text and bytes.
import { describe, expect, test } from "bun:test";
import { formatAddress, parseAddress, parseCidr, parseHardwareAddress } from "./addresses.ts";

describe("ranges", () => {
  test("IPv4, with the bits behind the prefix cleared", () => {
    expect(parseCidr("10.1.2.3/8")).toEqual({ family: 4, prefixLength: 8, bytes: Uint8Array.of(10, 0, 0, 0) });
    expect(parseCidr("192.168.255.255/23").bytes).toEqual(Uint8Array.of(192, 168, 254, 0));
    expect(parseCidr("0.0.0.0/0")).toEqual({ family: 4, prefixLength: 0, bytes: new Uint8Array(4) });
    expect(parseCidr("1.2.3.4/32").bytes).toEqual(Uint8Array.of(1, 2, 3, 4));
  });

  test("IPv6", () => {
    expect(parseCidr("::/0")).toEqual({ family: 6, prefixLength: 0, bytes: new Uint8Array(16) });
    const { bytes, prefixLength } = parseCidr("fd00:1:2:3::ffff/9");
    expect([prefixLength, bytes[0], bytes[1], bytes[15]]).toEqual([9, 0xfd, 0, 0]);
    expect(parseCidr("2001:db8::1/128").bytes[15]).toBe(1);
  });

  const wrong = ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "010.0.0.0/8", "256.0.0.0/8", "::/129"];
  const odd = [
    "1::2::3/64",
    "1:2:3:4:5:6:7:8:9/64",
    "1:2:3:4:5:6:7::8/64",
    ":1/64",
    "10.0.0.0/8/8",
    "x/8",
    "::1.2.3/96",
  ];
  test.each([...wrong, ...odd])("%p is none", (text) => {
    expect(() => parseCidr(text)).toThrow(RangeError);
  });
});

describe("addresses", () => {
  test.each(["0.0.0.0", "169.254.0.3", "255.255.255.255"])("IPv4 %p and back", (text) => {
    expect(formatAddress(4, parseAddress(text))).toBe(text);
  });

  test.each([
    ["::", "::"],
    ["::1", "::1"],
    ["1::", "1::"],
    ["2001:0DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"],
    ["fe80::1:2:3:4", "fe80::1:2:3:4"],
    ["1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"],
    ["1:0:3:4:5:6:7:8", "1:0:3:4:5:6:7:8"],
    ["::ffff:10.0.0.1", "::ffff:a00:1"],
  ])("IPv6 %p", (text, shown) => {
    expect(formatAddress(6, parseAddress(text))).toBe(shown);
  });

  test("random IPv6 addresses survive the way through text", () => {
    for (let round = 0; round < 2000; round++) {
      const bytes = crypto.getRandomValues(new Uint8Array(16)).map((byte) => (byte < 160 ? 0 : byte));
      expect(parseAddress(formatAddress(6, bytes))).toEqual(bytes);
    }
  });

  test("hardware", () => {
    expect(parseHardwareAddress("02:FC:00:00:00:03")).toEqual(Uint8Array.of(2, 0xfc, 0, 0, 0, 3));
    expect(() => parseHardwareAddress("02:fc:00:00:00")).toThrow(RangeError);
  });
});
