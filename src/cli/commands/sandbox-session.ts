// `fluxctl sandbox run`, `shell` and `attach`: commands that one talks to while they run.
import type { Execution, Sandbox, StartRequest } from "../../../sdk/typescript/client.ts";
import { ApiError, UnreachableError } from "../../../sdk/typescript/errors.ts";
import { sandboxOf, within } from "../agent.ts";
import { type Command, type Invocation, type OptionSpec, UsageError } from "../command.ts";
import { environmentFrom, environmentOption } from "../environment.ts";
import { ESCAPE_HELP, EscapeKeys } from "../escape-keys.ts";
import type { SignalName, Size } from "../keyboard.ts";
import { Session, type SessionOptions } from "../session.ts";
import type { Terminal } from "../terminal.ts";

const SECONDS_MAX = 366 * 24 * 3600;
/** As of a shell that Ctrl-C ended, and of ssh when it lost its far side. */
const STATUS = { interrupted: 130, left: 255 } as const;
/** So many Ctrl-C mean that the command does not care. */
const INTERRUPTS_TO_LEAVE = 3;
/** What a shell gets to end after its terminal is gone, and how long leaving may take at all. */
const HANG_UP_MS = 1000;
const LEAVING_MS = 5000;
const SHELL = "command -v bash >/dev/null 2>&1 && exec bash; exec sh";

const placeOptions: readonly OptionSpec[] = [
  environmentOption("Environment variable"),
  { name: "cwd", value: "PATH", description: "Directory to run in." },
];

const run: Command = {
  path: ["sandbox", "run"],
  summary: "Run a command with stdin and live output, and exit with its status.",
  details:
    "One word is a shell command, several are a program and its arguments. Ctrl-C and other signals go to the\n" +
    "command; the third Ctrl-C kills it and leaves. A cut connection or a restart of the agent is passed over.\n" +
    "With `-o json` each piece of output is one line of JSON.",
  arguments: [{ name: "SANDBOX" }, { name: "COMMAND", rest: true }],
  client: true,
  options: [
    ...placeOptions,
    { name: "timeout", value: "SECONDS", description: "Kill the command after this long; the status is 124." },
    { name: "no-stdin", description: "Leave stdin alone, as in a loop that reads it; the command has none." },
  ],
  async run(invocation, terminal) {
    const hasInput = !invocation.flag("no-stdin");
    const [only, ...others] = invocation.rest;
    const request = {
      ...(others.length === 0 ? { command: only } : { argv: invocation.rest }),
      ...placeOf(invocation, terminal),
      stdin: hasInput,
      timeout_seconds: invocation.integer("timeout", 1, SECONDS_MAX),
    };
    const options = { isJson: invocation.output === "json", input: hasInput ? "piped" : "none" } as const;
    const sandbox = await sandboxOf(invocation, terminal);
    return onPipes(terminal, options, startOn(sandbox, request, "kill"));
  },
};

export const shellCommand: Command = {
  path: ["sandbox", "shell"],
  summary: "Open a terminal in a sandbox.",
  details:
    "Runs a shell, or the command that follows, on a terminal of its own. At the beginning of a line, `~.` leaves and\n" +
    "ends it, `~?` tells the keys, `~~` is one tilde. A cut connection or a restart of the agent is passed over; when\n" +
    "this program is killed or the agent stays away, the shell goes on, and `sandbox attach` finds it. Exits with the\n" +
    "status of the shell, or 255 when it was left. Where stdin or stdout is no terminal, the shell has none either and\n" +
    "reads stdin. A sandbox whose guest has no terminals answers CAPABILITY_MISSING; `sandbox run` works there too.",
  arguments: [{ name: "SANDBOX" }, { name: "COMMAND", rest: true, optional: true }],
  client: true,
  options: placeOptions,
  async run(invocation, terminal) {
    const size = terminal.keyboard.size();
    const place = placeOf(invocation, terminal);
    const [only = SHELL, ...others] = invocation.rest;
    const request = {
      ...(others.length === 0 ? { command: only } : { argv: invocation.rest }),
      ...place,
      stdin: true,
    };
    const sandbox = await sandboxOf(invocation, terminal);
    if (size === null) return onPipes(terminal, { input: "piped" }, startOn(sandbox, request, "hang-up"));
    const env = { TERM: terminal.environment.TERM ?? "xterm", ...place.env };
    return onTerminal(terminal, size, startOn(sandbox, { ...request, env, tty: size }, "hang-up"));
  },
};

const attach: Command = {
  path: ["sandbox", "attach"],
  summary: "Show what an execution wrote and writes, and talk to it.",
  details:
    "Begins with the output that is kept. An execution on a terminal gets this one, as with `sandbox shell`, but `~.`\n" +
    "leaves it running; any other gets stdin and signals as with `sandbox run`, and the third Ctrl-C leaves it running.\n" +
    "Exits with its status, or 255 (130 after Ctrl-C) when it was left.",
  arguments: [{ name: "SANDBOX" }, { name: "EXECUTION" }],
  client: true,
  options: [{ name: "no-stdin", description: "Leave stdin and signals alone." }],
  async run(invocation, terminal) {
    const { executions } = await sandboxOf(invocation, terminal);
    const id = invocation.argument("EXECUTION");
    const { tty, status, stdin } = await executions.get(id).wait(0, within());
    const far: Far = {
      begin: async (signal) => executions.get(id, { signal }),
      end: async () => {},
      takesSignals: !invocation.flag("no-stdin"),
    };
    const size = terminal.keyboard.size();
    const hasInput = status === "running" && !stdin.closed && !invocation.flag("no-stdin");
    if (tty && hasInput && size !== null) {
      return onTerminal(terminal, size, {
        ...far,
        begin: async (signal) => {
          const execution = executions.get(id, { signal });
          // It may have ended a moment ago, which its exit says.
          await execution.resize(size.cols, size.rows).catch(() => {});
          return execution;
        },
      });
    }
    // A terminal has no end that could be sent.
    const input = !hasInput ? "none" : tty ? "typed" : "piped";
    return onPipes(terminal, { isJson: invocation.output === "json", input }, far);
  },
};

/** What is talked to. */
interface Far {
  /** Rejects with `ApiError` or `UnreachableError`; calls of what it gives end with the signal. */
  readonly begin: (signal: AbortSignal) => Promise<Execution>;
  /** It is left, and goes on only when it is meant to. Never rejects. */
  readonly end: () => Promise<void>;
  /** Otherwise each of them leaves. */
  readonly takesSignals: boolean;
}

/** A command that belongs to this program: it ends when it is left, at once or as a shell whose terminal is gone. */
function startOn(sandbox: Sandbox, request: StartRequest, farewell: "kill" | "hang-up"): Far {
  // Known before it is begun, so that it can be ended although its start was not heard of.
  const id = crypto.randomUUID();
  return {
    takesSignals: true,
    begin: (signal) => sandbox.executions.start({ ...request, id }, { signal }),
    end: async () => {
      const options = within(LEAVING_MS);
      const execution = sandbox.executions.get(id, options);
      try {
        if (farewell === "hang-up") {
          await execution.signal("HUP", options);
          const { status } = await execution.wait(HANG_UP_MS, options);
          if (status === "exited") return;
        }
        await execution.signal("KILL", options);
      } catch (error) {
        // It has ended, or the agent is away, and then nothing more can be done from here.
        if (!(error instanceof ApiError || error instanceof UnreachableError)) throw error;
      }
    },
  };
}

/** Talks to it through pipes, as far as this end is concerned. Answers the exit status. */
async function onPipes(terminal: Terminal, options: SessionOptions, far: Far): Promise<number> {
  const session = new Session(terminal, options);
  let execution: Execution | null = null;
  let interrupts = 0;
  using _ = terminal.keyboard.onSignal((name) => {
    if (name === "INT") interrupts += 1;
    if (execution === null || !far.takesSignals || interrupts >= INTERRUPTS_TO_LEAVE) session.leave();
    else void send(execution, name);
  });
  let status: number | null;
  try {
    execution = await far.begin(session.signal);
    status = await session.run(execution);
  } catch (error) {
    if (!session.signal.aborted || execution !== null) throw error;
    status = null;
  }
  if (status === null) await far.end();
  return status ?? STATUS.interrupted;
}

/** Talks to it on this terminal, which is as it was before when this is over. Answers the exit status. */
async function onTerminal(terminal: Terminal, size: Size, far: Far): Promise<number> {
  const { keyboard } = terminal;
  const keys = new EscapeKeys();
  const session = new Session(terminal, {
    input: "typed",
    filter: (piece) => {
      const { bytes, isLeaving, wantsHelp } = keys.take(piece);
      if (wantsHelp) void terminal.err(`\r\n${ESCAPE_HELP.replaceAll("\n", "\r\n")}`).catch(() => {});
      return isLeaving ? null : bytes;
    },
  });
  using _signals = keyboard.onSignal(() => session.leave());
  let status: number | null = null;
  let execution: Execution | null = null;
  try {
    execution = await far.begin(session.signal);
    using _sizes = keyboard.onResize(() => {
      const { cols, rows } = keyboard.size() ?? size;
      // It may have ended a moment ago.
      execution?.resize(cols, rows).catch(() => {});
    });
    keyboard.setRaw(true);
    try {
      status = await session.run(execution);
    } finally {
      keyboard.setRaw(false);
    }
  } catch (error) {
    if (!session.signal.aborted || execution !== null) throw error;
  }
  if (status !== null) return status;
  await far.end();
  await terminal.err("\nfluxctl: left\n");
  return STATUS.left;
}

/** The command may have ended a moment ago, which its exit says. */
async function send(execution: Execution, name: SignalName): Promise<void> {
  await execution.signal(name).catch(() => {});
}

function placeOf(invocation: Invocation, terminal: Terminal): Pick<StartRequest, "env" | "cwd"> {
  return { env: environmentFrom(invocation, terminal), cwd: invocation.text("cwd") };
}

export const sandboxSessionCommands: readonly Command[] = [run, shellCommand, attach];
