// The guest channel over protocol version 1, for guests whose agent knows nothing newer: one JSON line each way and a
// connection for each call. It cannot list files, cannot tell a signal from an exit code, and only knows UTF-8.
import { limits } from "../config/limits.ts";
import type {
  ExecRequest,
  ExecResult,
  FileContent,
  GuestChannel,
  IdentityReset,
  OpenLink,
} from "../contracts/channel.ts";
import { AgentError } from "../errors/agent-error.ts";
import { catalogue } from "../errors/catalogue.ts";
import { freshEntropy } from "./entropy.ts";
import { guestUnreachable, guestViolation } from "./faults.ts";
import { integer, printable, texts } from "./fields.ts";
import type { Endpoint } from "./handshake.ts";
import type { Fields } from "./msgpack.ts";
import { GuestSocket } from "./socket.ts";
import { ProtocolViolation } from "./violation.ts";

const NEWLINE = 0x0a;
/** What version 1 reports for a command that outlived its timeout. */
const TIMED_OUT_EXIT_CODE = 124;
/** Stands for "no limit", which version 1 cannot say: ten years. */
const NO_TIMEOUT_SECONDS = 10 * 365 * 24 * 3600;

export class LineChannel implements GuestChannel {
  readonly features: ReadonlySet<string> = new Set(["exec", "files", "identity"]);
  readonly #endpoint: Endpoint;

  constructor(endpoint: Endpoint) {
    this.#endpoint = endpoint;
  }

  async ping(): Promise<void> {
    await this.#call("pong", { op: "ping" }, limits.guestCallTimeoutMs);
  }

  async exec(request: ExecRequest): Promise<ExecResult> {
    const { command, argv, env, cwd, timeoutMs } = request;
    const seconds = timeoutMs > 0 ? Math.ceil(timeoutMs / 1000) : NO_TIMEOUT_SECONDS;
    const startedMs = performance.now();
    const reply = await this.#call(
      "exec",
      { op: "exec", command, argv, env, cwd, timeout_seconds: seconds },
      timeoutMs > 0 ? seconds * 1000 + limits.guestExecGraceMs : 0,
    );
    const exitCode = reply.exit_code;
    if (typeof exitCode !== "number" || !Number.isInteger(exitCode))
      throw guestViolation("exit_code has the wrong form");
    // A command may exit with 124 by itself, but not before its time is up.
    const ranOut = timeoutMs > 0 && performance.now() - startedMs >= seconds * 1000;
    const timedOut = exitCode === TIMED_OUT_EXIT_CODE && ranOut;
    const stdout = output(reply, "stdout");
    const stderr = output(reply, "stderr");
    return {
      exitCode: timedOut ? null : exitCode,
      signal: null,
      timedOut,
      oomKilled: false,
      stdout: stdout.subarray(0, request.outputMaxBytes),
      stderr: stderr.subarray(0, request.outputMaxBytes),
      stdoutLength: stdout.length,
      stderrLength: stderr.length,
    };
  }

  async readFile(path: Uint8Array, maxBytes: number): Promise<FileContent> {
    const request = { op: "get-file", path: pathText(path) };
    const reply = await this.#call("file-content", request, limits.guestFileTimeoutMs);
    const encoded = reply.content_base64;
    if (typeof encoded !== "string") throw guestViolation("content_base64 has the wrong form");
    const content = Buffer.from(encoded, "base64");
    if (content.length > maxBytes) throw new AgentError("FILE_TOO_LARGE");
    return { content: new Uint8Array(content), mode: checked(() => integer(reply, "mode", 0o7777)) & 0o777 };
  }

  async writeFile(path: Uint8Array, content: Uint8Array, mode: number, maxBytes: number): Promise<void> {
    if (content.length > Math.min(maxBytes, limits.fileMaxBytes)) throw new AgentError("FILE_TOO_LARGE");
    const base64 = Buffer.from(content.buffer, content.byteOffset, content.byteLength).toString("base64");
    const request = { op: "put-file", path: pathText(path), content_base64: base64, mode: mode & 0o777 };
    await this.#call("file-written", request, limits.guestFileTimeoutMs);
  }

  manifest(): Promise<never> {
    return Promise.reject(new AgentError("NOT_SUPPORTED", "this guest agent cannot list files"));
  }

  async resetIdentity(request: IdentityReset): Promise<{ applied: readonly string[]; failures: readonly string[] }> {
    const reply = await this.#call(
      "identity-reset",
      {
        op: "reset-identity",
        hostname: request.hostname,
        regenerate_machine_id: request.regenerateMachineId,
        reseed_entropy: request.reseedEntropy,
        entropy_base64: request.reseedEntropy ? freshEntropy() : undefined,
      },
      limits.guestCallTimeoutMs,
    );
    return checked(() => ({ applied: texts(reply, "applied"), failures: texts(reply, "failures") }));
  }

  /** Version 1 knows no grace: the guest stops at once. */
  async shutdown(): Promise<void> {
    await this.#call("shutting-down", { op: "shutdown" }, limits.guestCallTimeoutMs);
  }

  /** Nothing is held open between calls. */
  close(): void {}

  async #call(expected: string, request: Record<string, unknown>, timeoutMs: number): Promise<Fields> {
    const line = JSON.stringify({ ...request, token: this.#endpoint.token });
    const reply = parseReply(await exchangeLine(this.#endpoint.open, line, timeoutMs));
    if (reply.result === expected) return reply;
    if (reply.result !== "error") throw guestViolation("another result than was asked for");
    const message = typeof reply.message === "string" ? printable(reply.message) : "no message";
    throw new AgentError("GUEST_ERROR", `${catalogue.GUEST_ERROR.message}: ${message}`);
  }
}

/** Sends one line and resolves with the one that comes back. Rejects with `GUEST_UNREACHABLE` or `GUEST_ERROR`. */
function exchangeLine(open: OpenLink, line: string, timeoutMs: number): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  const opened = GuestSocket.connect(open, {
    received: (chunk) => {
      const end = chunk.indexOf(NEWLINE);
      chunks.push(end === -1 ? chunk : chunk.subarray(0, end));
      bytes += chunk.length;
      if (end !== -1) resolve(Buffer.concat(chunks).toString("utf8"));
      else if (bytes > limits.guestLineMaxBytes) reject(guestViolation("an answer beyond the limit"));
    },
    closed: (reason) => reject(guestUnreachable(reason)),
  });
  opened.then(
    (socket) => socket.write(Buffer.from(`${line}\n`)),
    (error: unknown) => reject(guestUnreachable("the connection was refused", error)),
  );
  const timer =
    timeoutMs > 0 && setTimeout(() => reject(guestUnreachable(`no answer within ${timeoutMs} ms`)), timeoutMs);
  return promise.finally(() => {
    if (timer) clearTimeout(timer);
    opened.then((socket) => socket.destroy()).catch(() => {});
  });
}

function parseReply(line: string): Fields {
  try {
    const reply: unknown = JSON.parse(line);
    if (typeof reply === "object" && reply !== null && !Array.isArray(reply)) return reply as Fields;
  } catch {
    // Reported below, without the peer's bytes.
  }
  throw guestViolation("an answer that is not a JSON object");
}

function output(reply: Fields, name: "stdout" | "stderr"): Uint8Array {
  const value = reply[name];
  if (typeof value !== "string") throw guestViolation(`${name} has the wrong form`);
  return new TextEncoder().encode(value);
}

function pathText(path: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(path);
  } catch (error) {
    throw new AgentError("PATH_INVALID", "this guest agent only takes paths in UTF-8", { cause: error });
  }
}

function checked<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw error instanceof ProtocolViolation ? guestViolation(error.message) : error;
  }
}
