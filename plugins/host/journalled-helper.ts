// A helper program of the host as a resource of a sandbox: it is in the journal before it exists, its identity is durable
// before it does anything, and the journal's row is enough to end it.
import type { ProcessIdentity } from "../../src/contracts/backend.ts";
import type { Release, Resource, ResourceScope } from "../../src/contracts/resource.ts";
import { type HelperConfig, startHelper, type WaitingHelper } from "./helper.ts";
import { killAndWait, recordedIdentity } from "./process.ts";

/** What a row's data calls the identity. */
const IDENTITY = "process";

/** Starts the program. Rejects with `LAUNCH_FAILED` when it cannot; it does not run then. */
export async function startJournalled(
  resources: ResourceScope,
  row: { readonly kind: string; readonly name: string },
  guestAgent: string,
  config: HelperConfig,
): Promise<WaitingHelper> {
  const { kind, name } = row;
  let started: WaitingHelper | null = null;
  try {
    const helper = await resources.acquire({ kind, name, data: {} }, async () => {
      started = await startHelper(guestAgent);
      return started;
    });
    await resources.update(kind, name, { [IDENTITY]: { ...helper.identity } });
    await helper.run(config);
    return helper;
  } catch (error) {
    // The row may not have its identity yet, so its release could not find it.
    (started as WaitingHelper | null)?.kill();
    throw error;
  }
}

/** Ends a recorded process; `role` names it where it does not end. */
export function helperRelease(role: string): Release {
  return async (resource) => {
    const identity = helperIdentity(resource);
    if (identity !== null) await killAndWait(identity, role);
  };
}

/** The process of a row, or null where the row is older than the process. */
export function helperIdentity({ data }: Resource): ProcessIdentity | null {
  return recordedIdentity(data[IDENTITY]);
}
