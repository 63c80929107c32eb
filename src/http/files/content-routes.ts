// Routes that stream the content of files and archives, both ways.
import { Type } from "@sinclair/typebox";
import type { Logger } from "../../contracts/log.ts";
import { AgentError, asAgentError } from "../../errors/agent-error.ts";
import type { FileOperations } from "../../sandbox/files/operations.ts";
import { guestFailures, streamedFileFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { begun, bytesResponse, uploadSource } from "../stream/bytes.ts";
import { modeOf, pathFields, pathOf, rangeOf } from "./request.ts";

const FILE = "application/octet-stream";
const ARCHIVE = "application/x-tar";

const sandboxRoute = { auth: "admin", guard: "sandbox", tag: "files" } as const;
const errors = [...guestFailures, ...streamedFileFailures];

const writtenReply = Type.Object(
  { size: Type.Integer({ minimum: 0, description: "Bytes that the file has now." }) },
  { $id: "FileStreamWritten", additionalProperties: false },
);

const unpackedReply = Type.Object(
  { entries: Type.Integer({ minimum: 0 }) },
  { $id: "ArchiveUnpacked", additionalProperties: false },
);

export function contentRoutes(files: FileOperations, log: Logger): readonly Route[] {
  const tellCut = (sandbox: string) => (error: unknown) =>
    log.info({ sandbox, error: asAgentError(error).message }, "a download was cut");
  return [
    defineRoute({
      ...sandboxRoute,
      method: "GET",
      path: "/v1/sandboxes/:id/files",
      summary: "Sends a regular file, or the part of it that Range names.",
      query: Type.Object(pathFields),
      success: { status: 200, also: [206], contentTypes: [FILE] },
      errors: [...errors, "RANGE_NOT_SATISFIABLE"],
      handler: async ({ caller, id, query, request }) => {
        const range = rangeOf(request.headers.get("range"));
        const file = await files.read(caller, id, pathOf(query), range ?? { offset: 0, fromEnd: false });
        const { size, offset, length } = file;
        if (range !== null && length === 0) {
          file.close();
          throw new AgentError("RANGE_NOT_SATISFIABLE", undefined, { details: { size } });
        }
        const headers = {
          "content-type": FILE,
          "content-length": String(length),
          "accept-ranges": "bytes",
          "last-modified": new Date(file.modifiedAtUnixMs).toUTCString(),
          ...(range !== null && { "content-range": `bytes ${offset}-${offset + length - 1}/${size}` }),
        };
        const status = range === null ? 200 : 206;
        if (request.method !== "HEAD") return bytesResponse(file, { status, headers }, tellCut(id));
        file.close();
        return new Response(null, { status, headers });
      },
    }),
    defineRoute({
      ...sandboxRoute,
      method: "PUT",
      path: "/v1/sandboxes/:id/files",
      summary: "Replaces or makes a regular file and the directories above it, when all of the body has come.",
      query: Type.Object({
        ...pathFields,
        mode: Type.Optional(Type.String({ description: "Octal permission bits; those of the file, or 0644." })),
        offset: Type.Optional(
          Type.Integer({
            minimum: 0,
            description: "Write in place from here, which is the file's size; what came before a cut stays.",
          }),
        ),
      }),
      streamedBody: true,
      success: { status: 200, schema: writtenReply },
      errors: [...errors, "RANGE_NOT_SATISFIABLE", "WORKSPACE_FULL"],
      handler: async ({ caller, id, query, request }) => {
        const options = { mode: modeOf(query.mode), offset: query.offset };
        return { size: await files.write(caller, id, pathOf(query), options, uploadSource(request)) };
      },
    }),
    defineRoute({
      ...sandboxRoute,
      method: "GET",
      path: "/v1/sandboxes/:id/files/archive",
      summary: "Sends a tar archive of a directory's content, or of one file.",
      query: Type.Object(pathFields),
      success: { status: 200, contentTypes: [ARCHIVE] },
      errors: [...errors, "LISTING_TOO_LARGE"],
      handler: async ({ caller, id, query, request }) => {
        const archive = await files.readArchive(caller, id, pathOf(query));
        const headers = { "content-type": ARCHIVE };
        if (request.method !== "HEAD") return bytesResponse(await begun(archive), { headers }, tellCut(id));
        archive.close();
        return new Response(null, { headers });
      },
    }),
    defineRoute({
      ...sandboxRoute,
      method: "PUT",
      path: "/v1/sandboxes/:id/files/archive",
      summary: "Unpacks a tar archive into a directory, which is made when it is missing.",
      query: Type.Object(pathFields),
      streamedBody: true,
      success: { status: 200, schema: unpackedReply },
      errors: [...errors, "ARCHIVE_REFUSED", "LISTING_TOO_LARGE", "WORKSPACE_FULL"],
      handler: async ({ caller, id, query, request }) => ({
        entries: await files.writeArchive(caller, id, pathOf(query), uploadSource(request)),
      }),
    }),
  ];
}
