// The fake backend and the dataplane without interfaces against their suites.
import { backendFake } from "../../plugins/backend-fake/plugin.ts";
import { dataplaneNone } from "../../plugins/dataplane-none/plugin.ts";
import { describeConformance } from "./conformance.ts";

const badRequests = [{ memory_mib: -1 }, { memory_mib: "much" }, { unknown: 1 }, { vcpus: 0 }, { fail_at: "never" }];

await describeConformance("backend/fake", backendFake, {
  fixture: { options: { enabled: true }, badRequests },
  lacks: ["uidIsClean", "endOf", "ports", "snapshots"],
});
await describeConformance("dataplane/none", dataplaneNone);
