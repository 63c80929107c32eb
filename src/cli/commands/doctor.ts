// `fluxctl doctor`: what this host can do, and what to do about what it cannot.
import type { Config } from "../../config/schema.ts";
import type { FindingState } from "../../doctor/check.ts";
import type { CheckReport } from "../../doctor/doctor.ts";
import { asAgentError } from "../../errors/agent-error.ts";
import { type Command, EXIT, type Invocation } from "../command.ts";
import { examineThisHost } from "../examination.ts";
import { printable } from "../escape.ts";
import { json } from "../json.ts";
import type { Terminal } from "../terminal.ts";

const MARKS: Readonly<Record<FindingState, string>> = { ok: "ok  ", info: "info", warning: "warn", failed: "FAIL" };
const COLOURS: Readonly<Record<FindingState, string>> = { ok: "32", info: "36", warning: "33", failed: "31" };

export const doctorCommand: Command = {
  path: ["doctor"],
  summary: "Check this host and say what to do about each fault.",
  details: "Exits with 0 whatever it finds; with --strict, with 1 when a check failed.",
  arguments: [],
  client: false,
  options: [{ name: "strict", description: "Exit with 1 when a check failed." }],
  async run(invocation, terminal) {
    const { config, report } = await configuration(invocation, terminal);
    const reports = [report, ...(await examineThisHost(config))];
    await terminal.out(invocation.output === "json" ? json({ items: reports }) : text(reports, terminal.colour));
    const failed = reports.some(({ state }) => state === "failed");
    return failed && invocation.flag("strict") ? EXIT.failure : EXIT.success;
  },
};

/** A faulty configuration is one more finding; the rest is checked against the defaults. */
async function configuration(
  invocation: Invocation,
  terminal: Terminal,
): Promise<{ config: Config; report: CheckReport }> {
  const base = { id: "configuration", title: "configuration" };
  const { loadConfig } = await import("../../config/load.ts");
  try {
    const { config, path, warnings } = await loadConfig(invocation.text("config"), terminal.environment);
    const [first, ...more] = warnings;
    if (first === undefined) {
      const found = path ?? "no file; every key is at its default";
      const remedy = path === null ? "fluxctl init writes one" : null;
      return { config, report: { ...base, state: path === null ? "info" : "ok", found, remedy } };
    }
    const remedy = "see fluxctl config check";
    return { config, report: { ...base, state: "warning", found: [first, ...more].join("; "), remedy } };
  } catch (error) {
    const { message } = asAgentError(error);
    const found = message.split("\n")[0] ?? message;
    const { configSchema } = await import("../../config/schema.ts");
    return {
      config: configSchema.parse({}),
      report: { ...base, state: "failed", found, remedy: "see fluxctl config check" },
    };
  }
}

function text(reports: readonly CheckReport[], colour: boolean): string {
  const width = Math.max(...reports.map(({ title }) => title.length));
  const lines = reports.flatMap(({ state, title, found, remedy }) => {
    const mark = colour ? `\x1b[${COLOURS[state]}m${MARKS[state]}\x1b[0m` : MARKS[state];
    const line = `${mark}  ${printable(title).padEnd(width)}  ${printable(found)}`;
    return remedy === null ? [line] : [line, `      ${" ".repeat(width)}  → ${printable(remedy)}`];
  });
  const count = (state: FindingState): number => reports.filter((report) => report.state === state).length;
  const warnings = count("warning");
  lines.push(`${count("ok")} ok, ${warnings} ${warnings === 1 ? "warning" : "warnings"}, ${count("failed")} failed`);
  return `${lines.join("\n")}\n`;
}
