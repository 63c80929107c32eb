// Replacing policies: what a packet could see between any two changes of the maps, and what failures and crashes leave.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { decodeInterfaceConfig } from "../../../ffi/layout/bpf.ts";
import type { EffectivePolicy } from "../../../src/contracts/network-policy.ts";
import { silentLog } from "../../../src/telemetry/silent-log.ts";
import { wordKey } from "./kernel-map.ts";
import { PolicyTable } from "./policy-table.ts";
import { RULE_MAPS, rulesOf } from "./rules.ts";
import { fakeMaps, networkWith, policyWith } from "./testing/fixtures.ts";

let directory = "";
let changed: () => void = () => undefined;
let maps = fakeMaps();
/** Every grace period that was asked for ends when a test says so. */
let graces: (() => void)[] = [];

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-policy-table-"));
  changed = () => undefined;
  maps = fakeMaps(() => changed());
  graces = [];
});

afterEach(() => rm(directory, { recursive: true }));

function open(): Promise<PolicyTable> {
  const gracePeriod = () => new Promise<void>((resolve) => graces.push(resolve));
  return PolicyTable.open({ maps, numbersPath: join(directory, "next"), gracePeriod, log: silentLog });
}

const place = (ifindex = 7) => ({
  network: networkWith({ hostInterfaceIndex: ifindex }),
  slot: ifindex,
  connectionEpoch: 1,
  connectionBuckets: 8,
  phase: 0,
  mark: 1,
});

const ruleCount = (): number => RULE_MAPS.reduce((sum, map) => sum + maps[map].elements.size, 0);
const allowing = (...allowCidrs: string[]): EffectivePolicy => policyWith({ enforceCidrs: true, allowCidrs });

/** What is in force is whole: every rule that the named policy has is there. */
function expectWhole(...policies: readonly EffectivePolicy[]): void {
  const element = maps.fluxvm_iface.get(wordKey(7));
  if (element === null) return;
  const { policyId } = decodeInterfaceConfig(element);
  const isWhole = policies.some((policy) =>
    rulesOf(policy, policyId).every(({ map, key }) => maps[map].get(key) !== null),
  );
  expect(isWhole).toBe(true);
}

describe("replacing", () => {
  test("at every change of the maps one whole policy is in force", async () => {
    const table = await open();
    const [one, other] = [allowing("10.0.0.0/8", "192.0.2.0/24"), allowing("fd00::/8", "203.0.113.0/24")];
    changed = () => expectWhole(one, other);
    for (let round = 0; round < 20; round++) {
      await table.enforce(round % 2 === 0 ? one : other, place());
      for (const end of graces.splice(0)) end();
      await table.settled();
    }
    expect(ruleCount()).toBe(2);
  });

  test("old rules stay until the grace period is over", async () => {
    const table = await open();
    await table.enforce(allowing("10.0.0.0/8"), place());
    await table.enforce(allowing("192.0.2.0/24"), place());
    expect(ruleCount()).toBe(2);
    graces[0]?.();
    await table.settled();
    expect(ruleCount()).toBe(1);
  });

  test("a policy for which there is no room leaves the old one in force and nothing of its own", async () => {
    const table = await open();
    await table.enforce(allowing("10.0.0.0/8"), place());
    const before = table.inForce(7);
    maps.fluxvm_allow4.failsAfter = 2;
    const tooMuch = allowing("1.0.0.0/8", "2.0.0.0/8", "3.0.0.0/8");
    await expect(table.enforce(tooMuch, place())).rejects.toMatchObject({
      code: "DATAPLANE_FAILED",
      message: expect.stringContaining("no room"),
    });
    expect(table.inForce(7)).toEqual(before);
    expect(ruleCount()).toBe(1);
  });

  test("an element that cannot be exchanged leaves the old policy in force", async () => {
    const table = await open();
    await table.enforce(allowing("10.0.0.0/8"), place());
    maps.fluxvm_iface.failsAfter = 0;
    await expect(table.enforce(allowing("1.0.0.0/8"), place())).rejects.toMatchObject({ code: "DATAPLANE_FAILED" });
    expect(ruleCount()).toBe(1);
    expectWhole(allowing("10.0.0.0/8"));
  });

  test("what was not compiled by ours is refused before anything is written", async () => {
    const table = await open();
    await expect(table.enforce(allowing("nonsense"), place())).rejects.toMatchObject({ code: "DATAPLANE_FAILED" });
    expect(ruleCount()).toBe(0);
  });

  test("the same policy again is a new number, so that connections are judged again", async () => {
    const table = await open();
    await table.enforce(allowing("10.0.0.0/8"), place());
    const before = table.inForce(7)?.policyId;
    await table.enforce(allowing("10.0.0.0/8"), place());
    expect(table.inForce(7)?.policyId).not.toBe(before);
  });

  test("interfaces do not meet", async () => {
    const table = await open();
    await table.enforce(allowing("10.0.0.0/8"), place(7));
    await table.enforce(allowing("10.0.0.0/8"), place(8));
    expect(ruleCount()).toBe(2);
    table.withdraw(7);
    table.withdraw(7);
    for (const end of graces.splice(0)) end();
    await table.settled();
    expect([ruleCount(), table.inForce(7), table.inForce(8)?.ifindex]).toEqual([1, null, 8]);
  });
});

describe("after a crash", () => {
  test("rules that no interface names are removed, and the rest can be replaced as ever", async () => {
    const before = await open();
    await before.enforce(allowing("10.0.0.0/8"), place());
    // Cut off between flip and removal, and in the middle of filling.
    await before.enforce(allowing("192.0.2.0/24", "2001:db8::/32"), place());
    for (const { map, key, value } of rulesOf(allowing("203.0.113.0/24"), 900)) maps[map].set(key, value);
    expect(ruleCount()).toBe(4);

    const after = await open();
    expect(ruleCount()).toBe(2);
    expectWhole(allowing("192.0.2.0/24", "2001:db8::/32"));
    graces = [];
    await after.enforce(policyWith(), place());
    for (const end of graces.splice(0)) end();
    await after.settled();
    expect(ruleCount()).toBe(0);
  });

  test("numbers that were used do not come again", async () => {
    const before = await open();
    for (let round = 0; round < 10; round++) await before.enforce(policyWith(), place());
    const last = before.inForce(7)?.policyId ?? 0;
    before.withdraw(7);
    const after = await open();
    await after.enforce(policyWith(), place());
    expect(after.inForce(7)?.policyId).toBeGreaterThan(last);
  });
});
