// What is declared, on the disk: one file a sandbox for its policy and one for its edge, and one each for groups,
// documents, remote addresses and what is known of host names. A file is replaced whole or not at all, and what is read is checked as what a client
// sends is: a file that cannot be believed is an error that names it.
import { constants } from "node:fs";
import { mkdir, open, readdir, rename, rm } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { limits } from "../config/limits.ts";
import type { Json } from "../contracts/json.ts";
import { AgentError } from "../errors/agent-error.ts";

const { O_WRONLY, O_RDONLY, O_CREAT, O_TRUNC, O_NOFOLLOW } = constants;
const ID = /^[A-Za-z0-9-]{1,64}$/;
const OWN_NAME = /^([A-Za-z0-9-]{1,64})\.json(?:\.new)?$/;
export type FabricFile = "groups" | "cnp" | "ipcache" | "names";
export type SandboxFile = "network-policy" | "network-edge";

export class NetworkStore {
  constructor(private readonly stateDir: string) {}

  /** The checked content of a sandbox's file, or null where it has none. Rejects with `STATE_UNAVAILABLE`. */
  async readOf<Value>(file: SandboxFile, id: string, parse: (value: unknown) => Value): Promise<Value | null> {
    return await readChecked(this.#pathOf(file, id), parse);
  }

  /** Null removes. Resolves when the change is durable; rejects and leaves the old content when it cannot be. */
  async writeOf(file: SandboxFile, id: string, value: object | null): Promise<void> {
    await (value === null ? removeDurably(this.#pathOf(file, id)) : writeDurably(this.#pathOf(file, id), value));
  }

  /** The checked content of a file of the whole host, or null where there is none. Rejects with `STATE_UNAVAILABLE`. */
  read<Value>(name: FabricFile, parse: (value: unknown) => Value): Promise<Value | null> {
    return readChecked(this.#fabricPath(name), parse);
  }

  async write(name: FabricFile, value: object): Promise<void> {
    await writeDurably(this.#fabricPath(name), value);
  }

  /** Ids that have a file, or the beginning of one. */
  async ids(file: SandboxFile): Promise<readonly string[]> {
    const names = await readdir(join(this.stateDir, file)).catch(noneIfMissing);
    return [...new Set(names.flatMap((name) => OWN_NAME.exec(name)?.[1] ?? []))];
  }

  #pathOf(file: SandboxFile, id: string): string {
    if (!ID.test(id)) throw new Error(`not an id: ${id}`);
    return join(this.stateDir, file, `${id}.json`);
  }

  #fabricPath(name: FabricFile): string {
    return join(this.stateDir, "network-groups", `${name}.json`);
  }
}

async function readChecked<Value>(path: string, parse: (value: unknown) => Value): Promise<Value | null> {
  const text = await readText(path);
  if (text === null) return null;
  try {
    return parse(JSON.parse(text) as Json);
  } catch (cause) {
    const why = cause instanceof AgentError ? cause.message : "it is no JSON";
    throw unavailable(path, why, cause);
  }
}

/** The whole text, or null where there is no file. */
async function readText(path: string): Promise<string | null> {
  let file;
  try {
    file = await open(path, O_RDONLY | O_NOFOLLOW);
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw unavailable(path, String((cause as NodeJS.ErrnoException).code), cause);
  }
  try {
    const { size } = await file.stat();
    if (size > limits.networkFileMaxBytes) throw unavailable(path, "it is too large");
    return await file.readFile("utf8");
  } finally {
    await file.close();
  }
}

function unavailable(path: string, why: string, cause?: unknown): AgentError {
  // Without the directories of the host, because a tenant may read it.
  const name = `${basename(dirname(path))}/${basename(path)}`;
  return new AgentError("STATE_UNAVAILABLE", `${name} cannot be used: ${why}`, { cause });
}

async function writeDurably(path: string, value: object): Promise<void> {
  const text = JSON.stringify(value);
  if (Buffer.byteLength(text) > limits.networkFileMaxBytes) throw unavailable(path, "it would be too large");
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  const beside = `${path}.new`;
  try {
    await writeWhole(beside, text);
    await rename(beside, path);
  } catch (error) {
    // On a full disk its beginning would take what is left.
    await rm(beside, { force: true });
    throw error;
  }
  await syncDirectory(dirname(path));
}

async function writeWhole(path: string, text: string): Promise<void> {
  const file = await open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0o600);
  try {
    await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
}

async function removeDurably(path: string): Promise<void> {
  const files = [path, `${path}.new`];
  for (const file of files) await rm(file, { force: true });
  await syncDirectory(dirname(path)).catch(noneIfMissing);
}

async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, O_RDONLY);
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}

function noneIfMissing(error: NodeJS.ErrnoException): string[] {
  if (error.code === "ENOENT") return [];
  throw error;
}
