// Routes of snapshots: taken, listed, removed, restored. Answer alike below `/v1/vms/{id}` and `/v1/sandboxes/{id}`.
import type { Snapshot } from "../../contracts/backend.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { SnapshotOperations } from "../../sandbox/snapshots/operations.ts";
import { launchFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { vmRecordSchema } from "../schema.ts";
import { snapshotBody, snapshotList, snapshotSchema, tagBody } from "./schema.ts";

const PREFIXES = ["/v1/vms/:id", "/v1/sandboxes/:id"];

const FAILURES: readonly ErrorCode[] = [
  "BAD_REQUEST",
  "NOT_SUPPORTED",
  "CAPABILITY_MISSING",
  "INVALID_STATE",
  "DRY_RUN_BUSY",
  "SANDBOX_BUSY",
  "MONITOR_ERROR",
  "DEADLINE_EXCEEDED",
  "GUEST_UNREACHABLE",
];
const RESTORING: readonly ErrorCode[] = [...FAILURES, ...launchFailures, "SNAPSHOT_NOT_FOUND", "RESTORE_NEEDS_STOP"];

export function snapshotRoutes(snapshots: SnapshotOperations): readonly Route[] {
  return PREFIXES.flatMap((prefix) => routesBelow(prefix, snapshots));
}

function routesBelow(prefix: string, snapshots: SnapshotOperations): readonly Route[] {
  const common = { auth: "admin", guard: "sandbox", tag: "snapshots" } as const;
  return [
    defineRoute({
      ...common,
      method: "POST",
      path: `${prefix}/snapshot`,
      summary: "Keeps memory and disk under a tag; the sandbox goes on as it was.",
      body: snapshotBody,
      success: { status: 200, schema: snapshotSchema },
      idempotent: true,
      errors: [...FAILURES, "SNAPSHOT_EXISTS"],
      handler: async ({ caller, id, body, idempotency }) => {
        const key = idempotency && { ...idempotency, reply: (taken: Snapshot) => idempotency.reply(shown(taken)) };
        return shown(await snapshots.takeSnapshot(caller, id, tagOf(body), key));
      },
    }),
    defineRoute({
      ...common,
      method: "GET",
      path: `${prefix}/snapshots`,
      summary: "Lists the snapshots of a sandbox by time.",
      success: { status: 200, schema: snapshotList },
      errors: FAILURES,
      handler: async ({ caller, id }) => ({ items: (await snapshots.snapshots(caller, id)).map(shown) }),
    }),
    defineRoute({
      ...common,
      method: "DELETE",
      path: `${prefix}/snapshots/:tag`,
      summary: "Removes a snapshot.",
      success: { status: 204 },
      errors: [...FAILURES, "SNAPSHOT_NOT_FOUND"],
      handler: async ({ caller, id, params }) => {
        await snapshots.removeSnapshot(caller, id, params.tag ?? "");
      },
    }),
    defineRoute({
      ...common,
      method: "POST",
      path: `${prefix}/restore`,
      summary: "Puts memory and disk back to a snapshot; a stopped sandbox is started from it.",
      body: tagBody,
      success: { status: 200, schema: vmRecordSchema },
      errors: RESTORING,
      handler: ({ caller, id, body }) => snapshots.restoreSnapshot(caller, id, body.tag),
    }),
    defineRoute({
      ...common,
      method: "POST",
      path: `${prefix}/start-from-snapshot`,
      summary: "Starts a stopped sandbox from a snapshot.",
      body: tagBody,
      success: { status: 200, schema: vmRecordSchema },
      errors: RESTORING,
      handler: ({ caller, id, body }) => snapshots.startFromSnapshot(caller, id, body.tag),
    }),
  ];
}

/** An empty tag is refused by the core, after it has looked whether the backend has snapshots at all. */
function tagOf({ tag, path }: { tag?: string; path?: string }): string {
  if (tag !== undefined && path !== undefined) throw new AgentError("BAD_REQUEST", "a snapshot has a tag and no path");
  return tag ?? "";
}

function shown({ tag, takenAtUnixMs, bytes }: Snapshot) {
  return { tag, created_at: new Date(takenAtUnixMs).toISOString(), size_bytes: bytes };
}
