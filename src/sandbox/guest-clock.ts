// The wall clock of a guest that stood still: while it was frozen, while its memory was written, or as a snapshot of itself.
// It is set before anybody else talks to the guest; what measures durations in there goes on from where it was.
import { limits } from "../config/limits.ts";
import type { GuestChannel } from "../contracts/channel.ts";
import { asAgentError } from "../errors/agent-error.ts";
import { withDeadline } from "../errors/deadline.ts";
import type { Context } from "./context.ts";
import type { Live } from "./sandbox.ts";

/** Tells a guest that runs again. A clock is not worth the sandbox: where it cannot be set, the log says so. */
export async function tellTime(
  context: Context,
  sandboxId: string,
  { instance }: Pick<Live, "instance">,
): Promise<void> {
  const telling = instance.channel().then((channel) => setClock(context, sandboxId, channel));
  await withDeadline(telling, limits.execGraceMs, "setting the clock").catch(warnOf(context, sandboxId));
}

/** The same over a channel that is there. */
export async function setClock(context: Context, sandboxId: string, { clock }: GuestChannel): Promise<void> {
  await clock?.set(context.dependencies.clock.nowUnixMs()).catch(warnOf(context, sandboxId));
}

function warnOf({ dependencies }: Context, sandbox: string): (error: unknown) => void {
  return (error) =>
    dependencies.log.warn({ sandbox, error: asAgentError(error).message }, "a guest's clock is not set");
}
