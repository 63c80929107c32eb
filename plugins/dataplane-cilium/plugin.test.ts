// Beside Cilium: what it needs of the host, and what it says of itself where there is no Cilium.
import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { ConformanceJournal } from "../../src/conformance/journal.ts";
import { hostFacts, noGuest, silentLog } from "../../src/registry/testing.ts";
import { CILIUM_SOCKET } from "../host/ebpf/presence.ts";
import { networkWith, policyWith } from "../host/ebpf/testing/fixtures.ts";
import { dataplaneCilium } from "./plugin.ts";

const hasCilium = existsSync(CILIUM_SOCKET);

function open() {
  return dataplaneCilium.init({
    options: dataplaneCilium.options.parse({}),
    host: hostFacts(),
    report: { usable: true, capabilities: [], missing: [] },
    log: silentLog,
    guest: noGuest,
  });
}

test.skipIf(hasCilium)("without its socket the probe says what to do", async () => {
  const report = await dataplaneCilium.probe(hostFacts(), dataplaneCilium.options.parse({}));
  expect(report.missing).toContainEqual({
    capability: "cilium",
    reason: `${CILIUM_SOCKET} is not there`,
    remedy: expect.stringContaining("sandbox.dataplane.mode"),
  });
});

test.skipIf(hasCilium)("nothing is attached without it; a sandbox without an interface needs none", async () => {
  const dataplane = await open();
  const journal = new ConformanceJournal(dataplane.releases);
  const request = { sandboxId: "one", shortName: "aaaaaaaaaaaa", network: networkWith(), policy: policyWith() };
  await expect(dataplane.attach(request, journal)).rejects.toMatchObject({ code: "CAPABILITY_MISSING" });
  await dataplane.attach({ ...request, network: null }, journal);
  expect(journal.held()).toEqual([]);
});

test.skipIf(hasCilium)("its health says so, and its rows are its own", async () => {
  const dataplane = await open();
  const health = await dataplane.health();
  expect(health.notes).toContain(`${CILIUM_SOCKET} is not there`);
  expect(Object.keys(dataplane.releases)).toEqual(["cilium-attachment"]);
});
