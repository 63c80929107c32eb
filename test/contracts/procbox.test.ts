// The process-sandbox backend against the backend suite, as whoever runs the tests.
import { join } from "node:path";
import { procbox } from "../../plugins/backend-procbox/plugin.ts";
import { createGuestConnector } from "../../src/guest/connector.ts";
import { hostFacts } from "../../src/registry/testing.ts";
import { describeConformance } from "./conformance.ts";

/** Left there by `./run build`. */
const program = join(import.meta.dir, "../../dist/native/fluxvm-guest-agent");

await describeConformance("backend/procbox", procbox, {
  host: hostFacts("/nonexistent", program),
  guest: createGuestConnector(),
  fixture: {
    // Not the default uids: an agent of this host may hold those.
    options: { enabled: true, uid_base: 1_500_000_000 + process.pid * 200, uid_count: 64 },
    request: { max_memory_mib: 128, max_processes: 64 },
    badRequests: [
      { max_memory_mib: "much" },
      { max_memory_mib: -1 },
      { max_memory_mib: 1_000_000 },
      { max_processes: 0 },
      { timeout_seconds: 0 },
      { timeout_seconds: 1.5 },
      { net_ports: "80" },
      { net_ports: [0] },
    ],
  },
  lacks: ["pause", "snapshots"],
});
