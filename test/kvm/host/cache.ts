// The parts that a KVM host is started from, each in a folder named by the digest of its recipe. A changed recipe makes
// a new folder and removes the old one, so the cache holds one folder a part, and those that somebody still uses.
import { existsSync } from "node:fs";
import { mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { Lock } from "./lock.ts";

export interface Part {
  /** Unique among the parts; becomes part of a file name. */
  readonly name: string;
  /** Everything that decides the content: the same recipe stands for the same folder. */
  readonly recipe: readonly string[];
  /** Fills an empty folder. */
  build(folder: string): Promise<void>;
}

export class Cache {
  readonly folder: string;
  readonly #say: (line: string) => void;

  private constructor(folder: string, say: (line: string) => void) {
    this.folder = folder;
    this.#say = say;
  }

  static async open(folder: string, say: (line: string) => void): Promise<Cache> {
    await mkdir(join(folder, "locks"), { recursive: true });
    await mkdir(join(folder, "runs"), { recursive: true });
    return new Cache(folder, say);
  }

  /** The folder of a part, built first when it is missing, and kept until the lock is released. */
  async use(part: Part): Promise<{ folder: string; lock: Lock }> {
    const digest = new Bun.CryptoHasher("sha256").update(JSON.stringify(part.recipe)).digest("hex").slice(0, 16);
    const name = `${part.name}-${digest}`;
    const folder = join(this.folder, name);
    for (;;) {
      const lock = await Lock.take(this.#lockOf(name), "shared");
      // Looked at under the lock: nobody removes a folder that is locked.
      if (existsSync(folder)) return { folder, lock };
      lock.release();
      await this.#build(part, name);
    }
  }

  /** Forgets a part, so that its next use builds it again. One that is in use stays. */
  async forget(part: Part): Promise<void> {
    using _building = await Lock.take(join(this.folder, "locks/build"), "exclusive");
    await this.#removeUnused((name) => name.startsWith(`${part.name}-`));
  }

  /** A folder for the files of one run, removed by `close`, or by a later run when this process dies first. */
  async openRun(): Promise<{ folder: string; close: () => Promise<void> }> {
    await this.#removeDeadRuns();
    const name = `run-${crypto.randomUUID()}`;
    const lock = await Lock.take(this.#lockOf(name), "exclusive");
    const folder = join(this.folder, "runs", name);
    await mkdir(folder, { mode: 0o700 });
    const close = async (): Promise<void> => {
      await rm(folder, { recursive: true, force: true });
      await rm(this.#lockOf(name), { force: true });
      lock.release();
    };
    return { folder, close };
  }

  async #build(part: Part, name: string): Promise<void> {
    using _building = await Lock.take(join(this.folder, "locks/build"), "exclusive");
    if (existsSync(join(this.folder, name))) return;
    const started = performance.now();
    this.#say(`building ${part.name}`);
    const unfinished = join(this.folder, "building");
    await rm(unfinished, { recursive: true, force: true });
    await mkdir(unfinished);
    await part.build(unfinished);
    await rename(unfinished, join(this.folder, name));
    await this.#removeUnused((other) => other.startsWith(`${part.name}-`) && other !== name);
    this.#say(`built ${part.name} in ${((performance.now() - started) / 1000).toFixed(1)} s`);
  }

  /** Only under the build lock. */
  async #removeUnused(matches: (name: string) => boolean): Promise<void> {
    for (const name of (await readdir(this.folder)).filter(matches)) {
      using lock = await Lock.tryTake(this.#lockOf(name), "exclusive");
      if (lock !== null) await rm(join(this.folder, name), { recursive: true, force: true });
    }
  }

  async #removeDeadRuns(): Promise<void> {
    for (const name of await readdir(join(this.folder, "runs"))) {
      using lock = await Lock.tryTake(this.#lockOf(name), "exclusive");
      if (lock === null) continue;
      await rm(join(this.folder, "runs", name), { recursive: true, force: true });
      await rm(this.#lockOf(name), { force: true });
    }
  }

  #lockOf(name: string): string {
    return join(this.folder, "locks", name);
  }
}
