// Changing what a caller may change of a record: its name and its labels.
import { AgentError } from "../errors/agent-error.ts";
import type { Context } from "./context.ts";
import { checkName, patchLabels } from "./fields.ts";
import type { VmRecord } from "./operations.ts";
import type { Sandbox } from "./sandbox.ts";
import { amend } from "./transition.ts";

interface Patch {
  readonly name?: string;
  readonly labels?: Readonly<Record<string, string | null>>;
}

/** Applies a patch; a null label is removed. The patch is resolved inside the mailbox, so concurrent ones compose. */
export async function update(context: Context, sandbox: Sandbox, patch: Patch): Promise<VmRecord> {
  return await sandbox.actor.run("update", async () => {
    if (context.catalogue.byId(sandbox.id) !== sandbox) throw new AgentError("SANDBOX_NOT_FOUND");
    const name = patch.name === undefined ? sandbox.record.name : checkName(patch.name);
    const labels = patchLabels(sandbox.record.labels, patch.labels ?? {});
    await amend(context, sandbox, { patch: { name, labels } });
    return context.render(sandbox);
  });
}
