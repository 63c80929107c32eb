// The directory of templates: listing, deleting, and making one so that it is there whole or not at all. What a killed
// build left is removed by the next one that changes the directory.
import { chmod, mkdir, open, readdir, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import { assertUnused, type Dependant } from "./dependants.ts";
import { INITRD_FILE, KERNEL_FILE, readTemplate, requireTemplateName, type Template } from "./format.ts";

const LOCK_FILE = ".lock";
/** Before the name of a template that is being made, and of one that is being removed. Neither can be a name itself. */
const BUILDING = ".building-";
const REMOVING = ".removing-";
/** The memory image of a template that starts from one. */
const SNAPSHOT_FILE = "template.snap";

/** Takes an exclusive lock on a file without waiting; null when somebody else holds it. */
export type TakeLock = (path: string) => Promise<AsyncDisposable | null>;

export interface TemplateInfo {
  readonly name: string;
  readonly path: string;
  /** Whether sandboxes start from a memory image. */
  readonly snapshot: boolean;
}

export class TemplateStore {
  readonly #directory: string;
  readonly #takeLock: TakeLock;

  /** `directory` is made by the first build; its parent must exist. */
  constructor(directory: string, takeLock: TakeLock) {
    this.#directory = directory;
    this.#takeLock = takeLock;
  }

  /** Sorted by name. Whatever else lies in the directory is no template. */
  async list(): Promise<TemplateInfo[]> {
    const names = await readdir(this.#directory).catch(noneIfMissing);
    const found = await Promise.all(names.sort().map((name) => this.#info(name)));
    return found.filter((info) => info !== null);
  }

  /** Rejects with `TEMPLATE_NOT_FOUND` or `TEMPLATE_INVALID`. */
  async get(name: string): Promise<Template> {
    requireTemplateName(name);
    return readTemplate(join(this.#directory, name), name);
  }

  /**
   * Makes a template: `fill` puts everything into a fresh directory, which then gets its name. Rejects with
   * `TEMPLATE_EXISTS`, `TEMPLATE_BUSY`, `TEMPLATE_INVALID` (name), or with what `fill` rejects with; then there is nothing.
   */
  async create(name: string, fill: (directory: string) => Promise<void>): Promise<Template> {
    requireTemplateName(name);
    await makePassable(this.#directory);
    await using _lock = await this.#lock();
    const target = join(this.#directory, name);
    if (await exists(target)) throw new AgentError("TEMPLATE_EXISTS", `a template is called ${name} already`);
    const building = join(this.#directory, `${BUILDING}${name}`);
    try {
      await makePassable(building);
      await fill(building);
      await makeDurable(building);
      await rename(building, target);
    } catch (error) {
      await rm(building, { recursive: true, force: true });
      throw error;
    }
    await sync(this.#directory);
    return readTemplate(target, name);
  }

  /** Rejects with `TEMPLATE_NOT_FOUND`, `TEMPLATE_BUSY`, or `TEMPLATE_IN_USE` when one of the `dependants` needs it. */
  async delete(name: string, dependants: () => readonly Dependant[]): Promise<void> {
    requireTemplateName(name);
    const path = join(this.#directory, name);
    if (!(await exists(path))) throw new AgentError("TEMPLATE_NOT_FOUND", `no template is called ${name}`);
    await using _lock = await this.#lock();
    await assertUnused(name, path, dependants());
    const removing = join(this.#directory, `${REMOVING}${name}`);
    await rename(path, removing);
    try {
      // Who was accepted meanwhile is known now; who comes later finds no files.
      await assertUnused(name, path, dependants());
    } catch (error) {
      await rename(removing, path);
      throw error;
    }
    await rm(removing, { recursive: true });
  }

  async #info(name: string): Promise<TemplateInfo | null> {
    const path = join(this.#directory, name);
    if (name.startsWith(".") || !(await exists(join(path, "spec.json")))) return null;
    return { name, path, snapshot: await exists(join(path, SNAPSHOT_FILE)) };
  }

  /** With the lock held nobody else builds or removes, so whatever looks like it was left by a process that is gone. */
  async #lock(): Promise<AsyncDisposable> {
    const lock = await this.#takeLock(join(this.#directory, LOCK_FILE));
    if (lock === null) throw new AgentError("TEMPLATE_BUSY");
    for (const name of await readdir(this.#directory)) {
      const left = name.startsWith(BUILDING) || name.startsWith(REMOVING);
      if (left) await rm(join(this.#directory, name), { recursive: true, force: true });
    }
    return lock;
  }
}

/** What the user of a virtual machine opens by itself; there is no secret in a kernel. */
const READABLE: ReadonlySet<string> = new Set([KERNEL_FILE, INITRD_FILE]);

async function makeDurable(directory: string): Promise<void> {
  for (const name of await readdir(directory)) {
    await chmod(join(directory, name), READABLE.has(name) ? 0o644 : 0o600);
    await sync(join(directory, name));
  }
  await sync(directory);
}

async function sync(path: string): Promise<void> {
  const handle = await open(path, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function exists(path: string): Promise<boolean> {
  return stat(path)
    .then(() => true, noneIfMissing)
    .then((found) => found === true);
}

function noneIfMissing(error: NodeJS.ErrnoException): never[] {
  if (error.code === "ENOENT" || error.code === "ENOTDIR") return [];
  throw error;
}

/** Virtual machines have users of their own, which read the kernel below here; nobody lists what there is. */
async function makePassable(path: string): Promise<void> {
  await mkdir(path, { recursive: true, mode: 0o711 });
  await chmod(path, 0o711);
}
