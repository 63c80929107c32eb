// What a guest that comes out of a snapshot does not know: what time it is, and that it was here before. Its wall clock is
// set, and its random numbers are begun anew, or those from after the snapshot would come a second time.
import type { GuestChannel } from "../../contracts/channel.ts";
import type { Context } from "../context.ts";
import { setClock } from "../guest-clock.ts";

/**
 * Tells the guest, before anybody else talks to it. Neither is worth the sandbox: a guest that refuses, or cannot, goes
 * on as it is, and the log says so.
 */
export async function bringToPresent(context: Context, sandboxId: string, channel: GuestChannel): Promise<void> {
  const { log } = context.dependencies;
  const warn = (what: string) => (error: unknown) =>
    log.warn({ sandbox: sandboxId, error: String(error) }, `${what} of a guest out of a snapshot`);
  const timed = setClock(context, sandboxId, channel);
  if (channel.features.has("identity")) {
    await channel
      .resetIdentity({ regenerateMachineId: false, reseedEntropy: true })
      .then(({ failures }) => {
        if (failures.length > 0) warn("random numbers")(failures.join("; "));
      })
      .catch(warn("random numbers"));
  }
  await timed;
}
