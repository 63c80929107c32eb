// A journal in memory that watches how a plugin uses it: rows before acquisitions, known kinds, unique names, no
// secrets. It can fail an acquisition on purpose, and keeps what it has seen for releasing again.
import type { Json, JsonObject } from "../contracts/json.ts";
import type { Release, Resource, ResourceScope } from "../contracts/resource.ts";
import { AgentError } from "../errors/agent-error.ts";
import { check } from "./assert.ts";

/** Fails the acquisition number `acquisition` (from 1), before or after the thing is made. */
export interface InjectedFailure {
  readonly acquisition: number;
  readonly when: "before" | "after";
}

export class ConformanceJournal implements ResourceScope {
  readonly #releases: Readonly<Record<string, Release>>;
  readonly #secrets: readonly string[];
  readonly #failure: InjectedFailure | null;
  readonly #rows: Resource[] = [];
  readonly #seen = new Map<string, Resource>();
  /** Acquisitions begun. */
  acquisitions = 0;

  constructor(
    releases: Readonly<Record<string, Release>>,
    options: { readonly secrets?: readonly string[]; readonly failure?: InjectedFailure } = {},
  ) {
    this.#releases = releases;
    this.#secrets = options.secrets ?? [];
    this.#failure = options.failure ?? null;
  }

  async acquire<T>(resource: Resource, make: () => Promise<T>): Promise<T> {
    this.#write(resource.kind, resource.name, resource.data);
    this.acquisitions += 1;
    const fails = this.#failure?.acquisition === this.acquisitions;
    if (fails && this.#failure?.when === "before") throw new AgentError("INTERNAL", "injected before the acquisition");
    const made = await make();
    if (fails) throw new AgentError("INTERNAL", "injected after the acquisition");
    return made;
  }

  async update(kind: string, name: string, data: JsonObject): Promise<void> {
    const index = this.#indexOf(kind, name);
    check(index >= 0, `the plugin updates ${kind} ${name}, which it does not hold`);
    this.#rows.splice(index, 1);
    this.#write(kind, name, data, index);
  }

  async release(kind: string, name: string): Promise<void> {
    const index = this.#indexOf(kind, name);
    const row = this.#rows[index];
    check(row !== undefined, `the plugin releases ${kind} ${name}, which it does not hold`);
    await this.#releaseOf(kind)(row);
    this.#rows.splice(index, 1);
  }

  held(): readonly Resource[] {
    return [...this.#rows];
  }

  /** Releases everything held, newest first, as an unwind does. */
  async releaseAll(): Promise<void> {
    for (let row = this.#rows.at(-1); row !== undefined; row = this.#rows.at(-1)) {
      await this.#releaseOf(row.kind)(row);
      this.#rows.pop();
    }
  }

  /** Releases everything that was ever journalled once more: what a crash between release and commit leads to. */
  async releaseAgain(): Promise<void> {
    for (const row of [...this.#seen.values()].reverse()) await this.#releaseOf(row.kind)(row);
  }

  #write(kind: string, name: string, data: JsonObject, index = this.#rows.length): void {
    check(kind in this.#releases, `the plugin journals ${kind}, for which it has no release`);
    check(name !== "", `the plugin journals ${kind} without a name`);
    check(this.#indexOf(kind, name) < 0, `the plugin journals ${kind} ${name} twice`);
    const text = JSON.stringify(data);
    check(Bun.deepEquals(JSON.parse(text) as Json, data), `the data of ${kind} ${name} is not plain JSON`);
    const leaked = this.#secrets.some((secret) => text.includes(secret) || name.includes(secret));
    check(!leaked, `the journal row ${kind} ${name} holds a secret`);
    const row = { kind, name, data: JSON.parse(text) as JsonObject };
    this.#rows.splice(index, 0, row);
    this.#seen.set(`${kind} ${name}`, row);
  }

  #indexOf(kind: string, name: string): number {
    return this.#rows.findIndex((row) => row.kind === kind && row.name === name);
  }

  #releaseOf(kind: string): Release {
    const release = this.#releases[kind];
    check(release !== undefined, `no release for ${kind}`);
    return release;
  }
}
