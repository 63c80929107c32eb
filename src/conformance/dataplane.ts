// The conformance suite of dataplanes: what every dataplane can do, which is sandboxes without an interface.
import type { AttachRequest, Dataplane } from "../contracts/dataplane.ts";
import { check, equal } from "./assert.ts";
import type { ConformanceCase } from "./case.ts";
import { ConformanceJournal } from "./journal.ts";
import type { Scratch } from "./scratch.ts";

export interface DataplaneContext {
  readonly dataplane: Dataplane;
  readonly scratch: Scratch;
}

function withoutInterface(scratch: Scratch): AttachRequest {
  const shortName = `cd${scratch.unique().toString(36).padStart(10, "0")}`;
  return { sandboxId: crypto.randomUUID(), shortName, mode: "none", policy: {} };
}

export const dataplaneCases: readonly ConformanceCase<DataplaneContext>[] = [
  {
    name: "attach: a sandbox without an interface is attached and released",
    async run({ dataplane, scratch }) {
      const journal = new ConformanceJournal(dataplane.releases);
      const request = withoutInterface(scratch);
      await dataplane.attach(request, journal);
      await dataplane.setPolicy(request.sandboxId, {});
      const stats = await dataplane.stats(request.sandboxId);
      equal(JSON.parse(JSON.stringify(stats)) as typeof stats, stats, "stats as JSON");
      await journal.releaseAll();
      await journal.releaseAgain();
    },
  },
  {
    name: "attach: an interface is made with its journal rows, or refused",
    async run({ dataplane, scratch }) {
      for (const mode of ["user", "tap", "macvtap"] as const) {
        const journal = new ConformanceJournal(dataplane.releases);
        const attached = await dataplane.attach({ ...withoutInterface(scratch), mode }, journal).then(
          () => true,
          () => false,
        );
        check(!attached || journal.held().length > 0, `mode ${mode} was accepted without holding anything`);
        await journal.releaseAll();
        await journal.releaseAgain();
      }
    },
  },
];
