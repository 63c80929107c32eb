// Workspaces whose bound does not hold while a command runs: the storage reports one that went over it, and whoever
// writes there is stopped. The workspace stays, so that it can be started again and emptied.
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import type { Overshoot } from "../contracts/storage.ts";
import type { Context } from "./context.ts";
import { stopWith } from "./power.ts";
import type { Sandbox } from "./sandbox.ts";

const MIB = 1024 * 1024;

/** Stops what is over its bound from now on. Returns how to end that; nothing happens with storage that enforces it. */
export function watchOvershoot(context: Context): () => void {
  const { storage } = context.dependencies;
  return storage.watchOvershoot?.((found) => act(context, found)) ?? (() => undefined);
}

function act(context: Context, found: Overshoot): void {
  const { name } = found.volume;
  for (const sandbox of context.catalogue.all()) {
    if (sandbox.dryRun?.volumeName === name) {
      sandbox.dryRun.abort(new AgentError("WORKSPACE_FULL", reasonOf("the copy of the dry-run", found)));
    } else if (sandbox.live?.volume.name === name && exceeds(found, sandbox)) {
      void stopWriter(context, sandbox, found);
    }
  }
}

function reasonOf(what: string, { volume, bytes }: Overshoot): string {
  const holds = bytes === null ? "too many entries" : `${Math.ceil(bytes / MIB)} MiB`;
  return `${what} holds ${holds}; its limit is ${Math.floor(volume.capBytes / MIB)} MiB`;
}

/** After a stop for this reason the sandbox may run again as long as it does not hold more than then. */
function exceeds({ bytes }: Overshoot, { toleratedBytes }: Sandbox): boolean {
  return bytes === null || toleratedBytes === null || bytes > toleratedBytes;
}

async function stopWriter(context: Context, sandbox: Sandbox, found: Overshoot): Promise<void> {
  const { log } = context.dependencies;
  const reason = reasonOf("the workspace", found);
  log.warn(
    { sandbox: sandbox.id, bytes: found.bytes, capBytes: found.volume.capBytes },
    "a workspace is over its limit",
  );
  try {
    await stopWith(context, sandbox, reason);
    // Only now, so that a stop that failed is tried again at the next report; and as it is now, because it was written
    // on between the look and the stop.
    const { bytes } = await context.dependencies.storage.usage(found.volume);
    sandbox.toleratedBytes ??= Math.max(bytes, found.bytes ?? 0);
  } catch (error) {
    const cause = asAgentError(error).message;
    log.error({ sandbox: sandbox.id, error: cause }, "a workspace over its limit is still written");
  }
}
