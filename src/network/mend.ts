// One attachment that somebody else may have broken: packets of a connected sandbox get to what decides them.
import type { Dataplane } from "../contracts/dataplane.ts";
import type { Logger } from "../contracts/log.ts";
import type { Connection } from "./connected.ts";
import { asDataplaneError } from "./failures.ts";

export interface MendDependencies {
  readonly dataplane: Pick<Dataplane, "mend">;
  readonly log: Pick<Logger, "warn">;
}

/** Nothing happens for one that is not attached. Rejects with `DATAPLANE_FAILED` where it stays broken. */
export async function mend(connection: Connection | undefined, { dataplane, log }: MendDependencies): Promise<void> {
  const { sandbox, policy = null } = connection ?? {};
  if (sandbox === undefined || policy === null) return;
  const { id: sandboxId, shortName, network } = sandbox;
  try {
    const wasBroken = await dataplane.mend({ sandboxId, shortName, network, policy });
    if (wasBroken) log.warn({ sandbox: sandboxId }, "an attachment was not as it was left, and is again");
  } catch (error) {
    throw asDataplaneError(error);
  }
}
