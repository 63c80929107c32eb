// What is kept of an execution beside its output, as a file of the sandbox's own directory: enough to know it again
// after the agent, the guest or both were replaced.
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { limits } from "../../config/limits.ts";
import type { ExecutionStart, GuestExecution } from "../../contracts/executions.ts";
import { atOnce } from "./at-once.ts";

const VERSION = 2;
export const EXECUTION_ID = /^[A-Za-z0-9_-]{1,64}$/;

/** Ends of the names of files. */
const STORED = ".json";
const STARTING = ".starting";

const unixMs = z.int().nonnegative();

const storedSchema = z.object({
  version: z.literal(VERSION),
  id: z.string().regex(EXECUTION_ID),
  command: z.string().optional(),
  argv: z.array(z.string()).optional(),
  tty: z.boolean(),
  onDisconnect: z.enum(["keep", "kill"]),
  overflow: z.enum(["ring", "block"]),
  /** The run of the sandbox that it belongs to, and the state of the guest within which its offsets mean something. */
  run: z.int(),
  incarnation: z.int(),
  startedAtUnixMs: unixMs,
  end: z
    .object({
      atUnixMs: unixMs,
      exitCode: z.int().nullable(),
      signal: z.int().nullable(),
      timedOut: z.boolean(),
      oomKilled: z.boolean(),
      outputOpen: z.boolean(),
      /** Why it is over without an exit that anybody saw. */
      error: z.string().nullable(),
    })
    .nullable(),
  stdin: z.object({ bytesWritten: z.int().nonnegative(), closed: z.boolean() }),
});

export type StoredExecution = Readonly<z.infer<typeof storedSchema>>;
export type ExecutionEnd = Readonly<NonNullable<StoredExecution["end"]>>;

/** A stored execution of this version from its other fields. */
export function storedExecution(fields: Omit<StoredExecution, "version">): StoredExecution {
  return { version: VERSION, ...fields };
}

/** What can be said of an execution that only the guest knows. */
export function storedFromGuest(
  state: GuestExecution,
  now: Pick<StoredExecution, "run" | "incarnation">,
): StoredExecution {
  const { id, command, argv, tty, startedAtUnixMs, block, stdin } = state;
  return storedExecution({
    id,
    ...(argv === undefined ? { command: command ?? "" } : { argv: [...argv] }),
    tty,
    onDisconnect: "keep",
    overflow: block ? "block" : "ring",
    ...now,
    startedAtUnixMs,
    end: null,
    stdin: { bytesWritten: stdin.accepted, closed: stdin.closed },
  });
}

export function runsTheSame(stored: StoredExecution, { command, argv }: ExecutionStart): boolean {
  return stored.command === command && Bun.deepEquals(stored.argv, argv === undefined ? undefined : [...argv]);
}

/** The end of an execution as the guest tells it. */
export function endFromGuest(state: GuestExecution, startedAtUnixMs: number, nowUnixMs: number): ExecutionEnd {
  const { exitCode, signal, timedOut, oomKilled, outputOpen } = state;
  const claimed = state.exitedAtUnixMs ?? nowUnixMs;
  const isUntold = exitCode === null && signal === null && !timedOut;
  return {
    // The guest's clock counts only where it makes sense, which is when the agent was away at the exit.
    atUnixMs: claimed >= startedAtUnixMs && claimed <= nowUnixMs ? claimed : nowUnixMs,
    exitCode,
    signal,
    timedOut,
    oomKilled,
    outputOpen,
    error: isUntold ? "the guest agent could not tell how the process ended" : null,
  };
}

/** The end of an execution that nobody saw. */
export function endUnseen(error: string, atUnixMs: number): ExecutionEnd {
  return { atUnixMs, exitCode: null, signal: null, timedOut: false, oomKilled: false, outputOpen: false, error };
}

/** One that was found on the disk. */
export interface FoundExecution {
  readonly stored: StoredExecution;
  /** False when it is not known whether the guest was ever asked to start it. */
  readonly hasStarted: boolean;
}

/** The directory of one sandbox's executions. */
export class ExecutionFiles {
  readonly #directory: string;
  #made: Promise<unknown> | null = null;

  constructor(directory: string) {
    this.#directory = directory;
  }

  outputPath(id: string, channel: "stdout" | "stderr"): string {
    return join(this.#directory, `${id}.${channel}`);
  }

  /** Writes an execution that is not there yet, and that the guest has yet to start. */
  async create(stored: StoredExecution): Promise<void> {
    this.#made ??= mkdir(this.#directory, { recursive: true, mode: 0o700 });
    try {
      await this.#made;
    } catch (error) {
      this.#made = null;
      throw error;
    }
    await writeFile(this.#startingPath(stored.id), JSON.stringify(stored), { mode: 0o600 });
  }

  /** The guest has started it. */
  async started(id: string): Promise<void> {
    await rename(this.#startingPath(id), this.#path(id));
  }

  /** Replaces an execution whole or not at all. */
  async replace(stored: StoredExecution): Promise<void> {
    const path = this.#path(stored.id);
    const beside = `${path}.new`;
    await writeFile(beside, JSON.stringify(stored), { mode: 0o600 });
    await rename(beside, path);
  }

  async remove(id: string): Promise<void> {
    await Promise.all([this.#path(id), this.#startingPath(id)].map((path) => rm(path, { force: true })));
  }

  /** Everything that is stored. Removes what belongs to nothing: files of a write or a removal that was cut. */
  async load(): Promise<FoundExecution[]> {
    const names = await readdir(this.#directory).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return [];
      throw error;
    });
    const found = new Map<string, FoundExecution>();
    for (const ending of [STORED, STARTING]) {
      const records = names.filter((name) => name.endsWith(ending));
      await atOnce(limits.executionsLoadedAtOnce, records, async (name) => {
        const stored = parse(await readFile(join(this.#directory, name), "utf8"));
        if (stored === null || stored.id + ending !== name || found.has(stored.id)) return;
        found.set(stored.id, { stored, hasStarted: ending === STORED });
      });
    }
    for (const name of names) {
      const at = name.indexOf(".");
      const one = found.get(name.slice(0, at));
      const endings = [one?.hasStarted === false ? STARTING : STORED, ".stdout", ".stderr"];
      const known = one !== undefined && endings.includes(name.slice(at));
      if (!known) await rm(join(this.#directory, name), { force: true });
    }
    return [...found.values()];
  }

  #path(id: string): string {
    return join(this.#directory, id + STORED);
  }

  #startingPath(id: string): string {
    return join(this.#directory, id + STARTING);
  }
}

function parse(text: string): StoredExecution | null {
  try {
    return storedSchema.parse(JSON.parse(text));
  } catch {
    // Cut while it was first written: the start was never answered.
    return null;
  }
}
