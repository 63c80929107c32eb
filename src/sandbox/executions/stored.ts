// What is kept of an execution beside its output: enough to know it again after the agent, the guest or both were
// replaced.
import { z } from "zod";
import type { ExecutionStart, GuestExecution } from "../../contracts/executions.ts";

const VERSION = 2;
export const EXECUTION_ID = /^[A-Za-z0-9_-]{1,64}$/;

const unixMs = z.int().nonnegative();

export const storedSchema = z.object({
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
