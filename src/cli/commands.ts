// The table of commands: the one list that parsing, help, completion and the documentation are made from. What a command
// needs beyond the table it loads when it runs, so that the short ones start in a few milliseconds.
import { type Command, EXIT } from "./command.ts";
import { configCommands } from "./commands/config.ts";
import { doctorCommand } from "./commands/doctor.ts";
import { eventsCommand } from "./commands/events.ts";
import { initCommand } from "./commands/init.ts";
import { installCommands } from "./commands/install.ts";
import { machineCommands } from "./commands/machine.ts";
import { networkFabricCommands } from "./commands/network-fabric.ts";
import { networkPolicyCommands } from "./commands/network-policy.ts";
import { networkSetupCommands } from "./commands/network-setup.ts";
import { networkTrafficCommands } from "./commands/network-traffic.ts";
import { pluginCommands } from "./commands/plugin.ts";
import { sandboxCommands } from "./commands/sandbox.ts";
import { sandboxCopyCommands } from "./commands/sandbox-copy.ts";
import { sandboxExecutionCommands } from "./commands/sandbox-executions.ts";
import { sandboxFileCommands } from "./commands/sandbox-files.ts";
import { sandboxPortCommands } from "./commands/sandbox-ports.ts";
import { sandboxSessionCommands } from "./commands/sandbox-session.ts";
import { sandboxWorkCommands } from "./commands/sandbox-work.ts";
import { poolCommands } from "./commands/pool.ts";
import { serveCommand } from "./commands/serve.ts";
import { templateCommands } from "./commands/template.ts";
import { versionCommand } from "./commands/version.ts";
import { completionScript, SHELLS, type Shell } from "./completion.ts";
import { helpText } from "./help.ts";

const completion: Command = {
  path: ["completion"],
  summary: "Print the completion script of a shell.",
  arguments: [{ name: "SHELL", choices: SHELLS }],
  client: false,
  options: [],
  async run(invocation, terminal) {
    await terminal.out(completionScript(invocation.argument("SHELL") as Shell, commands));
    return EXIT.success;
  },
};

const help: Command = {
  path: ["help"],
  summary: "Show help, also for one command.",
  arguments: [{ name: "COMMAND", rest: true, optional: true }],
  client: false,
  options: [],
  async run(invocation, terminal) {
    await terminal.out(helpText(commands, invocation.rest));
    return EXIT.success;
  },
};

export const commands: readonly Command[] = [
  serveCommand,
  initCommand,
  ...installCommands,
  doctorCommand,
  ...sandboxCommands,
  ...sandboxWorkCommands,
  ...sandboxSessionCommands,
  ...sandboxExecutionCommands,
  ...sandboxFileCommands,
  ...sandboxCopyCommands,
  ...sandboxPortCommands,
  ...machineCommands,
  eventsCommand,
  ...networkPolicyCommands,
  ...networkTrafficCommands,
  ...networkFabricCommands,
  ...networkSetupCommands,
  ...templateCommands,
  ...poolCommands,
  ...configCommands,
  ...pluginCommands,
  versionCommand,
  completion,
  help,
];
