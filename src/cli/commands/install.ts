// `fluxctl install` and `fluxctl uninstall`.
import { randomBytes } from "node:crypto";
import { resolve } from "node:path";
import { type Command, EXIT, type Invocation, type OptionSpec, UsageError } from "../command.ts";
import { installSteps, PLACES, type Step, systemdRuns, uninstallSteps } from "../installation.ts";
import { json } from "../json.ts";
import type { Terminal } from "../terminal.ts";
import { TOKEN_BYTES } from "./init.ts";

const rootOption: OptionSpec = { name: "root", value: "DIR", description: "Work below DIR, as for an image." };
const dryRunOption: OptionSpec = { name: "dry-run", description: "Show the steps and take none." };

const install: Command = {
  path: ["install"],
  summary: "Install this program, its directories, a configuration and the systemd unit.",
  details:
    "Run again it upgrades: sandboxes go on, and a configuration that exists stays as it is. Where systemd is\n" +
    "not running the files are installed and nothing is started.",
  arguments: [],
  client: false,
  options: [
    dryRunOption,
    { name: "no-start", description: "Enable the unit without starting it." },
    rootOption,
    { name: "program", value: "FILE", description: "Install this file as the program." },
  ],
  async run(invocation, terminal) {
    const { starterConfig } = await import("../../config/render.ts");
    const root = rootOf(invocation);
    const steps = await installSteps({
      root,
      program: programOf(invocation),
      config: starterConfig(randomBytes(TOKEN_BYTES).toString("base64url"), { "sandbox.procbox.enabled": true }),
      start: !invocation.flag("no-start"),
    });
    const taken = await takeSteps(steps, root, invocation, terminal);
    if (taken && !(await systemdRuns(root))) {
      await terminal.err(
        "systemd is not running here, so nothing was started; by hand: " +
          `${PLACES.program} serve --config ${PLACES.config}\n`,
      );
    }
    return EXIT.success;
  },
};

const uninstall: Command = {
  path: ["uninstall"],
  summary: "Remove the program and the unit; with --purge the configuration and all state too.",
  details:
    "--purge is refused while there are sandboxes. It also gives back what the agent has of the host: what it pinned\n" +
    "on the BPF file system, its claims of uids and addresses, and the nftables table, unless another agent is here.\n" +
    "FLUXVM_BPF_PIN_ROOT names one more place of pins, for when the claims are lost; another agent's is left alone.\n" +
    "It is for the agent that install made; one with a configuration elsewhere is refused.",
  arguments: [],
  client: false,
  options: [dryRunOption, { name: "purge", description: "Also remove configuration and state." }, rootOption],
  async run(invocation, terminal) {
    const root = rootOf(invocation);
    const named = (invocation.text("config") ?? terminal.environment.FLUXVM_CONFIG) || PLACES.config;
    if (invocation.flag("purge") && resolve(named) !== PLACES.config)
      throw new UsageError(`--purge is for what install made, with ${PLACES.config}, and not for what ${named} says`);
    const steps = await uninstallSteps({ root, purge: invocation.flag("purge") });
    await takeSteps(steps, root, invocation, terminal);
    return EXIT.success;
  },
};

function rootOf(invocation: Invocation): string {
  return resolve(invocation.text("root") ?? "/");
}

/** The compiled program itself; from source there is no one file that could be installed. */
function programOf(invocation: Invocation): string {
  const named = invocation.text("program");
  if (named !== undefined) return resolve(named);
  if (!Bun.main.startsWith("/$bunfs/") && !invocation.flag("dry-run"))
    throw new UsageError("run from source, install needs --program FILE");
  return process.execPath;
}

/** Shows each step and, unless it is a dry run, takes it. Answers whether steps were taken. */
async function takeSteps(
  steps: readonly Step[],
  root: string,
  invocation: Invocation,
  terminal: Terminal,
): Promise<boolean> {
  const dryRun = invocation.flag("dry-run");
  if (!dryRun && root === "/" && process.geteuid?.() !== 0) throw new UsageError("this needs root; --dry-run does not");
  const table = invocation.output === "table";
  for (const step of steps) {
    if (table) await terminal.out(`${dryRun ? "would " : ""}${step.text}\n`);
    if (!dryRun) await step.take();
  }
  if (!table) await terminal.out(json({ dry_run: dryRun, steps: steps.map(({ text }) => text) }));
  else if (steps.length === 0) await terminal.out("nothing to do\n");
  return !dryRun;
}

export const installCommands: readonly Command[] = [install, uninstall];
