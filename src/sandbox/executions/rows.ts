// The rows of one sandbox's executions on the disk, as a journal of what became of each: enough for the next agent
// process to know them again. They lie beside the files of their output.
import { readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { limits } from "../../config/limits.ts";
import { atOnce } from "../../contracts/at-once.ts";
import { Journal } from "./journal.ts";
import { type StoredExecution, storedSchema } from "./stored.ts";

/** What a text of the journal says. */
type Entry =
  /** The guest is about to be asked to start it. */
  | { readonly begun: StoredExecution }
  /** The guest has started it. */
  | { readonly started: string }
  /** It has started, and this is what is known of it. */
  | { readonly kept: StoredExecution }
  | { readonly forgotten: string };
type EntryKind = "begun" | "started" | "kept" | "forgotten";

/** Ends of the names of files that each hold a row, as agents wrote them that had no journal. */
const ROW = ".json";
const STARTING_ROW = ".starting";

/** One that was found on the disk. */
export interface FoundExecution {
  readonly stored: StoredExecution;
  /** False when it is not known whether the guest was ever asked to start it. */
  readonly hasStarted: boolean;
}

export interface RowHooks {
  /** Every execution that there is. */
  readonly all: () => Iterable<FoundExecution>;
  readonly failing: (error: unknown) => void;
}

export class ExecutionRows {
  readonly #directory: string;
  readonly #journal: Journal;

  constructor(directory: string, { all, failing }: RowHooks) {
    this.#directory = directory;
    this.#journal = new Journal(directory, { live: () => textsOf(all()), failing });
  }

  outputPath(id: string, channel: "stdout" | "stderr"): string {
    return join(this.#directory, `${id}.${channel}`);
  }

  /** Writes down an execution that the guest has yet to start. */
  begin(stored: StoredExecution): Promise<void> {
    return this.#append({ begun: stored });
  }

  started(id: string): Promise<void> {
    return this.#append({ started: id });
  }

  /** Replaces what is known of one that has started. */
  keep(stored: StoredExecution): Promise<void> {
    return this.#append({ kept: stored });
  }

  /** For one that is not among all any more. */
  forget(id: string): Promise<void> {
    return this.#append({ forgotten: id });
  }

  /** Gives descriptors back when everything is written. */
  rest(): Promise<void> {
    return this.#journal.rest();
  }

  /** Takes nothing more. Resolves when everything is written. */
  close(): Promise<void> {
    return this.#journal.close();
  }

  /** Everything that is stored. Removes what belongs to nothing: files of a write or a removal that was cut. */
  async load(): Promise<FoundExecution[]> {
    const names = await readdir(this.#directory).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return [];
      throw error;
    });
    const before = await this.#readRowFiles(names);
    const rowFiles = before.map(({ stored, hasStarted }) => stored.id + (hasStarted ? ROW : STARTING_ROW));
    const rows = new Map<unknown, Row>(before.map((row) => [row.stored.id, row]));
    for await (const text of this.#journal.read(names, rowFiles)) apply(rows, text);
    const found = [...rows].flatMap(([id, { stored, hasStarted }]) => {
      const row = checked(stored);
      return row !== null && row.id === id ? [{ stored: row, hasStarted }] : [];
    });
    const known = new Set(rowFiles);
    for (const { stored } of found) known.add(`${stored.id}.stdout`).add(`${stored.id}.stderr`);
    for (const name of names) {
      if (!known.has(name) && !Journal.owns(name)) await rm(join(this.#directory, name), { force: true });
    }
    return found;
  }

  async #readRowFiles(names: readonly string[]): Promise<FoundExecution[]> {
    const found = new Map<string, FoundExecution>();
    for (const ending of [ROW, STARTING_ROW]) {
      const files = names.filter((name) => name.endsWith(ending));
      await atOnce(limits.executionsLoadedAtOnce, files, async (name) => {
        const stored = checked(parse(await readFile(join(this.#directory, name), "utf8")));
        if (stored === null || stored.id + ending !== name || found.has(stored.id)) return;
        found.set(stored.id, { stored, hasStarted: ending === ROW });
      });
    }
    return [...found.values()];
  }

  #append(entry: Entry): Promise<void> {
    return this.#journal.append(JSON.stringify(entry));
  }
}

function* textsOf(executions: Iterable<FoundExecution>): Iterable<string> {
  for (const { stored, hasStarted } of executions) {
    const entry: Entry = hasStarted ? { kept: stored } : { begun: stored };
    yield JSON.stringify(entry);
  }
}

/** A row before anybody has looked whether it makes sense. */
interface Row {
  readonly stored: unknown;
  readonly hasStarted: boolean;
}

/** Does to the rows, by id, what a text of the journal says. */
function apply(rows: Map<unknown, Row>, text: string): void {
  const { begun, started, kept, forgotten } = (parse(text) ?? {}) as Partial<Record<EntryKind, unknown>>;
  const stored = begun ?? kept;
  if (stored) rows.set((stored as { readonly id?: unknown }).id, { stored, hasStarted: kept !== undefined });
  const row = rows.get(started);
  if (row !== undefined) rows.set(started, { ...row, hasStarted: true });
  rows.delete(forgotten);
}

function checked(value: unknown): StoredExecution | null {
  return storedSchema.safeParse(value).data ?? null;
}

/** Null where it was cut while it was written: nobody was answered. */
function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
