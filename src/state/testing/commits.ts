// A process that commits without pause and prints the number of each commit once it is acknowledged. A test kills it
// and compares what it printed with what the file holds. `bun commits.ts STATE_DIR`; also built as a binary by a test.
import { createLogger } from "../../telemetry/log.ts";
import type { Change } from "../change.ts";
import { openStore } from "../store.ts";

/** Commit number `n`: three rows in three tables, which are there together or not at all. */
function changesOf(n: number): Change[] {
  const id = `sandbox-${n}`;
  return [
    { put: "record", row: { id, generation: "g", tenant: null, body: { n } } },
    { put: "resource", row: { owner: `${id}/g`, seq: 1, kind: "cgroup", name: id, data: {}, state: "intent" } },
    { take: "lease", row: { kind: "uid", value: n, owner: `${id}/g`, state: "leased" } },
  ];
}

const WRITERS = 16;
const COMMITS_MAX = Number(process.argv[3] ?? Number.MAX_SAFE_INTEGER);

const store = await openStore({ stateDir: process.argv[2] ?? "", log: createLogger({ level: "error" }) });
let next = 0;

async function write(): Promise<void> {
  while (next < COMMITS_MAX) {
    const n = next++;
    await store.commit(changesOf(n));
    process.stdout.write(`${n}\n`);
  }
}

await Promise.all(Array.from({ length: WRITERS }, write));
await store.close();
