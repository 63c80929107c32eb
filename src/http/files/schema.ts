// Wire shapes of whole files in JSON.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";

const path = Type.String({
  minLength: 1,
  maxLength: limits.pathMaxBytes,
  description: "Process sandboxes: relative to the workspace. Never through a symbolic link.",
});

export const fileReadBody = Type.Object({ path }, { $id: "FileRead" });

export const fileWriteBody = Type.Object(
  {
    path,
    content_base64: Type.String({ description: "At most 64 MiB of content." }),
    mode: Type.Optional(
      Type.Integer({ minimum: 0, maximum: 0xffffffff, description: "Permission bits; 0o644 by default." }),
    ),
  },
  { $id: "FileWrite" },
);

export const fileContentReply = Type.Object(
  {
    result: Type.Literal("file-content"),
    content_base64: Type.String(),
    mode: Type.Integer({ minimum: 0, maximum: 0o777 }),
  },
  { $id: "FileContent", additionalProperties: false },
);

export const fileWrittenReply = Type.Object(
  { result: Type.Literal("file-written") },
  { $id: "FileWritten", additionalProperties: false },
);
