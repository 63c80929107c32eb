// Wire shapes of baselines, changes and dry-runs. Lists hold UTF-8 names; other names are in the list's `_base64` twin.
import { Type } from "@sinclair/typebox";
import { ENTRY_KINDS } from "../../contracts/channel.ts";
import { changePaths, execFields, timeoutSeconds } from "../schema.ts";

const names = Type.Array(Type.String());
const otherNames = Type.Optional(Type.Array(Type.String(), { description: "Names that are not UTF-8, in Base64." }));
const mode = Type.Union([Type.Literal("sha256"), Type.Literal("stat")]);

export const baselineBody = Type.Object({ paths: changePaths }, { $id: "BaselineRequest" });

export const changesBody = Type.Object({ paths: Type.Optional(changePaths) }, { $id: "ChangesRequest" });

export const dryRunBody = Type.Object(
  { command: Type.String(), timeout_seconds: Type.Optional(timeoutSeconds), paths: Type.Optional(changePaths) },
  { $id: "DryRunRequest" },
);

export const baselineReply = Type.Object(
  { ok: Type.Literal(true), files: Type.Integer(), mode, paths: names },
  { $id: "Baseline", additionalProperties: false },
);

const otherChange = Type.Object(
  {
    path: Type.Optional(Type.String()),
    path_base64: Type.Optional(Type.String({ description: "Instead of path, when it is not UTF-8." })),
    change: Type.Union(["added", "modified", "deleted", "mode", "owner", "type"].map((change) => Type.Literal(change))),
    kind: Type.Union(ENTRY_KINDS.map((kind) => Type.Literal(kind))),
  },
  { additionalProperties: false },
);

const changeFields = {
  added: names,
  added_base64: otherNames,
  modified: names,
  modified_base64: otherNames,
  deleted: names,
  deleted_base64: otherNames,
  unchanged: Type.Integer(),
  other: Type.Array(otherChange, { description: "Links, directories, special files, and changes of mode or owner." }),
};

export const changesReply = Type.Object(
  { ...changeFields, mode, paths: names, baseline_taken_at_unix: Type.Integer() },
  { $id: "Changes", additionalProperties: false },
);

export const dryRunReply = Type.Object(
  {
    ...execFields,
    changes: Type.Object(changeFields, { additionalProperties: false }),
    discarded: Type.Literal(true),
    reverted_via: Type.Union([Type.Literal("workspace-copy"), Type.Literal("snapshot")]),
    paths: names,
  },
  { $id: "DryRun", additionalProperties: false },
);
