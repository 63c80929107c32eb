// Wire shapes of snapshots.
import { Type } from "@sinclair/typebox";
import { listOf } from "../schema.ts";

const tag = Type.String({ description: "1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'." });

export const tagBody = Type.Object({ tag });

/** The reference's form for sandboxes names a path of the server; snapshots of this agent have tags. */
export const snapshotBody = Type.Object({
  tag: Type.Optional(tag),
  path: Type.Optional(Type.String({ description: "Refused: snapshots have tags." })),
});

export const snapshotSchema = Type.Object(
  {
    tag: Type.String(),
    created_at: Type.String({ description: "RFC 3339, UTC" }),
    size_bytes: Type.Integer({ description: "What it takes beside the disk." }),
  },
  { $id: "Snapshot", additionalProperties: false },
);

export const snapshotList = listOf(snapshotSchema);
