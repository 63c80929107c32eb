// The guest channel over protocol version 2: keeps one warm connection, and opens a new one when it is needed after a
// cut. What was in progress when the connection was cut has failed; nothing is ever sent twice.
import { limits } from "../config/limits.ts";
import type {
  ExecRequest,
  ExecResult,
  FileContent,
  GuestChannel,
  GuestClock,
  IdentityReset,
  ManifestRequest,
  ManifestSink,
  ManifestSummary,
} from "../contracts/channel.ts";
import type { GuestExecutions } from "../contracts/executions.ts";
import type { GuestFiles } from "../contracts/files.ts";
import type { GuestPorts } from "../contracts/ports.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { GuestConnection } from "./connection.ts";
import { freshEntropy } from "./entropy.ts";
import { exec } from "./exec.ts";
import { ConnectedExecutions } from "./executions.ts";
import { guestUnreachable } from "./faults.ts";
import { texts } from "./fields.ts";
import { ConnectedFiles } from "./file-client.ts";
import { readFile, writeFile } from "./files.ts";
import { type Message, wide } from "./frame.ts";
import { manifest } from "./manifest.ts";
import type { Fields } from "./msgpack.ts";
import { ConnectedPorts } from "./ports.ts";

/** Opens another connection to the same guest agent; need not go on once the channel is closed. */
type Reconnect = (isClosed: () => boolean) => Promise<GuestConnection>;

export class WarmChannel implements GuestChannel {
  readonly #reconnect: Reconnect;
  #connection: GuestConnection;
  #connecting: Promise<GuestConnection> | null = null;
  #closed = false;
  readonly #executions = new ConnectedExecutions((operation) => this.#on(operation));

  readonly #files = new ConnectedFiles((operation) => this.#on(operation));
  readonly #ports = new ConnectedPorts((operation) => this.#on(operation));
  readonly #clock: GuestClock = {
    set: async (unixMs) => {
      await this.#call("set-clock", { unix_ms: wide(unixMs) }, limits.guestCallTimeoutMs);
    },
  };

  constructor(connection: GuestConnection, reconnect: Reconnect) {
    this.#connection = connection;
    this.#reconnect = reconnect;
  }

  get features(): ReadonlySet<string> {
    return this.#connection.welcome.features;
  }

  get executions(): GuestExecutions | undefined {
    return this.features.has("executions") ? this.#executions : undefined;
  }

  get fileStreams(): GuestFiles | undefined {
    return this.features.has("file-streams") ? this.#files : undefined;
  }

  get ports(): GuestPorts | undefined {
    return this.features.has("ports") ? this.#ports : undefined;
  }

  get clock(): GuestClock | undefined {
    return this.features.has("clock") ? this.#clock : undefined;
  }

  async ping(): Promise<void> {
    await this.#call("ping", {}, limits.guestCallTimeoutMs);
  }

  exec(request: ExecRequest): Promise<ExecResult> {
    return this.#on((connection) => exec(connection, request));
  }

  readFile(path: Uint8Array, maxBytes: number): Promise<FileContent> {
    return this.#on((connection) => readFile(connection, path, maxBytes));
  }

  writeFile(path: Uint8Array, content: Uint8Array, mode: number, maxBytes: number): Promise<void> {
    return this.#on((connection) => writeFile(connection, path, content, mode, maxBytes));
  }

  manifest(request: ManifestRequest, sink: ManifestSink): Promise<ManifestSummary> {
    return this.#on((connection) => {
      if (!connection.welcome.features.has("manifest")) {
        return Promise.reject(new AgentError("NOT_SUPPORTED", "this guest agent cannot list files"));
      }
      return manifest(connection, request, sink);
    });
  }

  async resetIdentity(request: IdentityReset): Promise<{ applied: readonly string[]; failures: readonly string[] }> {
    const args = {
      ...(request.hostname !== undefined && { hostname: request.hostname }),
      regenerate_machine_id: request.regenerateMachineId,
      reseed_entropy: request.reseedEntropy,
      // What a guest in memory has gathered by itself is in every copy of it.
      ...(request.reseedEntropy && { entropy_base64: freshEntropy() }),
    };
    const report = await this.#call("reset-identity", args, limits.guestCallTimeoutMs);
    return { applied: texts(report, "applied"), failures: texts(report, "failures") };
  }

  async shutdown(graceMs: number): Promise<void> {
    await this.#call("shutdown", { grace_ms: graceMs }, limits.guestCallTimeoutMs);
  }

  close(): void {
    this.#closed = true;
    this.#connection.end(guestUnreachable("the channel is closed"));
  }

  /** Runs an operation on the warm connection at once, or after opening another. */
  #on<T>(operation: (connection: GuestConnection) => Promise<T>): Promise<T> {
    return this.#connection.alive ? operation(this.#connection) : this.#open().then(operation);
  }

  /** An operation without data. */
  #call(op: string, args: Message, timeoutMs: number): Promise<Fields> {
    return this.#on(
      (connection) =>
        new Promise((ended, failed) => {
          connection.open(op, args, { ended, failed }, timeoutMs);
        }),
    );
  }

  #open(): Promise<GuestConnection> {
    if (this.#closed) return Promise.reject(guestUnreachable("the channel is closed"));
    this.#connecting ??= this.#openOnce().finally(() => {
      this.#connecting = null;
    });
    return this.#connecting;
  }

  async #openOnce(): Promise<GuestConnection> {
    const connection = await this.#reconnect(() => this.#closed);
    this.#connection = connection;
    // Closed while the connection was being made.
    if (this.#closed) this.close();
    return connection;
  }
}
