// What a caller hears when its sandbox ends under an operation: not that a guest agent fell silent, but that the sandbox
// has ended, and why.
import { AgentError } from "../errors/agent-error.ts";
import type { Instance } from "../contracts/backend.ts";
import type { Context } from "./context.ts";
import type { Live, Sandbox } from "./sandbox.ts";

/** A broken connection is seen before the end of the process behind it. */
const END_NEWS_MS = 750;

/** Runs `work` on the guest of a sandbox; rejects with `SANDBOX_GONE` when the sandbox ends meanwhile. */
export async function tellingEnd<T>(
  context: Context,
  sandbox: Sandbox,
  work: (sandbox: Sandbox) => Promise<T>,
): Promise<T> {
  const { live } = sandbox;
  try {
    return await work(sandbox);
  } catch (error) {
    const silent = error instanceof AgentError && error.code === "GUEST_UNREACHABLE";
    if (!silent || live === null || context.closing) throw error;
    const reason = await endOf(sandbox, live);
    if (reason === null) throw error;
    throw new AgentError("SANDBOX_GONE", `the sandbox ended meanwhile: ${reason}`);
  }
}

/** Why `live` is over, or null when it is not. */
async function endOf(sandbox: Sandbox, live: Live): Promise<string | null> {
  const told = sandbox.live === live ? await newsOfEnd(live.instance) : null;
  if (told === null && sandbox.live === live) return null;
  return told ?? sandbox.record.error ?? "it was stopped";
}

/** Why an instance that fell silent ended; null when it did not, as far as can be told soon. */
export async function newsOfEnd(instance: Instance): Promise<string | null> {
  const { promise: silence, resolve } = Promise.withResolvers<null>();
  const timer = setTimeout(resolve, END_NEWS_MS, null);
  const reason = await Promise.race([instance.ended.then((end) => end.reason), silence]);
  clearTimeout(timer);
  return reason;
}
