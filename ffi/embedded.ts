// Extracts files that are embedded in the compiled binary to a private directory, named by their content. What is used
// afterwards (loaded, executed) is never taken from a place that somebody else could write.
import { lstatSync, readFileSync, realpathSync, type Stats } from "node:fs";
import { chmod, type FileHandle, mkdir, open, rename, rm } from "node:fs/promises";
import { dirname, join, sep } from "node:path";
import { AgentError } from "../src/errors/agent-error.ts";

const GROUP_OR_OTHERS_WRITE = 0o022;
const STICKY = 0o1000;

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
  requireTrustedDirectory(dirname(embedded.directory));
  const directory = join(embedded.directory, hash);
  await mkdir(directory, { recursive: true, mode: 0o700 });
  requireTrustedDirectory(directory);

  const path = join(directory, embedded.name);
  const mode = embedded.executable ? 0o500 : 0o400;
  if (!holds(path, hash, mode)) await write(path, content, mode);
  if (!holds(path, hash, mode)) throw new AgentError("CONFIG_INVALID", `${path} changes while it is written`);
  return path;
}

/** Throws `CONFIG_INVALID` unless `path` is a regular file that only root or we can change, in such a directory. */
export function requireTrustedFile(path: string): void {
  const stat = lstatSync(path);
  if (!stat.isFile()) throw refusal(path, "is not a regular file");
  requireOurs(path, stat);
  requireTrustedDirectory(dirname(path));
}

/**
 * Throws `CONFIG_INVALID` unless nobody but root and we can change what this directory's path leads to. A sticky
 * directory that everyone may write (like `/tmp`) is allowed above a directory of ours: nobody else can rename that.
 */
export function requireTrustedDirectory(path: string): void {
  const resolved = realpathSync(path);
  for (const way of new Set([path, resolved])) {
    const names = way.split(sep).filter((name) => name !== "");
    for (let depth = 0; depth <= names.length; depth++) {
      const step = sep + names.slice(0, depth).join(sep);
      const stat = lstatSync(step);
      if (stat.isSymbolicLink()) {
        if (!isOurs(stat)) throw refusal(step, "is a link of another user");
        continue;
      }
      if (!stat.isDirectory()) throw refusal(step, "is not a directory");
      requireOurs(step, stat, depth < names.length);
    }
  }
}

function requireOurs(path: string, stat: Stats, stickyAllowed = false): void {
  if (!isOurs(stat)) throw refusal(path, "belongs to another user");
  const shared = (stat.mode & GROUP_OR_OTHERS_WRITE) !== 0;
  if (shared && !(stickyAllowed && (stat.mode & STICKY) !== 0)) throw refusal(path, "can be written by other users");
}

function isOurs(stat: Stats): boolean {
  return stat.uid === 0 || stat.uid === process.geteuid?.();
}

function refusal(path: string, what: string): AgentError {
  return new AgentError("CONFIG_INVALID", `${path} ${what}; executables are not taken from there`, {
    details: { path },
  });
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
  return stat.isFile() && isOurs(stat) && (stat.mode & 0o777) === mode && sha256(readFileSync(path)) === hash;
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
