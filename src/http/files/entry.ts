// An entry and a change in the wire's words. A name that is not UTF-8 comes with its exact bytes in Base64 beside it.
import { Type } from "@sinclair/typebox";
import type { FileChange, FileEntry } from "../../contracts/files.ts";
import { outputFields } from "../bytes-text.ts";
import type { Frame } from "../stream/frame.ts";

const SLASH = 0x2f;

const exactBytes = Type.Optional(Type.String({ description: "The exact bytes, when they are not UTF-8." }));

export const fileEntrySchema = Type.Object(
  {
    name: Type.String(),
    name_base64: exactBytes,
    path: Type.String(),
    path_base64: exactBytes,
    kind: Type.Union(["file", "directory", "symlink", "other"].map((kind) => Type.Literal(kind))),
    size: Type.Integer({ minimum: 0, description: "Bytes of a regular file, else 0." }),
    mode: Type.Integer({ minimum: 0, maximum: 0o7777, description: "Permission and set-id bits." }),
    uid: Type.Integer({ minimum: 0 }),
    gid: Type.Integer({ minimum: 0 }),
    modified_at: Type.String({ description: "RFC 3339, UTC" }),
    symlink_target: Type.Optional(Type.String()),
    symlink_target_base64: exactBytes,
  },
  { $id: "FileEntry", additionalProperties: false },
);

export function entryReply(entry: FileEntry) {
  const { path, kind, size, mode, uid, gid, modifiedAtUnixMs, target } = entry;
  return {
    ...outputFields("name", path.subarray(path.lastIndexOf(SLASH) + 1)),
    ...outputFields("path", path),
    kind,
    size,
    mode,
    uid,
    gid,
    modified_at: timestamp(modifiedAtUnixMs),
    ...(kind === "symlink" && outputFields("symlink_target", target)),
  };
}

const DATE_MAX_MS = 8.64e15;

/** RFC 3339; a time that no calendar has is the last one that it has. */
function timestamp(unixMs: number): string {
  return new Date(Math.min(unixMs, DATE_MAX_MS)).toISOString();
}

export function changeFrame({ kind, path, renamedTo }: FileChange): Frame {
  if (kind === "overflow") return { type: "overflow" };
  return {
    type: "change",
    change: kind,
    ...outputFields("path", path),
    ...(kind === "renamed" && outputFields("renamed_to", renamedTo)),
  };
}
