// Extracts files that are embedded in the compiled binary to a private directory, named by their content. What is used
// afterwards (loaded, executed) is never taken from a place that somebody else could write.
import { lstatSync, readFileSync, type Stats } from "node:fs";
import { chmod, type FileHandle, mkdir, open, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { AgentError } from "../src/errors/agent-error.ts";
import { distrustOf } from "../src/trusted-path.ts";

export interface EmbeddedFile {
  /** Path inside the binary, from `import … with { type: "file" }`. */
  readonly file: string;
  /** The file goes to `<directory>/<sha256>/<name>`; `directory` is made if missing, its parent must exist. */
  readonly directory: string;
  readonly name: string;
  readonly executable: boolean;
}

/**
 * Makes sure that the file is extracted with the right content and returns its path. An existing file is compared by
 * SHA-256 every time and replaced when it differs. Rejects with `CONFIG_INVALID` when a directory on the way belongs to
 * somebody else or can be written by others.
 */
export async function ensureEmbedded(embedded: EmbeddedFile): Promise<string> {
  const content = readFileSync(embedded.file);
  const hash = sha256(content);
  requireTrusted(dirname(embedded.directory), "directory");
  const directory = join(embedded.directory, hash);
  await mkdir(directory, { recursive: true, mode: 0o700 });
  requireTrusted(directory, "directory");

  const path = join(directory, embedded.name);
  const mode = embedded.executable ? 0o500 : 0o400;
  if (!holds(path, hash, mode)) await write(path, content, mode);
  if (!holds(path, hash, mode)) throw new AgentError("CONFIG_INVALID", `${path} changes while it is written`);
  return path;
}

/** Throws `CONFIG_INVALID` unless nobody but root and we can change what this path leads to. */
export function requireTrusted(path: string, kind: "file" | "directory"): void {
  const fault = distrustOf(path, kind);
  if (fault === null) return;
  throw new AgentError("CONFIG_INVALID", `${fault}; executables are not taken from there`, { details: { path } });
}

function sha256(content: Uint8Array): string {
  return new Bun.CryptoHasher("sha256").update(content).digest("hex");
}

function holds(path: string, hash: string, mode: number): boolean {
  let stat: Stats;
  try {
    stat = lstatSync(path);
  } catch {
    return false;
  }
  return (
    stat.isFile() &&
    stat.uid === process.geteuid?.() &&
    (stat.mode & 0o777) === mode &&
    sha256(readFileSync(path)) === hash
  );
}

/** Written beside, made durable and renamed, so that a crash leaves the old file or the whole new one. */
async function write(path: string, content: Uint8Array, mode: number): Promise<void> {
  const beside = `${path}.${crypto.randomUUID()}`;
  try {
    await withFile(await open(beside, "wx", 0o600), async (file) => {
      await file.writeFile(content);
      await file.sync();
    });
    await chmod(beside, mode);
    await rename(beside, path);
    await withFile(await open(dirname(path), "r"), (directory) => directory.sync());
  } catch (error) {
    await rm(beside, { force: true });
    throw error;
  }
}

async function withFile(file: FileHandle, action: (file: FileHandle) => Promise<void>): Promise<void> {
  try {
    await action(file);
  } finally {
    await file.close();
  }
}
