// Runs every check on a host: what `fluxctl doctor` prints and `GET /v1/host/doctor` answers.
import { constants } from "node:fs";
import { access, open, readdir, readFile, stat, statfs } from "node:fs/promises";
import type { Config } from "../config/schema.ts";
import type { PluginReport } from "../registry/report.ts";
import type { Check, FileHead, Finding, Host, HostTableState } from "./check.ts";
import { hostChecks } from "./host-checks.ts";
import { kernelChecks } from "./kernel-checks.ts";
import { machineChecks } from "./machine-checks.ts";
import { networkChecks } from "./network-checks.ts";
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
  readonly hostTable: HostTableState | null;
  readonly sandboxIds: ReadonlySet<string> | null;
}

const RUN_TIMEOUT_MS = 5000;
/** Where the tools of the system are, also for those whose PATH has them not. */
const SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/** Never rejects: a check that throws is a failed check. */
export async function examine(examination: Examination): Promise<readonly CheckReport[]> {
  return examineHost(thisHost(examination));
}

/** The same for a host that is given. */
export async function examineHost(host: Host): Promise<readonly CheckReport[]> {
  const checks = [...kernelChecks, ...hostChecks, ...machineChecks, ...networkChecks, sshCheck];
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

/** This host itself. */
export function thisHost(examination: Examination): Host {
  return {
    ...examination,
    uid: process.geteuid?.() ?? -1,
    read: (path) => readFile(path, "utf8").catch(() => null),
    head: headOf,
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
    list: (path) => readdir(path).catch(() => []),
    command: async (name) => Bun.which(name, { PATH: SYSTEM_PATH }),
    run: runTool,
    opens: (path) =>
      access(path, constants.R_OK | constants.W_OK).then(
        () => true,
        () => false,
      ),
  };
}

/** What is there may be anything, a pipe too, for which nobody waits. */
async function headOf(path: string, bytes: number): Promise<FileHead | null> {
  const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK).catch(() => null);
  if (file === null) return null;
  try {
    const found = await file.stat();
    if (!found.isFile()) return null;
    const buffer = new Uint8Array(bytes);
    const { bytesRead } = await file.read(buffer, 0, bytes, 0);
    return { bytes: buffer.subarray(0, bytesRead), size: found.size };
  } catch {
    return null;
  } finally {
    await file.close();
  }
}

async function runTool(argv: readonly string[]): Promise<string | null> {
  const child = Bun.spawn([...argv], { stdin: "ignore", stdout: "pipe", stderr: "ignore", timeout: RUN_TIMEOUT_MS });
  const [text, status] = await Promise.all([new Response(child.stdout).text(), child.exited]);
  return status === 0 ? text : null;
}
