// `fluxctl plugin …`: what plugins there are on this host, what they may import, and whether one keeps its contract.
import type { CaseResult } from "../../conformance/case.ts";
import type { PluginReport } from "../../registry/report.ts";
import { pluginTypesText } from "../../registry/types.ts";
import { silentLog } from "../../telemetry/silent-log.ts";
import { type Command, EXIT } from "../command.ts";
import { printable } from "../escape.ts";
import { json } from "../json.ts";
import { table } from "../table.ts";
import type { Terminal } from "../terminal.ts";

const list: Command = {
  path: ["plugin", "list"],
  summary: "List the plugins of this host: usable, skipped or failed, and why.",
  details:
    "Asks each plugin about this host without starting any; a running agent shows what it loaded in\n`GET /v1/host/plugins`.",
  arguments: [],
  client: false,
  options: [],
  async run(invocation, terminal) {
    const [{ loadConfig }, { probeHost, withHostFacts }] = await Promise.all([
      import("../../config/load.ts"),
      import("../host.ts"),
    ]);
    const { config } = await loadConfig(invocation.text("config"), terminal.environment);
    const reports = await withHostFacts(config, (facts) => probeHost(config, facts));
    await terminal.out(invocation.output === "json" ? json({ items: reports }) : listTable(reports));
    return EXIT.success;
  },
};

function listTable(reports: readonly PluginReport[]): string {
  const rows = reports.map(({ kind, id, state, source, summary, fault, missing }) => {
    const why = fault ?? missing.map(({ reason }) => reason).join("; ");
    return [kind ?? "", id, state, source, why === "" || state === "usable" ? summary : why];
  });
  return table(["KIND", "ID", "STATE", "SOURCE", "ABOUT"], rows);
}

const types: Command = {
  path: ["plugin", "types"],
  summary: "Print the TypeScript declarations of fluxvm/plugin, for plugin authors.",
  arguments: [],
  client: false,
  options: [],
  async run(_invocation, terminal) {
    await terminal.out(pluginTypesText);
    return EXIT.success;
  },
};

const test: Command = {
  path: ["plugin", "test"],
  summary: "Run the conformance suite of a plugin file on this host.",
  details:
    "Runs the file as this user, in directories of its own. Exits with 1 when a case fails, or when none could run.",
  arguments: [{ name: "FILE" }],
  client: false,
  options: [],
  async run(invocation, terminal) {
    const [
      { loadConfig },
      { withHostFacts },
      { withHostGuest },
      { runConformance },
      { importPluginFile },
      { createGuestConnector },
    ] = await Promise.all([
      import("../../config/load.ts"),
      import("../host.ts"),
      import("../../conformance/host-guest.ts"),
      import("../../conformance/run.ts"),
      import("../../registry/external.ts"),
      import("../../guest/connector.ts"),
    ]);
    const { config } = await loadConfig(invocation.text("config"), terminal.environment);
    const { definition, conformance } = await importPluginFile(invocation.argument("FILE"));
    const guest = createGuestConnector();
    const human = invocation.output === "table";
    const printed: Promise<void>[] = [];
    const report = await withHostFacts(config, (host) => {
      const run = (hostGuest?: Parameters<typeof runConformance>[1]["hostGuest"]) =>
        runConformance(definition, {
          host,
          guest,
          log: silentLog,
          fixture: conformance,
          hostGuest,
          onResult: (result) => void (human && printed.push(terminal.out(caseLine(result)))),
        });
      const isChangeSet = (definition as { kind?: unknown } | null)?.kind === "change-set";
      if (!isChangeSet || host.guestAgentPath === null) return run();
      return withHostGuest({ program: host.guestAgentPath, guest }, run);
    });
    await Promise.all(printed);
    if (human) await printSummary(report.plugin, report.missing, report.cases, terminal);
    else await terminal.out(json(report));
    return count(report.cases, "passed") > 0 && count(report.cases, "failed") === 0 ? EXIT.success : EXIT.failure;
  },
};

function caseLine({ name, outcome, reason, durationMs }: CaseResult): string {
  return `${outcome.padEnd(7)}  ${printable(name)} (${durationMs} ms)${reason === null ? "" : `: ${printable(reason)}`}\n`;
}

async function printSummary(
  plugin: string,
  missing: readonly { readonly reason: string; readonly remedy: string }[],
  cases: readonly CaseResult[],
  terminal: Terminal,
): Promise<void> {
  for (const { reason, remedy } of missing) {
    await terminal.out(`not for this host: ${printable(reason)}\n  → ${printable(remedy)}\n`);
  }
  const counts = (["passed", "failed", "skipped"] as const).map((outcome) => `${count(cases, outcome)} ${outcome}`);
  await terminal.out(`${printable(plugin)}: ${counts.join(", ")}\n`);
}

function count(cases: readonly CaseResult[], outcome: CaseResult["outcome"]): number {
  return cases.filter((result) => result.outcome === outcome).length;
}

export const pluginCommands: readonly Command[] = [list, types, test];
