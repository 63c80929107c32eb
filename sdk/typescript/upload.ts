// A file on its way into a sandbox that goes on where it was cut: it grows under a name of its own beside the file, which
// it replaces when it is whole.
import { ApiError, UnreachableError } from "./errors.ts";
import { type Files, octal, type WriteOptions } from "./files.ts";
import { isPassing, Pause, retried } from "./retry.ts";
import type { Transport } from "./transport.ts";

/** A file that has not grown for so long grows no more. */
const SETTLED_MS = 200;

/** Rejects as a write does; nothing is left under the other name then, unless the agent stayed away. */
export async function uploaded(
  transport: Transport,
  route: string,
  files: Files,
  path: string,
  content: Blob,
  { mode, ...options }: WriteOptions,
): Promise<void> {
  const { signal } = options;
  const replaced = mode ?? (await modeOf(files, path, options));
  let aside = nameAside(path);
  try {
    for (let offset = 0; ;) {
      const query = { path: aside, offset, mode: octal(replaced) };
      const bytes = content.slice(offset);
      try {
        await transport.json("PUT", route, { bytes, query, signal });
        break;
      } catch (error) {
        if (!isInterrupted(error)) throw error;
        offset = await settledSize(files, aside, options);
      }
      // What begins anew begins under another name: the first attempt may come late, and would empty the file.
      if (offset === 0) {
        await files.remove(aside).catch(() => {});
        aside = nameAside(path);
      }
    }
    await moved(files, aside, path, options);
  } catch (error) {
    if (!(error instanceof UnreachableError)) await files.remove(aside).catch(() => {});
    throw error;
  }
}

function nameAside(path: string): string {
  return `${path.slice(0, path.lastIndexOf("/") + 1)}.upload-${crypto.randomUUID()}`;
}

/** The connection broke, or what came before it did is still being written. */
function isInterrupted(error: unknown): boolean {
  return (
    isPassing(error) || (error instanceof ApiError && ["RANGE_NOT_SATISFIABLE", "SANDBOX_BUSY"].includes(error.code))
  );
}

async function modeOf(files: Files, path: string, options: WriteOptions): Promise<number | undefined> {
  const entry = await files.stat(path, options).catch((error: unknown) => {
    if (error instanceof ApiError && error.code === "PATH_NOT_FOUND") return undefined;
    throw error;
  });
  return entry?.kind === "file" ? entry.mode & 0o777 : undefined;
}

/** What came before the cut may be on its way still, and what comes next would be refused. */
async function settledSize(files: Files, path: string, options: WriteOptions): Promise<number> {
  const pause = new Pause(options.signal, SETTLED_MS);
  for (let before = -1; ;) {
    const size = await sizeOf(files, path, options);
    if (size === before) return size;
    before = size;
    await pause.wait();
    pause.reset();
  }
}

async function sizeOf(files: Files, path: string, options: WriteOptions): Promise<number> {
  try {
    return (await files.stat(path, options)).size;
  } catch (error) {
    if (error instanceof ApiError && error.code === "PATH_NOT_FOUND") return 0;
    throw error;
  }
}

/** The answer to a move may be lost, and then it is not there to be moved again. */
async function moved(files: Files, from: string, to: string, options: WriteOptions): Promise<void> {
  let attempts = 0;
  await retried(options, () => {
    attempts += 1;
    return files.move(from, to, options);
  }).catch((error: unknown) => {
    if (attempts < 2 || !(error instanceof ApiError) || error.code !== "PATH_NOT_FOUND") throw error;
  });
}
