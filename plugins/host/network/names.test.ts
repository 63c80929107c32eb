import { expect, test } from "bun:test";
import type { NetworkWish } from "../../../src/contracts/network.ts";
import { macOf, networkNames } from "./names.ts";

const SHORT = "abcdefghij23";
const wish: NetworkWish = {
  mode: "tap",
  guest: "machine",
  netns: true,
  bridge: null,
  tap: null,
  mac: null,
  queues: 1,
};

test("names of interfaces fit the kernel and differ", () => {
  const { namespace, ...interfaces } = networkNames(SHORT);
  const names = Object.values(interfaces);
  expect(names.filter((name) => name.length > 15)).toEqual([]);
  expect(new Set(names).size).toBe(names.length);
  expect(namespace).toBe(`eph-${SHORT}`);
});

test("a guest has the address that was asked for, the one of the inside, or one of its own", () => {
  expect(macOf({ ...wish, mac: "02:00:00:00:00:01" }, SHORT)).toBe("02:00:00:00:00:01");
  expect(macOf(wish, SHORT)).toBe("02:fc:00:00:00:03");
  const own = macOf({ ...wish, netns: false }, SHORT);
  expect(own).toMatch(/^02:fc(:[0-9a-f]{2}){4}$/);
  expect(macOf({ ...wish, netns: false }, "abcdefghij24")).not.toBe(own);
});
