// `fluxctl sandbox run` and `fluxctl sandbox shell`: commands that one talks to while they run.
import type { Execution, StartRequest } from "../../../sdk/typescript/execution.ts";
import { sandboxOf } from "../agent.ts";
import { type Command, type Invocation, type OptionSpec, UsageError } from "../command.ts";
import { EscapeKeys } from "../escape-keys.ts";
import type { SignalName } from "../keyboard.ts";
import { Session } from "../session.ts";
import type { Terminal } from "../terminal.ts";

const SECONDS_MAX = 366 * 24 * 3600;
/** As of a shell that Ctrl-C ended, and of ssh when it lost its far side. */
const STATUS = { interrupted: 130, left: 255 } as const;
/** So many Ctrl-C mean that the command does not care. */
const INTERRUPTS_TO_LEAVE = 3;
const SHELL = "command -v bash >/dev/null 2>&1 && exec bash; exec sh";

const placeOptions: readonly OptionSpec[] = [
  { name: "env", value: "NAME=VALUE", repeated: true, description: "Environment variable." },
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
    const session = new Session(terminal, {
      isJson: invocation.output === "json",
      input: hasInput ? "piped" : "none",
    });
    const [only, ...others] = invocation.rest;
    const request = {
      ...(others.length === 0 ? { command: only } : { argv: invocation.rest }),
      ...placeOf(invocation),
      stdin: hasInput,
      timeout_seconds: invocation.integer("timeout", 1, SECONDS_MAX),
    };
    let execution: Execution | null = null;
    let interrupts = 0;
    using _ = terminal.keyboard.onSignal((name) => {
      if (name === "INT") interrupts += 1;
      if (execution === null || interrupts >= INTERRUPTS_TO_LEAVE) {
        void send(execution, "KILL").then(() => session.leave());
      } else {
        void send(execution, name);
      }
    });
    try {
      execution = await start(invocation, terminal, session, request);
    } catch (error) {
      if (session.signal.aborted) return STATUS.interrupted;
      throw error;
    }
    return (await session.run(execution)) ?? STATUS.interrupted;
  },
};

const shell: Command = {
  path: ["sandbox", "shell"],
  summary: "Open a terminal in a sandbox.",
  details:
    "Runs a shell, or the command that follows, on a terminal of its own. `~.` at the beginning of a line leaves\n" +
    "and ends it, `~~` is one tilde. Exits with the status of the shell, or 255 when it was left. A sandbox whose\n" +
    "guest has no terminals answers CAPABILITY_MISSING; `sandbox run` works there too.",
  arguments: [{ name: "SANDBOX" }, { name: "COMMAND", rest: true, optional: true }],
  client: true,
  options: placeOptions,
  async run(invocation, terminal) {
    const { keyboard } = terminal;
    const size = keyboard.size();
    if (size === null) throw new UsageError("sandbox shell needs a terminal; for pipes there is sandbox run");
    const keys = new EscapeKeys();
    const session = new Session(terminal, {
      input: "typed",
      filter: (piece) => {
        const { bytes, isLeaving } = keys.take(piece);
        return isLeaving ? null : bytes;
      },
    });
    const place = placeOf(invocation);
    const [only = SHELL, ...others] = invocation.rest;
    const execution = await start(invocation, terminal, session, {
      ...(others.length === 0 ? { command: only } : { argv: invocation.rest }),
      ...place,
      env: { TERM: terminal.environment.TERM ?? "xterm", ...place.env },
      tty: size,
      stdin: true,
      on_disconnect: "kill",
    });
    using _signals = keyboard.onSignal(() => session.leave());
    using _sizes = keyboard.onResize(() => {
      const { cols, rows } = keyboard.size() ?? size;
      // It may have ended a moment ago.
      execution.resize(cols, rows).catch(() => {});
    });
    keyboard.setRaw(true);
    let status: number | null;
    try {
      status = await session.run(execution);
    } finally {
      keyboard.setRaw(false);
    }
    if (status === null) await terminal.err("\nfluxctl: left\n");
    return status ?? STATUS.left;
  },
};

async function start(
  invocation: Invocation,
  terminal: Terminal,
  { signal }: Session,
  request: StartRequest,
): Promise<Execution> {
  return (await sandboxOf(invocation, terminal)).executions.start(request, { signal });
}

/** The command may have ended a moment ago, which its exit says. */
async function send(execution: Execution | null, name: SignalName | "KILL"): Promise<void> {
  await execution?.signal(name).catch(() => {});
}

function placeOf(invocation: Invocation): Pick<StartRequest, "env" | "cwd"> {
  const env = Object.fromEntries(
    invocation.texts("env").map((pair) => {
      const at = pair.indexOf("=");
      if (at < 1) throw new UsageError("--env takes NAME=VALUE");
      return [pair.slice(0, at), pair.slice(at + 1)];
    }),
  );
  return { env, cwd: invocation.text("cwd") };
}

export const sandboxSessionCommands: readonly Command[] = [run, shell];
