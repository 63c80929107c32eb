// What an agent that does not run has stored of its sandboxes and pools, for commands that change files they need.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { limits } from "../config/limits.ts";
import type { Config } from "../config/schema.ts";
import { dependantsOf } from "../sandbox/dependants.ts";
import { PoolBook } from "../sandbox/pools/book.ts";
import { fromRow } from "../sandbox/record.ts";
import { StateDatabase } from "../state/database.ts";
import type { Dependant } from "../templates/dependants.ts";
import { takeFileLock } from "./host.ts";

/** Runs `use` while no agent can start, and answers true; false, with nothing done, while one runs. */
export async function withStoredDependants(
  config: Config,
  use: (dependants: readonly Dependant[]) => Promise<void>,
): Promise<boolean> {
  // Without a state directory there is neither an agent nor anything stored.
  if (!existsSync(config.state_dir)) {
    await use([]);
    return true;
  }
  await using lock = await takeFileLock(join(config.state_dir, "agent.lock"));
  if (lock === null) return false;
  await use(readDependants(config.state_dir));
  return true;
}

function readDependants(stateDir: string): readonly Dependant[] {
  if (!existsSync(join(stateDir, "agent.db"))) return [];
  const database = StateDatabase.open(stateDir, limits.ballastBytes);
  try {
    const { records, pools, secrets } = database.load();
    const book = new PoolBook();
    book.restore(pools, secrets);
    return dependantsOf(records.map(fromRow), book.all());
  } finally {
    database.close();
  }
}
