// Routes that look at names, arrange them and watch them.
import { Type } from "@sinclair/typebox";
import type { Logger } from "../../contracts/log.ts";
import type { FileOperations, SandboxChanges } from "../../sandbox/files/operations.ts";
import { guestFailures, streamedFileFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { listOf, okSchema } from "../schema.ts";
import type { AttachedStreams } from "../stream/attached.ts";
import type { Frame, FrameSource } from "../stream/frame.ts";
import { acceptedFraming, framings } from "../stream/framing.ts";
import { streamResponse } from "../stream/response.ts";
import { changeFrame, entryReply, fileEntrySchema } from "./entry.ts";
import { flagQuery, pathFields, pathOf } from "./request.ts";

const MODE_DEFAULT = 0o755;

const sandboxRoute = { auth: "admin", guard: "sandbox", tag: "files" } as const;
const errors = [...guestFailures, ...streamedFileFailures];

const removedReply = Type.Object(
  { removed: Type.Integer({ minimum: 0, description: "Names that are gone." }) },
  { $id: "FilesRemoved", additionalProperties: false },
);

const madeReply = Type.Object(
  { created: Type.Boolean({ description: "False when the directory was there." }) },
  { $id: "DirectoryMade", additionalProperties: false },
);

const makeBody = Type.Object(
  {
    ...pathFields,
    mode: Type.Optional(Type.Integer({ minimum: 0, maximum: 0o777, description: "Permission bits; 0o755." })),
  },
  { $id: "DirectoryMake" },
);

const moveBody = Type.Object(
  { from: Type.String({ minLength: 1 }), to: Type.String({ minLength: 1 }) },
  { $id: "FileMove" },
);

export function treeRoutes(files: FileOperations, log: Logger, streams: AttachedStreams): readonly Route[] {
  return [
    defineRoute({
      ...sandboxRoute,
      method: "GET",
      path: "/v1/sandboxes/:id/files/stat",
      summary: "Tells what is at a path; a symbolic link is told, not followed.",
      query: Type.Object(pathFields),
      success: { status: 200, schema: fileEntrySchema },
      errors,
      handler: async ({ caller, id, query }) => entryReply(await files.stat(caller, id, pathOf(query))),
    }),
    defineRoute({
      ...sandboxRoute,
      method: "GET",
      path: "/v1/sandboxes/:id/files/list",
      summary: "Lists a directory, one level deep, sorted by name.",
      query: Type.Object(pathFields),
      success: { status: 200, schema: listOf(fileEntrySchema) },
      errors: [...errors, "LISTING_TOO_LARGE"],
      handler: async ({ caller, id, query }) => ({
        items: (await files.list(caller, id, pathOf(query))).map(entryReply),
      }),
    }),
    defineRoute({
      ...sandboxRoute,
      method: "POST",
      path: "/v1/sandboxes/:id/files/mkdir",
      summary: "Makes a directory and those above it.",
      body: makeBody,
      success: { status: 200, schema: madeReply },
      errors: [...errors, "WORKSPACE_FULL"],
      handler: async ({ caller, id, body }) => {
        // 0 means the default, as in the reference.
        const mode = body.mode === undefined || body.mode === 0 ? MODE_DEFAULT : body.mode;
        return { created: await files.makeDirectory(caller, id, pathOf(body), mode) };
      },
    }),
    defineRoute({
      ...sandboxRoute,
      method: "POST",
      path: "/v1/sandboxes/:id/files/move",
      summary: "Renames a file or a directory; a file at the new name is replaced.",
      body: moveBody,
      success: { status: 200, schema: okSchema },
      errors: [...errors, "DIRECTORY_NOT_EMPTY", "WORKSPACE_FULL"],
      handler: async ({ caller, id, body }) => {
        await files.move(caller, id, pathOf({ path: body.from }), pathOf({ path: body.to }));
        return { ok: true };
      },
    }),
    defineRoute({
      ...sandboxRoute,
      method: "DELETE",
      path: "/v1/sandboxes/:id/files",
      summary: "Removes a file, a link itself or a directory.",
      query: Type.Object({ ...pathFields, recursive: flagQuery }),
      success: { status: 200, schema: removedReply },
      errors: [...errors, "DIRECTORY_NOT_EMPTY"],
      handler: async ({ caller, id, query }) => ({
        removed: await files.remove(caller, id, pathOf(query), query.recursive === "true"),
      }),
    }),
    defineRoute({
      ...sandboxRoute,
      method: "GET",
      path: "/v1/sandboxes/:id/files/watch",
      summary: "Streams changes below a directory: `ready`, then `change` and `overflow` frames, `ended` as the last.",
      query: Type.Object({ ...pathFields, recursive: flagQuery }),
      success: { status: 200, contentTypes: Object.values(framings).map(({ contentType }) => contentType) },
      errors: [...errors, "LISTING_TOO_LARGE"],
      handler: async ({ caller, id, query, request }) => {
        const framing = acceptedFraming(request.headers.get("accept")) ?? framings.ndjson;
        const path = pathOf(query);
        if (request.method === "HEAD") return new Response(null, { headers: { "content-type": framing.contentType } });
        const place = streams.take(caller);
        try {
          const changes = await files.watch(caller, id, path, query.recursive === "true");
          return streamResponse(new ChangeFrames(changes), { framing, place, log });
        } catch (error) {
          place.leave();
          throw error;
        }
      },
    }),
  ];
}

/** `ready`, a frame for each change, and `ended` with its reason. */
class ChangeFrames implements FrameSource {
  readonly #waiting: Frame[] = [{ type: "ready" }];
  #hasEnded = false;

  constructor(private readonly changes: SandboxChanges) {}

  async next(): Promise<Frame | null> {
    while (this.#waiting.length === 0 && !this.#hasEnded) {
      const next = await this.changes.next();
      if ("ended" in next) {
        this.#hasEnded = true;
        return { type: "ended", reason: next.ended === "sandbox" ? "sandbox_ended" : "directory_removed" };
      }
      this.#waiting.push(...next.map(changeFrame));
    }
    return this.#waiting.shift() ?? null;
  }

  close(): void {
    this.changes.close();
  }
}
