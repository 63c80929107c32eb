// `fluxctl sandbox …` for work inside a sandbox: commands, files, and what a command changed.
import type { ExecResult } from "../../../sdk/typescript/client.ts";
import { sandboxOf, within } from "../agent.ts";
import { changeReport } from "../change-report.ts";
import { type Command, UsageError } from "../command.ts";
import { printable } from "../escape.ts";
import { octalMode } from "../file-names.ts";
import { json } from "../json.ts";
import type { Terminal } from "../terminal.ts";
import { outputBytes } from "../wire.ts";
import { readBytes } from "./create.ts";

const SECONDS_MAX = 366 * 24 * 3600;
const FILE_MAX_BYTES = 64 * 1024 * 1024;
/** The server answers a little after the command's own limit. */
const EXEC_MARGIN_MS = 10_000;
/** Without a limit of its own the server's longest one counts, which only the server knows. */
const EXEC_UNBOUNDED_MS = 24 * 3600 * 1000;
/** A listing may take the server 300 s; a dry-run makes two. */
const LISTING_MS = 310_000;

const timeoutOption = { name: "timeout", value: "SECONDS", description: "Kill the command after this long." } as const;

export const execCommand: Command = {
  path: ["sandbox", "exec"],
  summary: "Run a command and exit with its status.",
  details:
    "One word is a shell command, several are a program and its arguments. A command that outlives its time\n" +
    "limit is killed and gives 124, one that dies of signal n gives 128 + n.",
  arguments: [{ name: "SANDBOX" }, { name: "COMMAND", rest: true }],
  client: true,
  options: [timeoutOption],
  async run(invocation, terminal) {
    const seconds = invocation.integer("timeout", 1, SECONDS_MAX);
    const sandbox = await sandboxOf(invocation, terminal);
    const command =
      invocation.rest.length === 1 ? { command: invocation.rest[0] } : { process: { argv: invocation.rest } };
    const reply = await sandbox.process({ ...command, timeout_seconds: seconds }, within(execTimeoutMs(seconds)));
    if (invocation.output === "json") await terminal.out(json(reply));
    else await writeOutputs(reply, terminal);
    return exitStatus(reply);
  },
};

function execTimeoutMs(seconds: number | undefined): number {
  return seconds === undefined ? EXEC_UNBOUNDED_MS : seconds * 1000 + EXEC_MARGIN_MS;
}

type Outputs = Pick<
  ExecResult,
  "stdout" | "stderr" | "stdout_base64" | "stderr_base64" | "stdout_truncated_bytes" | "stderr_truncated_bytes"
>;

async function writeOutputs(reply: Outputs, terminal: Terminal): Promise<void> {
  await terminal.out(outputBytes(reply.stdout, reply.stdout_base64));
  await terminal.err(outputBytes(reply.stderr, reply.stderr_base64));
  for (const [name, bytes] of [
    ["stdout", reply.stdout_truncated_bytes],
    ["stderr", reply.stderr_truncated_bytes],
  ] as const) {
    if (bytes !== undefined && bytes > 0) await terminal.err(`fluxctl: ${name} is cut, ${bytes} bytes are missing\n`);
  }
}

/** A process can exit with 0 to 255 only; anything else is a failure all the same. */
function exitStatus({ exit_code }: Pick<ExecResult, "exit_code">): number {
  return Number.isInteger(exit_code) && exit_code >= 0 && exit_code <= 255 ? exit_code : 255;
}

/** Accepts a path as `changes` prints it (`/work/a`, from the workspace's root); the route takes it from there. */
function filePath(path: string): string {
  return path.replace(/^\/+/, "");
}

const read: Command = {
  path: ["sandbox", "read"],
  summary: "Write a file of a sandbox to stdout, byte for byte.",
  arguments: [{ name: "SANDBOX" }, { name: "PATH" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const sandbox = await sandboxOf(invocation, terminal);
    const reply = await sandbox.readFile(filePath(invocation.argument("PATH")), within());
    await terminal.out(invocation.output === "json" ? json(reply) : Buffer.from(reply.content_base64, "base64"));
    return 0;
  },
};

const write: Command = {
  path: ["sandbox", "write"],
  summary: "Write a file into a sandbox, from stdin or --from.",
  arguments: [{ name: "SANDBOX" }, { name: "PATH" }],
  client: true,
  options: [
    { name: "from", value: "FILE", description: "Local file to take the contents from." },
    { name: "mode", value: "OCTAL", description: "Permissions, 644 when absent." },
  ],
  async run(invocation, terminal) {
    const mode = octalMode(invocation.text("mode"));
    const from = invocation.text("from");
    const content = from === undefined ? await terminal.input(FILE_MAX_BYTES) : await readBytes(from, FILE_MAX_BYTES);
    const sandbox = await sandboxOf(invocation, terminal);
    const path = filePath(invocation.argument("PATH"));
    const reply = await sandbox.writeFile({ path, content_base64: content.toBase64(), mode }, within());
    if (invocation.output === "json") await terminal.out(json(reply));
    return 0;
  },
};

const baseline: Command = {
  path: ["sandbox", "baseline"],
  summary: "Remember the files as they are now, for `changes` to compare with.",
  arguments: [{ name: "SANDBOX" }, { name: "PATH", rest: true, optional: true }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const sandbox = await sandboxOf(invocation, terminal);
    const reply = await sandbox.baseline(invocation.rest.length === 0 ? ["/"] : invocation.rest, within(LISTING_MS));
    const line = `${reply.files} ${reply.files === 1 ? "file" : "files"} in ${reply.paths.map(printable).join(", ")} (${printable(reply.mode)})\n`;
    await terminal.out(invocation.output === "json" ? json(reply) : line);
    return 0;
  },
};

const changes: Command = {
  path: ["sandbox", "changes"],
  summary: "Show what changed since the baseline: + added, ~ modified, - deleted.",
  arguments: [{ name: "SANDBOX" }, { name: "PATH", rest: true, optional: true }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const sandbox = await sandboxOf(invocation, terminal);
    const request = invocation.rest.length === 0 ? {} : { paths: invocation.rest };
    const reply = await sandbox.changes(request, within(LISTING_MS));
    await terminal.out(invocation.output === "json" ? json(reply) : changeReport(reply, terminal.colour));
    return 0;
  },
};

const dryRun: Command = {
  path: ["sandbox", "dry-run"],
  summary: "Run a command, show what it would change, and keep nothing of it.",
  details: "The output of the command comes first, then its changes. Exits with the command's status.",
  arguments: [{ name: "SANDBOX" }, { name: "COMMAND", rest: true }],
  client: true,
  options: [
    timeoutOption,
    {
      name: "path",
      value: "PATH",
      repeated: true,
      description: "Look for changes here only; a virtual machine needs one.",
    },
  ],
  async run(invocation, terminal) {
    const seconds = invocation.integer("timeout", 1, SECONDS_MAX);
    const paths = invocation.texts("path");
    const sandbox = await sandboxOf(invocation, terminal);
    const reply = await sandbox.dryRun(
      {
        command: shellCommand(invocation.rest),
        timeout_seconds: seconds,
        ...(paths.length === 0 ? {} : { paths }),
      },
      within(execTimeoutMs(seconds) + 2 * LISTING_MS),
    );
    if (invocation.output === "json") {
      await terminal.out(json(reply));
    } else {
      await writeOutputs(reply, terminal);
      await terminal.out(`dry-run: exit status ${reply.exit_code}; nothing was kept. It would have changed:\n`);
      await terminal.out(changeReport(reply.changes, terminal.colour));
    }
    return exitStatus(reply);
  },
};

/** The route takes a shell command only, so several words are quoted for the sandbox's shell. */
function shellCommand(words: readonly string[]): string {
  const [only, ...others] = words;
  if (only !== undefined && others.length === 0) return only;
  return words.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(" ");
}

export const sandboxWorkCommands: readonly Command[] = [execCommand, read, write, baseline, changes, dryRun];
