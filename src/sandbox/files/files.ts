// The files of a sandbox: checks the paths, goes to the guest agent, and says it when the sandbox ends meanwhile.
import { limits } from "../../config/limits.ts";
import type { ByteSource, ChangeFeed, FileDownload, GuestFiles } from "../../contracts/files.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { writing } from "../activity.ts";
import type { Context } from "../context.ts";
import { tellingEnd } from "../ending.ts";
import { liveOf, refreshUsage } from "../guest-access.ts";
import { onGuest } from "../on-guest.ts";
import type { Caller } from "../operations.ts";
import type { Sandbox } from "../sandbox.ts";
import type { FileSystemOperations, SandboxChanges } from "./operations.ts";

const SLASH = 0x2f;

export function fileOperations(context: Context): FileSystemOperations {
  const onFiles = async <T>(
    caller: Caller,
    id: string,
    work: (files: GuestFiles, sandbox: Sandbox) => Promise<T>,
  ): Promise<T> => await onGuest(context, caller, id, async (sandbox) => await work(await filesOf(sandbox), sandbox));
  /** For what may change how much the sandbox uses. */
  const changing = async <T>(caller: Caller, id: string, work: (files: GuestFiles) => Promise<T>): Promise<T> =>
    await onGuest(context, caller, id, async (sandbox) => {
      try {
        return await writing(sandbox, async () => await work(await filesOf(sandbox)));
      } finally {
        refreshUsage(context, sandbox);
      }
    });
  const receiving = async (
    caller: Caller,
    id: string,
    content: ByteSource,
    work: (files: GuestFiles) => Promise<number>,
  ) => {
    try {
      return await changing(caller, id, work);
    } finally {
      content.close();
    }
  };
  return {
    stat: (caller, id, path) => onFiles(caller, id, (files) => files.stat(guestPath(path))),
    resolve: (caller, id, path) => onFiles(caller, id, (files) => files.resolve(guestPath(path))),
    list: (caller, id, path) => onFiles(caller, id, (files) => files.list(guestPath(path))),
    makeDirectory: (caller, id, path, mode) =>
      changing(caller, id, (files) => files.makeDirectory(guestPath(path), mode & 0o777)),
    remove: (caller, id, path, recursive) => changing(caller, id, (files) => files.remove(namedPath(path), recursive)),
    move: (caller, id, from, to) => changing(caller, id, (files) => files.move(namedPath(from), namedPath(to))),
    read: (caller, id, path, range) =>
      onFiles(caller, id, async (files, sandbox) =>
        tellingDownload(context, sandbox, await files.read(guestPath(path), range)),
      ),
    write: (caller, id, path, options, content) =>
      receiving(caller, id, content, (files) => files.write(namedPath(path), options, content)),
    writeAt: (caller, id, path, offset, content) =>
      receiving(caller, id, content, (files) => files.writeAt(namedPath(path), offset, content)),
    create: (caller, id, path, options) =>
      changing(caller, id, (files) => files.create(namedPath(path), { ...options, mode: options.mode & 0o777 })),
    setAttributes: (caller, id, path, attributes) =>
      changing(caller, id, (files) => files.setAttributes(guestPath(path), attributes)),
    symlink: (caller, id, path, target) => changing(caller, id, (files) => files.symlink(namedPath(path), target)),
    link: (caller, id, from, to) => changing(caller, id, (files) => files.link(namedPath(from), namedPath(to))),
    readArchive: (caller, id, path) =>
      onFiles(caller, id, async (files, sandbox) =>
        tellingDownload(context, sandbox, await files.readArchive(guestPath(path))),
      ),
    writeArchive: (caller, id, path, content) =>
      receiving(caller, id, content, (files) => files.writeArchive(guestPath(path), content)),
    watch: (caller, id, path, recursive) =>
      onFiles(caller, id, async (files, sandbox) =>
        endingChanges(context, sandbox, await files.watch(guestPath(path), recursive)),
      ),
  };
}

async function filesOf(sandbox: Sandbox): Promise<GuestFiles> {
  const { fileStreams } = await liveOf(sandbox).instance.channel();
  if (fileStreams === undefined) throw new AgentError("NOT_SUPPORTED", "this guest agent cannot stream files");
  return fileStreams;
}

/** Rejects with `PATH_INVALID`: empty, relative, too long, with NUL or `..`. What it leads to is decided in the guest. */
function guestPath(path: Uint8Array): Uint8Array {
  const fault = (reason: string) => new AgentError("PATH_INVALID", `unsafe or invalid path: ${reason}`);
  if (path[0] !== SLASH) throw fault("it is not absolute");
  if (path.length >= limits.pathMaxBytes) throw fault(`it is longer than ${limits.pathMaxBytes - 1} bytes`);
  if (path.includes(0)) throw fault("it has a NUL");
  if (parts(path).includes("..")) throw fault("it has a .. in it");
  return path;
}

/** A path that is not the root. */
function namedPath(path: Uint8Array): Uint8Array {
  const checked = guestPath(path);
  if (parts(path).length === 0) throw new AgentError("PATH_INVALID", "unsafe or invalid path: it is the root");
  return checked;
}

function parts(path: Uint8Array): string[] {
  const text = Buffer.from(path.buffer, path.byteOffset, path.length).toString("latin1");
  return text.split("/").filter((part) => part !== "" && part !== ".");
}

function tellingDownload(context: Context, sandbox: Sandbox, download: FileDownload): FileDownload {
  const { size, offset, length, modifiedAtUnixMs } = download;
  return {
    size,
    offset,
    length,
    modifiedAtUnixMs,
    read: () => tellingEnd(context, sandbox, () => download.read()),
    close: () => download.close(),
  };
}

/** A sandbox that ends or is stopped ends its watches, which is no failure. */
function endingChanges(context: Context, sandbox: Sandbox, feed: ChangeFeed): SandboxChanges {
  return {
    next: async () => {
      try {
        const changes = await tellingEnd(context, sandbox, () => feed.next());
        return changes ?? { ended: "directory" };
      } catch (error) {
        if (error instanceof AgentError && error.code === "SANDBOX_GONE") return { ended: "sandbox" };
        throw error;
      }
    },
    close: () => feed.close(),
  };
}
