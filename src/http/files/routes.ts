// Routes that read or write one whole file as Base64: `fs/*` of sandboxes and `agent/*-file` of VMs are the same calls.
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { guestFailures, pathFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { fileContentReply, fileReadBody, fileWriteBody, fileWrittenReply } from "./schema.ts";

const MODE_DEFAULT = 0o644;
const MODE_MASK = 0o777;

const READ_PATHS = ["/v1/sandboxes/:id/fs/read", "/v1/vms/:id/agent/get-file"];
const WRITE_PATHS = ["/v1/sandboxes/:id/fs/write", "/v1/vms/:id/agent/put-file"];

export function fileRoutes({ operations }: HttpDependencies): readonly Route[] {
  const reads = READ_PATHS.map((path) =>
    defineRoute({
      method: "POST",
      path,
      auth: "admin",
      guard: "sandbox",
      tag: "files",
      summary: "Reads a regular file.",
      body: fileReadBody,
      success: { status: 200, schema: fileContentReply },
      errors: [...guestFailures, ...pathFailures],
      handler: async ({ caller, id, body }) => {
        const { content, mode } = await operations.readFile(caller, id, body.path);
        return { result: "file-content", content_base64: content.toBase64(), mode: mode & MODE_MASK };
      },
    }),
  );
  const writes = WRITE_PATHS.map((path) =>
    defineRoute({
      method: "POST",
      path,
      auth: "admin",
      guard: "sandbox",
      tag: "files",
      summary: "Replaces or makes a regular file and the directories above it.",
      body: fileWriteBody,
      bodyMaxBytes: limits.requestBodyMaxBytes,
      success: { status: 200, schema: fileWrittenReply },
      errors: [...guestFailures, ...pathFailures, "WORKSPACE_FULL"],
      handler: async ({ caller, id, body }) => {
        const mode = (body.mode ?? MODE_DEFAULT) & MODE_MASK;
        await operations.writeFile(caller, id, body.path, decodeContent(body.content_base64), mode);
        return { result: "file-written" };
      },
    }),
  );
  return [...reads, ...writes];
}

function decodeContent(base64: string): Uint8Array {
  // Before decoding, so that nothing larger is made; three sizes share one length of Base64, hence the second look.
  if (base64.length > Math.ceil(limits.fileMaxBytes / 3) * 4) throw new AgentError("FILE_TOO_LARGE");
  const content = decodeBase64(base64);
  if (content.byteLength > limits.fileMaxBytes) throw new AgentError("FILE_TOO_LARGE");
  return content;
}

function decodeBase64(base64: string): Uint8Array {
  try {
    return Uint8Array.fromBase64(base64);
  } catch {
    throw new AgentError("BAD_REQUEST", "field content_base64: not Base64", { details: { field: "content_base64" } });
  }
}
