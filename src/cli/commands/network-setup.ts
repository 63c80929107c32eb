// `fluxctl network enable` and `fluxctl network disable`: the part of the configuration file that says what sandboxes may
// reach, put in from a profile and taken out again.
import { realpath } from "node:fs/promises";
import type { EditedLine } from "../../config/network-block.ts";
import type { Config } from "../../config/schema.ts";
import type { CheckReport } from "../../doctor/doctor.ts";
import { type Command, EXIT, type Invocation, type OptionSpec, UsageError } from "../command.ts";
import type { FileToEdit } from "../file-edit.ts";
import type { Step } from "../installation.ts";
import { json } from "../json.ts";
import { PROFILES, type Profile, profileText } from "../network-profiles.ts";
import type { Terminal } from "../terminal.ts";

/** What is kept of the file as it was before this command changed it. */
const COPY_SUFFIX = ".bak-pre-ga";

const dryRunOption: OptionSpec = { name: "dry-run", description: "Show what would change, and change nothing." };
const restartOption: OptionSpec = {
  name: "restart",
  description: "Restart the agent's unit and wait until it answers.",
};

const enable: Command = {
  path: ["network", "enable"],
  summary: "Put a profile of what sandboxes may reach into the configuration.",
  details:
    "ga and prod let sandboxes reach web servers in private networks, within limits, and refuse a sandbox where that\n" +
    "cannot be enforced; lab falls back to nftables. The lines of the profile are a block of their own. What the file\n" +
    "itself says of the dataplane stays, such as pin_root; what the profile says as well becomes a comment, and is named\n" +
    "where it says otherwise. The file as it was is kept beside it as FILE.bak-pre-ga.",
  arguments: [],
  client: false,
  options: [
    { name: "profile", value: "PROFILE", choices: PROFILES, description: "What sandboxes may reach." },
    { name: "cilium", description: "Enforce beside Cilium, whose agent must run here." },
    restartOption,
    dryRunOption,
    { name: "skip-preflight", description: "Do not look first whether this host can enforce it." },
  ],
  async run(invocation, terminal) {
    const profile = invocation.text("profile") as Profile | undefined;
    if (profile === undefined) throw new UsageError(`network enable needs --profile, one of: ${PROFILES.join(", ")}`);
    const body = profileText(profile, invocation.flag("cilium"));
    const { overruled, withBlock } = await import("../../config/network-block.ts");
    return await edit(invocation, terminal, {
      edited: (source, file) => withBlock(source, body, `profile ${profile}`, file),
      overruled: (source, file) => overruled(source, body, file),
      preflight: (config) => (invocation.flag("skip-preflight") ? Promise.resolve() : preflight(config, terminal)),
      after: () => Promise.resolve(false),
    });
  },
};

const disable: Command = {
  path: ["network", "disable"],
  summary: "Take the profile out of the configuration, and the agent's nftables table off the host.",
  details:
    "Lines that enable made comments of are as they were. Refused while sandboxes have interfaces on this host. An agent\n" +
    "that runs may make the table again: end or restart it, and then disable once more.",
  arguments: [],
  client: false,
  options: [restartOption, dryRunOption],
  async run(invocation, terminal) {
    const { withoutBlock } = await import("../../config/network-block.ts");
    return await edit(invocation, terminal, {
      edited: withoutBlock,
      overruled: () => [],
      preflight: refuseWithInterfaces,
      after: dropTable,
    });
  },
};

interface Edit {
  edited(source: string, file: string): readonly EditedLine[];
  /** Names of what is switched off for it and said otherwise. */
  overruled(source: string, file: string): readonly string[];
  /** Rejects with what stands in the way. */
  preflight(config: Config): Promise<void>;
  /** What is not the file's; answers whether the host's table was removed. */
  after(): Promise<boolean>;
}

async function edit(invocation: Invocation, terminal: Terminal, how: Edit): Promise<number> {
  const { edited, overruled, preflight, after } = how;
  const [{ configPath, parseConfig }, { limits }, block, files] = await Promise.all([
    import("../../config/load.ts"),
    import("../../config/limits.ts"),
    import("../../config/network-block.ts"),
    import("../file-edit.ts"),
  ]);
  const named = await configPath(invocation.text("config"), terminal.environment);
  if (named === null) throw new UsageError("there is no configuration file; fluxctl init writes one");
  const steps = invocation.flag("restart") ? await restart(named) : [];
  const file = await files.openForEdit(named, limits.configFileMaxBytes);
  const lines = edited(file.text, named);
  const text = block.textOf(lines);
  const config = parseConfig(text, named);
  await preflight(config);
  const isSame = text === file.text;
  const difference = isSame ? "" : block.differenceOf(lines);
  let tableRemoved = false;
  if (!invocation.flag("dry-run")) {
    if (!isSame) await write(file, text, block.hasBlock(file.text, named), files);
    for (const step of steps) await step.take();
    tableRemoved = await after();
  }
  const report: Report = {
    path: named,
    changed: !isSame,
    dry_run: invocation.flag("dry-run"),
    difference,
    overruled: overruled(file.text, named),
    table_removed: tableRemoved,
  };
  await terminal.out(invocation.output === "json" ? json(report) : told(report, steps.length > 0));
  return EXIT.success;
}

/** The copy is of the file without our block: a second profile does not overwrite what was there before the first. */
async function write(
  file: FileToEdit,
  text: string,
  hadBlock: boolean,
  { keepCopy, replaceText }: typeof import("../file-edit.ts"),
): Promise<void> {
  const copy = file.path + COPY_SUFFIX;
  if (!hadBlock || !(await Bun.file(copy).exists())) await keepCopy(file, copy);
  await replaceText(file, text);
}

async function restart(config: string): Promise<readonly Step[]> {
  const { PLACES, restartSteps, systemdRuns } = await import("../installation.ts");
  // The unit would come back with the same configuration as before, and look as if it had taken the new one.
  if (!(await isSameFile(config, PLACES.config)))
    throw new UsageError(`the service reads ${PLACES.config}: restart what reads ${config} without --restart`);
  if (!(await systemdRuns("/")))
    throw new UsageError("systemd is not running here: restart the agent without --restart");
  return restartSteps(config);
}

async function isSameFile(...paths: readonly [string, string]): Promise<boolean> {
  const [one, other] = await Promise.all(paths.map((path) => realpath(path).catch(() => path)));
  return one === other;
}

interface Report {
  readonly path: string;
  readonly changed: boolean;
  readonly dry_run: boolean;
  readonly difference: string;
  /** What the file itself says, and the profile otherwise. */
  readonly overruled: readonly string[];
  readonly table_removed: boolean;
}

function told(report: Report, isRestarted: boolean): string {
  const { path, changed, dry_run: isDryRun, difference, overruled, table_removed: isTableRemoved } = report;
  const again = isRestarted ? "" : "; an agent that began with the profile makes it again until it is restarted";
  const table = isTableRemoved ? `the host's nftables table is removed${again}\n` : "";
  const off = overruled.length === 0 ? "" : `off, because the profile says otherwise: ${overruled.join(", ")}\n`;
  if (!changed) return `${path} says so already\n${off}${table}`;
  if (isDryRun) return `${path} would change:\n${difference}${off}`;
  const next = isRestarted ? "" : "the agent does so after its next start\n";
  return `${path} is changed:\n${difference}${off}${next}${table}`;
}

/** Checks that this host can enforce the profile, and says what cannot be had without being in the way. */
async function preflight(config: Config, terminal: Terminal): Promise<void> {
  const { examineThisHost } = await import("../examination.ts");
  const isAbout = ({ id }: CheckReport): boolean => id === "native_files" || id.startsWith("network_");
  const faults = (await examineThisHost(config)).filter(
    (report) => isAbout(report) && (report.state === "failed" || report.state === "warning"),
  );
  if (faults.length === 0) return;
  const lines = faults.map(({ title, found, remedy }) => `${title}: ${found}${remedy === null ? "" : ` → ${remedy}`}`);
  if (config.sandbox.dataplane.required === false) {
    for (const line of lines) await terminal.err(`warning: ${line}\n`);
    return;
  }
  throw new Error(`this host cannot enforce it; --skip-preflight changes the file all the same: ${lines.join("; ")}`);
}

/** Without the table, what interfaces of sandboxes let through would be up to whatever else is on this host. */
async function refuseWithInterfaces(config: Config): Promise<void> {
  const { ANOTHER_NAMESPACE, interfacesOfSandboxes } = await import("../../doctor/network-checks.ts");
  const { thisHost } = await import("../../doctor/doctor.ts");
  const host = thisHost({ config, plugins: [], landlockAbi: null, hostTable: null, sandboxIds: null });
  const found = await interfacesOfSandboxes(host);
  if (found === null) {
    throw new Error(
      `${ANOTHER_NAMESPACE}, so nobody knows whether sandboxes have some here; mount its own sysfs at /sys`,
    );
  }
  if (found.length === 0) return;
  const names = found.map(({ name }) => name).join(", ");
  throw new Error(`sandboxes have interfaces on this host (${names}); stop or delete them first`);
}

async function dropTable(): Promise<boolean> {
  const { dropHostTable, hostTable } = await import("../host.ts");
  if (["absent", null].includes(await hostTable())) return false;
  await dropHostTable();
  return true;
}

export const networkSetupCommands: readonly Command[] = [enable, disable];
