// `fluxctl sandbox ps`, `logs`, `signal` and `kill`: executions that somebody started.
import type { ExecutionState } from "../../../sdk/typescript/client.ts";
import { sandboxOf, within } from "../agent.ts";
import { type Command, EXIT } from "../command.ts";
import { json } from "../json.ts";
import { exitStatus, Output } from "../output.ts";
import { table } from "../table.ts";

const ps: Command = {
  path: ["sandbox", "ps"],
  summary: "List the executions of a sandbox, by their start.",
  details: "Those that ended are kept for a while. What `sandbox exec` and `dry-run` run is not among them.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [{ name: "running", description: "Only those that run." }],
  async run(invocation, terminal) {
    const { executions } = await sandboxOf(invocation, terminal);
    const all = await executions.list(within());
    const items = invocation.flag("running") ? all.filter(({ status }) => status === "running") : all;
    await terminal.out(invocation.output === "json" ? json({ items }) : executionTable(items));
    return EXIT.success;
  },
};

function executionTable(items: readonly ExecutionState[]): string {
  const rows = items.map((it) => [
    it.id,
    statusOf(it),
    it.started_at,
    String(it.stdout_len + it.stderr_len),
    it.tty ? "yes" : "no",
    it.command ?? it.argv?.join(" ") ?? "",
  ]);
  return table(["ID", "STATUS", "STARTED", "OUTPUT", "TTY", "COMMAND"], rows);
}

function statusOf({ status, exit_code, signal, timed_out, oom_killed, error }: ExecutionState): string {
  if (status === "running") return "running";
  if (error !== null) return `lost: ${error}`;
  if (timed_out) return "timed out";
  if (oom_killed) return "out of memory";
  return signal === null ? `exited ${exit_code}` : `signal ${signal}`;
}

const logs: Command = {
  path: ["sandbox", "logs"],
  summary: "Write what an execution has written and is kept.",
  details:
    "Its stdout and stderr go to stdout and stderr, byte for byte. With `--follow` it goes on to its end, and exits with\n" +
    "the status of the execution. With `-o json` each piece of output is one line of JSON.",
  arguments: [{ name: "SANDBOX" }, { name: "EXECUTION" }],
  client: true,
  options: [{ name: "follow", short: "f", description: "Go on until the execution ends." }],
  async run(invocation, terminal) {
    const { executions } = await sandboxOf(invocation, terminal);
    const isFollowing = invocation.flag("follow");
    const execution = executions.get(invocation.argument("EXECUTION"));
    const output = new Output(terminal, invocation.output === "json");
    const { stdout_len, stderr_len, status } = await execution.wait(0, within());
    const isUpToDate = (): boolean => {
      const { stdout, stderr, pty } = output.ends;
      return stdout + pty >= stdout_len && stderr >= stderr_len;
    };
    if (!isFollowing && status === "running" && isUpToDate()) return EXIT.success;
    for await (const frame of execution.frames()) {
      await output.show(frame);
      if (frame.type === "exited") return isFollowing ? exitStatus(frame) : EXIT.success;
      if (!isFollowing && status === "running" && isUpToDate()) break;
    }
    return EXIT.success;
  },
};

const signal: Command = {
  path: ["sandbox", "signal"],
  summary: "Send a signal to the process group of an execution.",
  arguments: [{ name: "SANDBOX" }, { name: "EXECUTION" }, { name: "SIGNAL" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { executions } = await sandboxOf(invocation, terminal);
    const word = invocation.argument("SIGNAL");
    const name = /^\d+$/.test(word) ? Number(word) : word.toUpperCase();
    const state = await executions.get(invocation.argument("EXECUTION")).signal(name, within());
    if (invocation.output === "json") await terminal.out(json(state));
    return EXIT.success;
  },
};

const kill: Command = {
  path: ["sandbox", "kill"],
  summary: "Kill executions, and print the id of each that was killed.",
  details: "Sends the signal KILL to the process group of each.",
  arguments: [{ name: "SANDBOX" }, { name: "EXECUTION", rest: true }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { executions } = await sandboxOf(invocation, terminal);
    const items: ExecutionState[] = [];
    for (const id of invocation.rest) {
      items.push(await executions.get(id).signal("KILL", within()));
      if (invocation.output === "table") await terminal.out(`${id}\n`);
    }
    if (invocation.output === "json") await terminal.out(json({ items }));
    return EXIT.success;
  },
};

export const sandboxExecutionCommands: readonly Command[] = [ps, logs, signal, kill];
