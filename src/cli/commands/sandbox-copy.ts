// `fluxctl sandbox cp`: files and trees between this host and a sandbox. A file goes on where a connection broke, a tree
// is one archive.
import { open, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import type { Files, RetryOptions } from "../../../sdk/typescript/client.ts";
import { ApiError } from "../../../sdk/typescript/errors.ts";
import { sandboxOf, within } from "../agent.ts";
import { type Command, EXIT, UsageError } from "../command.ts";
import { printable } from "../escape.ts";
import { sideOf } from "../file-names.ts";
import type { Terminal } from "../terminal.ts";

/** A look before a copy is worth a second try, but not a long wait. */
const look = (): RetryOptions => ({ ...within(), resumeMs: 3000 });

const cp: Command = {
  path: ["sandbox", "cp"],
  summary: "Copy a file, or with -r a directory, between this host and a sandbox.",
  details:
    "One side is SANDBOX:PATH, the other a name on this host; `-` is stdin or stdout. As with cp, what is copied onto a\n" +
    "directory goes into it under its own name. What comes from a sandbox gets no owner and no set-id bits, and nothing\n" +
    "of it leads out of where it is put; symbolic links are copied as they are.",
  arguments: [{ name: "FROM" }, { name: "TO" }],
  client: true,
  options: [{ name: "recursive", short: "r", description: "Copy a directory with all that is in it." }],
  async run(invocation, terminal) {
    const [from, to] = [sideOf(invocation.argument("FROM")), sideOf(invocation.argument("TO"))];
    const isTree = invocation.flag("recursive");
    if (from.kind === to.kind) throw new UsageError("one of the two is SANDBOX:PATH, the other a name on this host");
    const word = from.kind === "sandbox" ? from.sandbox : to.kind === "sandbox" ? to.sandbox : "";
    const { files } = await sandboxOf(invocation, terminal, word);
    if (from.kind === "sandbox") {
      await (isTree ? downloadTree(files, from.path, to.path) : download(files, from.path, to.path, terminal));
    } else {
      await (isTree ? uploadTree(files, from.path, to.path) : upload(files, from.path, to.path));
    }
    return EXIT.success;
  },
};

async function upload(files: Files, local: string, path: string): Promise<void> {
  if (local === "-") {
    await files.write(path, Bun.stdin.stream());
    return;
  }
  const stats = await localStats(local);
  if (stats.isDirectory()) throw new UsageError(`${printable(local)} is a directory; copy it with -r`);
  const target = await placeInSandbox(files, local, path);
  // Of a pipe or the like nobody knows the size, and it cannot be read again.
  if (stats.isFile()) await files.upload(target, Bun.file(local), { mode: stats.mode & 0o777 });
  else await files.write(target, Bun.file(local).stream());
}

async function uploadTree(files: Files, local: string, path: string): Promise<void> {
  if (!(await localStats(local)).isDirectory()) throw new UsageError(`${printable(local)} is no directory`);
  const [{ packedStream }, target] = await Promise.all([
    import("../tar/pack.ts"),
    placeInSandbox(files, resolve(local), path),
  ]);
  await files.unpack(target, packedStream(local));
}

/** Where something called `local` goes: into `path` when that is a directory. */
async function placeInSandbox(files: Files, local: string, path: string): Promise<string> {
  const isInside = path.endsWith("/") || (await isSandboxDirectory(files, path));
  return isInside ? `${path.replace(/\/+$/, "")}/${basename(local)}` : path;
}

async function isSandboxDirectory(files: Files, path: string): Promise<boolean> {
  try {
    return (await files.stat(path, look())).kind === "directory";
  } catch (error) {
    if (error instanceof ApiError && error.code === "PATH_NOT_FOUND") return false;
    throw error;
  }
}

async function download(files: Files, path: string, local: string, terminal: Terminal): Promise<void> {
  const { kind, mode } = await files.stat(path, look());
  if (kind === "directory") throw new UsageError(`${printable(path)} is a directory; copy it with -r`);
  if (local === "-") {
    for await (const piece of files.stream(path)) await terminal.out(piece);
    return;
  }
  const target = (await isLocalDirectory(local)) ? join(local, nameOf(path)) : local;
  // Beside it, so that what was there is replaced when all has come.
  const aside = join(dirname(target), `.fluxctl-${crypto.randomUUID()}`);
  const file = await open(aside, "wx", 0o600);
  try {
    for await (const piece of files.stream(path)) await file.writeFile(piece);
    await file.chmod(mode & 0o777);
    await file.close();
    await rename(aside, target);
  } catch (error) {
    await file.close().catch(() => {});
    await rm(aside, { force: true });
    throw error;
  }
}

async function downloadTree(files: Files, path: string, local: string): Promise<void> {
  const { kind } = await files.stat(path, look());
  if (kind !== "directory") throw new UsageError(`${printable(path)} is no directory`);
  const [{ unpacked }, { mkdir }] = await Promise.all([import("../tar/unpack.ts"), import("node:fs/promises")]);
  const target = (await isLocalDirectory(local)) ? join(local, nameOf(path)) : local;
  const archive = await files.archive(path);
  await mkdir(target, { recursive: true });
  await unpacked(archive, target);
}

/** The last name of a path; of the root, nothing. It is what the user typed, and may not lead elsewhere. */
function nameOf(path: string): string {
  const name = basename(path);
  return name === ".." ? "" : name;
}

async function localStats(local: string) {
  try {
    return await stat(local);
  } catch (error) {
    throw new UsageError(`${printable(local)} cannot be read (${(error as NodeJS.ErrnoException).code ?? "unknown"})`);
  }
}

async function isLocalDirectory(local: string): Promise<boolean> {
  return await stat(local).then(
    (stats) => stats.isDirectory(),
    () => false,
  );
}

export const sandboxCopyCommands: readonly Command[] = [cp];
