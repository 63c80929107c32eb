// Commands and files: what passes by the mailbox. Each call reads the published instance once and talks to its guest
// agent; nothing here waits for a lifecycle command or makes one wait.
import { limits } from "../config/limits.ts";
import type { ExecRequest, ExecResult, FileContent } from "../contracts/channel.ts";
import { AgentError } from "../errors/agent-error.ts";
import { withDeadline } from "../errors/deadline.ts";
import { commandBegan, commandEnded, tellIdle, UNSEEN_END, writing } from "./activity.ts";
import type { Context } from "./context.ts";
import { environmentBytes, withEnvironment } from "./environment.ts";
import type { ProcessRequest } from "./operations.ts";
import { workspaceFilePath } from "./file-path.ts";
import type { SandboxRecord } from "./record.ts";
import type { Live, Sandbox } from "./sandbox.ts";

const USAGE_STALE_MS = 1000;

/**
 * The running instance for what a caller does in it. Rejects with the code that says why there is none, and with
 * `DRY_RUN_BUSY` while a dry-run is in it: whatever came of the call would be undone after it was answered.
 */
export function liveOf(sandbox: Sandbox): Live {
  const live = runningOf(sandbox);
  if (sandbox.dryRun?.inMailbox !== true) return live;
  throw new AgentError("DRY_RUN_BUSY", "a dry-run is in the sandbox, and what is done there meanwhile would be undone");
}

/** The running instance, whoever is in it. Rejects with the code that says why there is none. */
export function runningOf(sandbox: Sandbox): Live {
  const { phase, error } = sandbox.record;
  if (phase === "pausing" || phase === "paused") throw new AgentError("SANDBOX_PAUSED");
  if (phase === "creating" || phase === "starting" || phase === "resuming") throw new AgentError("SANDBOX_NOT_READY");
  if (phase !== "ready") {
    const why = error === null ? "" : `: ${error}`;
    const remedy = phase === "stopped" ? "; start it first" : "";
    throw new AgentError("INVALID_STATE", `the sandbox is ${phase}${why}${remedy}`, { details: { state: phase } });
  }
  if (sandbox.live !== null) return sandbox.live;
  if (sandbox.revert !== null) throw new AgentError("SANDBOX_NOT_READY", "a dry-run is being undone");
  throw new AgentError("SANDBOX_GONE");
}

function specNumber(record: SandboxRecord, key: string): number | null {
  const value = record.spec[key];
  return typeof value === "number" && value > 0 ? value : null;
}

/** Wall time of a command: what the call asks, else the sandbox's own default, never more than the plan allows. */
export function commandTimeoutMs(record: SandboxRecord, askedSeconds: number | undefined): number {
  if (askedSeconds !== undefined && !(Number.isFinite(askedSeconds) && askedSeconds >= 0)) {
    throw new AgentError("BAD_REQUEST", "timeout_seconds is a number from 0");
  }
  const ownSeconds = specNumber(record, "timeout_seconds") ?? limits.execDefaultTimeoutMs / 1000;
  const wanted = askedSeconds === undefined || askedSeconds === 0 ? ownSeconds : askedSeconds;
  const most = specNumber(record, "max_timeout_seconds") ?? Number.POSITIVE_INFINITY;
  return Math.ceil(Math.min(wanted, most) * 1000);
}

/** Wall time of an execution: no limit unless the call or the plan sets one; 0 = none. */
export function executionTimeoutMs(record: SandboxRecord, askedSeconds: number | undefined): number {
  if ((askedSeconds ?? 0) !== 0) return commandTimeoutMs(record, askedSeconds);
  const most = specNumber(record, "max_timeout_seconds");
  return most === null ? 0 : Math.ceil(most * 1000);
}

function checkText(text: string, what: string): number {
  if (text.includes("\0")) throw new AgentError("BAD_REQUEST", `${what} has a NUL character`);
  return Buffer.byteLength(text) + 1;
}

/** Checks what the guest is asked to run. Rejects with `BAD_REQUEST` or `COMMAND_TOO_LARGE`. */
export function checkCommand(request: ProcessRequest): void {
  const { command, argv, env = {}, cwd } = request;
  if ((command === undefined) === (argv === undefined)) {
    throw new AgentError("BAD_REQUEST", "give exactly one of command and process");
  }
  if (argv !== undefined && (argv.length === 0 || argv[0] === "")) {
    throw new AgentError("BAD_REQUEST", "argv names no program");
  }
  let bytes = command === undefined ? 0 : checkText(command, "the command") - 1;
  for (const argument of argv ?? []) bytes += checkText(argument, "an argument");
  bytes += environmentBytes(env);
  if (cwd !== undefined && checkText(cwd, "cwd") > limits.pathMaxBytes) throw new AgentError("PATH_INVALID");
  if (bytes > limits.commandMaxBytes) throw new AgentError("COMMAND_TOO_LARGE");
}

/** What goes to the guest agent for a checked request. */
export function execRequest(request: ProcessRequest, timeoutMs: number): ExecRequest {
  const { command, argv, env, cwd } = request;
  return { command, argv, env, cwd, timeoutMs, outputMaxBytes: limits.outputMaxBytes };
}

/** Runs a command to its end. A timeout is a result, not an error. */
export async function runProcess(context: Context, sandbox: Sandbox, asked: ProcessRequest): Promise<ExecResult> {
  const request = withEnvironment(sandbox.environment, asked);
  checkCommand(request);
  const timeoutMs = commandTimeoutMs(sandbox.record, request.timeoutSeconds);
  const live = liveOf(sandbox);
  if (sandbox.runningCommands >= limits.runningExecutionsMax) {
    throw new AgentError("SANDBOX_BUSY", `${limits.runningExecutionsMax} commands are running in the sandbox`);
  }
  commandBegan(context, sandbox);
  let end = UNSEEN_END;
  try {
    const channel = await live.instance.channel();
    const running = channel.exec(execRequest(request, timeoutMs));
    const result = await withDeadline(running, timeoutMs + limits.execGraceMs, "the guest agent's answer");
    if (result.exitCode !== null) end = sandbox.lastExit = { code: result.exitCode };
    else if (result.signal !== null) end = sandbox.lastExit = { signal: result.signal };
    return result;
  } finally {
    commandEnded(sandbox, end);
    tellIdle(context, sandbox);
    refreshUsage(context, sandbox);
  }
}

export async function ping(sandbox: Sandbox): Promise<void> {
  const channel = await runningOf(sandbox).instance.channel();
  await withDeadline(channel.ping(), limits.execGraceMs, "the guest agent's answer");
}

/** Reads a whole regular file of at most 64 MiB. `path` follows the workspace convention of `file-path.ts`. */
export async function readFile(context: Context, sandbox: Sandbox, path: string): Promise<FileContent> {
  const { inside, channel } = await openFile(context, sandbox, path);
  return await channel.readFile(inside, limits.fileMaxBytes);
}

/** Replaces a file whole, with its parents; `mode` & 0o777. */
export async function writeFile(
  context: Context,
  sandbox: Sandbox,
  path: string,
  content: Uint8Array,
  mode: number,
): Promise<void> {
  if (content.length > limits.fileMaxBytes) throw new AgentError("FILE_TOO_LARGE");
  await writing(sandbox, async () => {
    const { inside, channel } = await openFile(context, sandbox, path);
    await channel.writeFile(inside, content, mode & 0o777, limits.fileMaxBytes);
  });
}

async function openFile(context: Context, sandbox: Sandbox, path: string) {
  const { instance, volume } = liveOf(sandbox);
  const inside = workspaceFilePath(path, [volume.path, context.places.filesDir(sandbox.id)]);
  return { inside, channel: await instance.channel() };
}

/** Looks up what the volume uses, at most once a second, without making anybody wait. */
export function refreshUsage(context: Context, sandbox: Sandbox): void {
  const { storage, clock, log } = context.dependencies;
  const now = clock.nowUnixMs();
  if (sandbox.live === null || now - sandbox.storageCheckedAtUnixMs < USAGE_STALE_MS) return;
  sandbox.storageCheckedAtUnixMs = now;
  storage.usage(sandbox.live.volume).then(
    ({ bytes }) => {
      sandbox.storageBytes = bytes;
      if (bytes <= sandbox.record.volumeCapBytes) sandbox.toleratedBytes = null;
    },
    (error: unknown) => log.debug({ sandbox: sandbox.id, error: String(error) }, "no usage of a volume"),
  );
}
