// The conformance suite of dataplanes: what every dataplane can do, which is sandboxes without an interface.
import type { AttachRequest, Dataplane } from "../contracts/dataplane.ts";
import type { EffectivePolicy } from "../contracts/network-policy.ts";
import { equal } from "./assert.ts";
import type { ConformanceCase } from "./case.ts";
import { ConformanceJournal } from "./journal.ts";
import type { Scratch } from "./scratch.ts";

export interface DataplaneContext {
  readonly dataplane: Dataplane;
  readonly scratch: Scratch;
}

/** Nothing passes. */
export const DENIES_ALL: EffectivePolicy = {
  identity: 0x1000_0001,
  defaultAllow: false,
  enforceCidrs: false,
  enforcePorts: false,
  allowCidrs: [],
  denyCidrs: [],
  allowPorts: [],
  bytesPerSecond: null,
  packetsPerSecond: null,
  sampleRate: 0,
  allowIcmp: false,
  audit: false,
  denyUdp: false,
  names: { dns: null, sni: null },
  source: { antiSpoof: false, learn: false, mac: null, ipv4: null, ipv6: null },
  nativeOnly: [],
  fingerprint: "00",
};

function withoutInterface(scratch: Scratch): AttachRequest {
  const shortName = `cd${scratch.unique().toString(36).padStart(10, "0")}`;
  return { sandboxId: crypto.randomUUID(), shortName, network: null, policy: DENIES_ALL };
}

export const dataplaneCases: readonly ConformanceCase<DataplaneContext>[] = [
  {
    name: "attach: a sandbox without an interface is attached and released",
    async run({ dataplane, scratch }) {
      const journal = new ConformanceJournal(dataplane.releases);
      const request = withoutInterface(scratch);
      await dataplane.attach(request, journal);
      await dataplane.setPolicy(request.sandboxId, DENIES_ALL);
      const attachment = await dataplane.attachment(request.sandboxId);
      equal(attachment.attached, false, "attached without an interface");
      await journal.releaseAll();
      await journal.releaseAgain();
    },
  },
  {
    name: "repair: without sandboxes there is nothing to repair",
    async run({ dataplane }) {
      const report = await dataplane.repair([]);
      equal([...report.intact, ...report.repaired, ...report.failed], [], "sandboxes that nobody expected");
    },
  },
  {
    name: "health: it can be told as JSON",
    async run({ dataplane }) {
      const health = await dataplane.health();
      equal(JSON.parse(JSON.stringify(health)) as typeof health, health, "health as JSON");
    },
  },
];
