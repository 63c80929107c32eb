// Schemas that several resources share. A schema with an `$id` becomes a component of the OpenAPI document.
import { type TSchema, Type } from "@sinclair/typebox";
import { catalogue } from "../errors/catalogue.ts";
import { limits } from "../config/limits.ts";

/** A value that is null where it has no meaning. */
export function nullable<S extends TSchema>(schema: S) {
  return Type.Union([schema, Type.Null()]);
}

/** `{"items":[…]}`, the shape of every list. */
export function listOf<S extends TSchema>(item: S) {
  return Type.Object({ items: Type.Array(item) }, { additionalProperties: false });
}

export const errorSchema = Type.Object(
  {
    error: Type.String({ description: "The message; where clients match on it, the reference's literal." }),
    code: Type.Union(Object.keys(catalogue).map((code) => Type.Literal(code))),
    details: Type.Record(Type.String(), Type.Unknown()),
  },
  { $id: "Error", additionalProperties: false },
);

export const okSchema = Type.Object({ ok: Type.Literal(true) }, { $id: "Ok", additionalProperties: false });

const labels = Type.Record(Type.String(), Type.String());
const timestamp = Type.String({ description: "RFC 3339, UTC" });

/** The VM record of the reference; a sandbox of any backend is one. */
export const vmRecordSchema = Type.Object(
  {
    id: Type.String(),
    name: Type.String(),
    backend: Type.String({
      description:
        "Which machine runs it. Of a sandbox that is no machine, such as a process sandbox, this is `flux-vm` for the sake " +
        "of older clients, and `request.image` is the id of its backend.",
    }),
    status: Type.Union(["creating", "running", "paused", "stopped", "failed"].map((status) => Type.Literal(status))),
    pid: nullable(Type.Integer()),
    created_at: timestamp,
    expires_at: nullable(timestamp),
    labels,
    request: Type.Record(Type.String(), Type.Unknown()),
    workspace: Type.Optional(nullable(Type.String())),
    guest_ip: Type.Optional(nullable(Type.String())),
    error: Type.Optional(nullable(Type.String())),
    state: Type.Optional(Type.String()),
    isolation: Type.Optional(nullable(Type.String())),
    ready_at: Type.Optional(nullable(timestamp)),
    storage_bytes: Type.Optional(nullable(Type.Integer())),
    env_names: Type.Optional(Type.Array(Type.String(), { description: "Variables of every command; no values." })),
  },
  { $id: "VmRecord", additionalProperties: true },
);

/** A timeout as clients give it. */
export const timeoutSeconds = Type.Integer({
  minimum: 0,
  description: "Seconds; 0 or absent means the default of the sandbox. Capped by the server.",
});

/** Paths of the change-set routes. */
export const changePaths = Type.Array(Type.String(), {
  maxItems: limits.manifestPathsMax,
  description: "Absolute paths from the root of what the sandbox may write.",
});

/** What a command left: both ways to say it are one shape on `/process`, `/agent` and `/dry-run`. */
export const execFields = {
  result: Type.Literal("exec"),
  exit_code: Type.Integer({ description: "124 after a timeout, 128 + n after signal n." }),
  stdout: Type.String(),
  stderr: Type.String(),
  stdout_base64: Type.Optional(Type.String({ description: "The exact bytes, when they are not UTF-8." })),
  stderr_base64: Type.Optional(Type.String()),
  stdout_truncated_bytes: Type.Optional(Type.Integer({ description: "Bytes after the kept head." })),
  stderr_truncated_bytes: Type.Optional(Type.Integer()),
  timed_out: Type.Optional(Type.Literal(true)),
  oom_killed: Type.Optional(Type.Literal(true)),
};
