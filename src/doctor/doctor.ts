// Runs every check on a host: what `fluxctl doctor` prints and `GET /v1/host/doctor` answers.
import { constants } from "node:fs";
import { access, readFile, stat, statfs } from "node:fs/promises";
import type { Config } from "../config/schema.ts";
import type { PluginReport } from "../registry/report.ts";
import type { Check, Finding, Host } from "./check.ts";
import { hostChecks } from "./host-checks.ts";
import { kernelChecks } from "./kernel-checks.ts";
import { sshCheck } from "./ssh-check.ts";

/** One line of the report. */
export interface CheckReport extends Finding {
  readonly id: string;
  readonly title: string;
}

/** What the caller already knows; everything else is read from the host. */
export interface Examination {
  readonly config: Config;
  readonly plugins: readonly PluginReport[];
  readonly landlockAbi: number | null;
}

/** Never rejects: a check that throws is a failed check. */
export async function examine(examination: Examination): Promise<readonly CheckReport[]> {
  return examineHost(thisHost(examination));
}

/** The same for a host that is given. */
export async function examineHost(host: Host): Promise<readonly CheckReport[]> {
  const checks = [...kernelChecks, ...hostChecks, sshCheck];
  const reports = await Promise.all(checks.map((check) => runCheck(check, host)));
  const whole = new Set(host.plugins.filter((plugin) => inUse(plugin) && plugin.missing.length === 0).map(kindOf));
  return [...reports, ...host.plugins.map((plugin) => pluginCheck(plugin, whole.has(kindOf(plugin))))];
}

async function runCheck(check: Check, host: Host): Promise<CheckReport> {
  const { id, title } = check;
  try {
    return { id, title, ...(await check.run(host)) };
  } catch (error) {
    const found = `the check failed: ${error instanceof Error ? error.message : String(error)}`;
    return { id, title, state: "failed", found, remedy: "report this as a defect" };
  }
}

const inUse = ({ state }: PluginReport): boolean => state === "usable" || state === "loaded";
const kindOf = ({ kind }: PluginReport): string => kind ?? "file";

/**
 * The registry's probe of a plugin as a check. What it lacks is no more than a fact where another plugin of its kind
 * lacks nothing (`covered`).
 */
function pluginCheck(plugin: PluginReport, covered: boolean): CheckReport {
  const id = `plugin_${kindOf(plugin)}_${plugin.id}`;
  const title = `${plugin.kind ?? "plugin"} ${plugin.id}`;
  const reasons = plugin.missing.map(({ reason }) => reason).join("; ");
  const remedy = [...new Set(plugin.missing.map((entry) => entry.remedy))].join("; ");
  const repair = plugin.source === "built-in" ? "report this as a defect" : `repair or remove ${plugin.source}`;
  switch (plugin.state) {
    case "failed":
      return {
        id,
        title,
        state: "failed",
        found: plugin.fault ?? "failed",
        remedy: repair,
      };
    case "skipped":
      return { id, title, state: "info", found: `not used: ${reasons}`, remedy };
    default:
      if (plugin.missing.length > 0) {
        if (covered) return { id, title, state: "info", found: `usable, with less: ${reasons}`, remedy: null };
        return { id, title, state: "warning", found: reasons, remedy };
      }
      return { id, title, state: "ok", found: plugin.capabilities.join(", ") || "usable", remedy: null };
  }
}

function thisHost(examination: Examination): Host {
  return {
    ...examination,
    uid: process.geteuid?.() ?? -1,
    read: (path) => readFile(path, "utf8").catch(() => null),
    status: (path) =>
      stat(path).then(
        (found) => ({ uid: found.uid, mode: found.mode & 0o7777, directory: found.isDirectory() }),
        () => null,
      ),
    freeBytes: (path) =>
      statfs(path).then(
        ({ bavail, bsize }) => bavail * bsize,
        () => null,
      ),
    opens: (path) =>
      access(path, constants.R_OK | constants.W_OK).then(
        () => true,
        () => false,
      ),
  };
}
