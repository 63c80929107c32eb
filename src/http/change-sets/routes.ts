// Routes that say what changed in a sandbox: baseline, changes and dry-run.
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { nameListFields } from "../bytes-text.ts";
import { execReplyFields } from "../commands/reply.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { guestFailures, launchFailures, listingFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { changeFields } from "./reply.ts";
import { baselineBody, baselineReply, changesBody, changesReply, dryRunBody, dryRunReply } from "./schema.ts";

const ERRORS = [...guestFailures, ...listingFailures];

export function changeSetRoutes({ operations }: HttpDependencies): readonly Route[] {
  return [
    defineRoute({
      method: "POST",
      path: "/v1/sandboxes/:id/baseline",
      auth: "admin",
      guard: "sandbox",
      tag: "change-sets",
      summary: "Records what the paths hold now.",
      body: baselineBody,
      success: { status: 200, schema: baselineReply },
      errors: ERRORS,
      handler: async ({ caller, id, body }) => {
        const baseline = await operations.baseline(caller, id, body.paths);
        const { files, mode, paths } = baseline;
        return { ok: true, files, mode, ...nameListFields("paths", paths) };
      },
    }),
    defineRoute({
      method: "POST",
      path: "/v1/sandboxes/:id/changes",
      auth: "admin",
      guard: "sandbox",
      tag: "change-sets",
      summary: "Compares what the paths hold now with the baseline.",
      body: changesBody,
      bodyOptional: true,
      success: { status: 200, schema: changesReply },
      errors: [...ERRORS, "BASELINE_MISSING", "BASELINE_CORRUPT", "BASELINE_MODE_CHANGED"],
      handler: async ({ caller, id, body }) => {
        const changes = await operations.changes(caller, id, body.paths);
        const { mode, paths, baselineTakenAtUnix } = changes;
        return {
          ...changeFields(changes),
          mode,
          ...nameListFields("paths", paths),
          baseline_taken_at_unix: baselineTakenAtUnix,
        };
      },
    }),
    defineRoute({
      method: "POST",
      path: "/v1/sandboxes/:id/dry-run",
      auth: "admin",
      guard: "sandbox",
      tag: "change-sets",
      summary: "Runs a command, says what it would change, and leaves the sandbox as it was.",
      body: dryRunBody,
      success: { status: 200, schema: dryRunReply },
      errors: [...ERRORS, ...launchFailures, "COMMAND_TOO_LARGE", "DRY_RUN_NOT_REVERTED"],
      handler: async ({ caller, id, body }) => {
        const { command, timeout_seconds: timeoutSeconds, paths } = body;
        if (Buffer.byteLength(command) > limits.commandMaxBytes) throw new AgentError("COMMAND_TOO_LARGE");
        const run = await operations.dryRun(caller, id, { command, timeoutSeconds, paths });
        return {
          ...execReplyFields(run.exec),
          changes: changeFields(run.changes),
          discarded: true,
          reverted_via: run.revertedVia,
          ...nameListFields("paths", run.changes.paths),
        };
      },
    }),
  ];
}
