// The commands that people of virtual machines type: the words of `fluxctl sandbox …` alone, and a machine's console.
import { sandboxOf, within } from "../agent.ts";
import { type Command, EXIT, UsageError } from "../command.ts";
import { json } from "../json.ts";
import { machineCreate } from "./create.ts";
import { getCommand, recordCommands } from "./sandbox.ts";
import { shellCommand } from "./sandbox-session.ts";
import { execCommand } from "./sandbox-work.ts";
import { snapshotCommands } from "./snapshot.ts";

const LINES_MAX = 10_000;

const logs: Command = {
  path: ["logs"],
  summary: "Show what the console of a sandbox wrote.",
  details:
    "Writes the bytes as they are. With -f it goes on until the sandbox is deleted, or Ctrl-C; with `-o json` it shows the\n" +
    "sandbox's status too. What a command wrote is told by `sandbox logs`.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [
    { name: "follow", short: "f", description: "Go on with what is written later." },
    { name: "lines", value: "COUNT", description: "The last lines that are shown; 100 when absent." },
  ],
  async run(invocation, terminal) {
    const follow = invocation.flag("follow");
    const lines = invocation.integer("lines", 0, LINES_MAX);
    const isJson = invocation.output === "json";
    if (follow && isJson) throw new UsageError("--follow writes bytes, so it does not go together with -o json");
    const sandbox = await sandboxOf(invocation, terminal);
    if (isJson) {
      await terminal.out(json(await sandbox.logs({ ...within(), lines })));
      return EXIT.success;
    }
    const { signal } = within();
    for await (const piece of sandbox.consoleLog(follow ? { lines, follow } : { lines, signal })) {
      await terminal.out(piece);
    }
    return EXIT.success;
  },
};

export const machineCommands: readonly Command[] = [
  machineCreate,
  ...recordCommands([]),
  getCommand,
  { ...execCommand, path: ["exec"] },
  { ...shellCommand, path: ["console"] },
  logs,
  ...snapshotCommands,
];
