// Starts the guest agent in its process-sandbox modes and reads what it reports. The configuration goes in on
// standard input, the token on descriptor 3; neither is ever an argument.
import { closeSync, write } from "node:fs";
import { promisify } from "node:util";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { ErrorCode } from "../../src/errors/catalogue.ts";
import type { ProcessIdentity } from "../../src/contracts/backend.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import { boundedText } from "../host/bounded-text.ts";
import { bootId, startTicks } from "../host/process.ts";
import type { LaunchConfig } from "./policy.ts";

const REPORT_MAX_CHARS = 256 * 1024;
const LAUNCH_TIMEOUT_MS = 15_000;
const TOKEN_FD = 3;
const writeFd = promisify(write);

/** A launcher that waits for its configuration: it does nothing until `configure`, and ends if that never comes. */
export interface WaitingLauncher {
  readonly identity: ProcessIdentity;
  readonly exited: Promise<number | null>;
  /** Hands over configuration and token; resolves when the sandbox runs. */
  configure(config: LaunchConfig, token: string): Promise<LaunchReport>;
  kill(): void;
}

export interface LaunchReport {
  readonly init: ProcessIdentity;
  /** The workspace as commands see it. */
  readonly workspace: string;
  readonly enforcement: JsonObject;
}

/** Starts the launcher in its own session and, where there is one, in the supervisor's control group. */
export async function startLauncher(executable: string, cgroup: string | null): Promise<WaitingLauncher> {
  const child = Bun.spawn([executable, "procbox"], {
    cwd: "/",
    env: {},
    detached: true,
    stdio: ["pipe", "pipe", "pipe", "pipe"],
    ...(cgroup === null ? {} : { cgroup }),
  });
  const ticks = await startTicks(child.pid);
  if (ticks === null) throw new AgentError("LAUNCH_FAILED", `the launcher ended at once: ${await tail(child.stderr)}`);
  return {
    identity: { pid: child.pid, startTicks: ticks, bootId: await bootId() },
    exited: child.exited.then(
      (code) => code,
      () => null,
    ),
    kill: () => child.kill("SIGKILL"),
    async configure(config, token) {
      child.stdin.write(JSON.stringify(config));
      await child.stdin.end();
      await sendToken(child.stdio[TOKEN_FD], token);
      const timer = setTimeout(() => child.kill("SIGKILL"), LAUNCH_TIMEOUT_MS);
      try {
        return parseLaunchReport(await reportText(child.stdout), () => tail(child.stderr));
      } finally {
        clearTimeout(timer);
        child.unref();
      }
    },
  };
}

async function sendToken(fd: unknown, token: string): Promise<void> {
  if (typeof fd !== "number") throw new AgentError("LAUNCH_FAILED", "the token pipe is missing");
  try {
    await writeFd(fd, new TextEncoder().encode(token));
  } finally {
    closeSync(fd);
  }
}

const reportText = (stream: ReadableStream<Uint8Array>): Promise<string> =>
  boundedText(stream, REPORT_MAX_CHARS, "the launcher's report");

async function tail(stream: ReadableStream<Uint8Array>): Promise<string> {
  const text = await reportText(stream).catch(() => "");
  return text.slice(-500).trim();
}

async function parseLaunchReport(text: string, stderr: () => Promise<string>): Promise<LaunchReport> {
  const report = parseObject(text);
  if (report === null) throw new AgentError("LAUNCH_FAILED", `the launcher gave no report: ${await stderr()}`);
  if (report.ok !== true) {
    const known: Record<string, ErrorCode> = {
      CONFINEMENT_UNAVAILABLE: "CONFINEMENT_UNAVAILABLE",
      BAD_CONFIG: "INTERNAL",
    };
    throw new AgentError(known[String(report.code)] ?? "LAUNCH_FAILED", String(report.message));
  }
  return {
    init: {
      pid: Number(report.init_pid),
      startTicks: Number(report.init_start),
      bootId: String(report.boot_id),
    },
    workspace: String(report.workspace),
    enforcement: report.enforcement as JsonObject,
  };
}

function parseObject(text: string): JsonObject | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonObject) : null;
  } catch {
    return null;
  }
}

/** Runs `procbox-probe` or `procbox-plan` to its end and returns the JSON object that it prints. */
export async function ask(
  executable: string,
  mode: "procbox-probe" | "procbox-plan",
  input: string,
): Promise<JsonObject> {
  const child = Bun.spawn([executable, mode], {
    cwd: "/",
    env: {},
    stdin: new TextEncoder().encode(input),
    stdout: "pipe",
    stderr: "pipe",
    timeout: LAUNCH_TIMEOUT_MS,
  });
  const [text, errors] = await Promise.all([reportText(child.stdout), tail(child.stderr), child.exited]);
  const report = parseObject(text);
  if (report === null) throw new AgentError("LAUNCH_FAILED", `${mode} gave no report: ${errors}`);
  return report;
}
