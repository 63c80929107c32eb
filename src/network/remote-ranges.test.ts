// Ranges of identities that are elsewhere: what is told again takes the place of what was told, and nothing odd is taken.
import { expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import { RemoteRanges } from "./remote-ranges.ts";

const told = (...rows: readonly unknown[]): RemoteRanges =>
  rows.reduce<RemoteRanges>((ranges, row) => ranges.with(row).ranges, RemoteRanges.empty);

test("what is told of an identity replaces what was, and others keep theirs", () => {
  const before = told({ identity: 9, cidrs: ["10.0.0.0/8"] }, { identity: 7, cidrs: ["fd00::1/64", "192.0.2.9/24"] });
  const { ranges, row } = before.with({ identity: 7, cidrs: ["198.51.100.7/32", "198.51.100.7/32"] });
  expect(row).toEqual({ identity: 7, cidrs: ["198.51.100.7/32"] });
  expect(ranges.rows).toEqual([row, { identity: 9, cidrs: ["10.0.0.0/8"] }]);
  expect(before.rows[0]).toEqual({ identity: 7, cidrs: ["192.0.2.0/24", "fd00::/64"] });
  expect(RemoteRanges.parse(JSON.parse(JSON.stringify(ranges.rows)))).toEqual(ranges);
});

test("an identity without ranges is none", () => {
  const ranges = told({ identity: 7, cidrs: ["10.0.0.0/8", "fd00::/8"] });
  expect(ranges.with({ identity: 7, cidrs: [] }).ranges.rows).toEqual([]);
  expect(ranges.without(7)).toEqual({ ranges: RemoteRanges.empty, removed: 2 });
  expect(ranges.without(8)).toEqual({ ranges, removed: 0 });
});

test.each([
  [{ identity: 0, cidrs: ["10.0.0.0/8"] }, "identity"],
  [{ identity: 2 ** 32, cidrs: [] }, "identity"],
  [{ identity: 7, cidrs: ["10.0.0.0"] }, "cidrs[0]"],
  [{ identity: 7, cidrs: ["10.0.0.0/8", "x/8"] }, "cidrs[1]"],
  [{ identity: 7, cidrs: [], name: "x" }, "name"],
])("%j is refused", (value, field) => {
  expect(() => RemoteRanges.empty.with(value)).toThrow(`field ${field}:`);
});

test("there are so many in all, and no more", () => {
  const row = (identity: number) => ({
    identity,
    cidrs: Array.from({ length: limits.policyListMax }, (_, at) => `10.${at >> 8}.${at & 0xff}.0/24`),
  });
  const fitting = Math.floor(limits.remoteRangesMax / limits.policyListMax);
  const full = told(...Array.from({ length: fitting }, (_, at) => row(at + 1)));
  expect(full.count).toBe(fitting * limits.policyListMax);
  expect(() => full.with(row(fitting + 1))).toThrow("field cidrs:");
  // What takes the place of as many is no more.
  expect(full.with(row(1)).ranges.count).toBe(full.count);
});
