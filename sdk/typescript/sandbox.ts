// One sandbox by its id: its record, its life, what runs in it, its files and what changed in them.
import { type LogOptions, readLog } from "./console.ts";
import { type AttachOptions, Executions } from "./execution.ts";
import { ExecutionSocket } from "./execution-socket.ts";
import { Files } from "./files.ts";
import { Ports } from "./ports.ts";
import type { CallOptions } from "./retry.ts";
import { SandboxNetwork } from "./sandbox-network.ts";
import { Snapshots } from "./snapshots.ts";
import { segment, type Transport } from "./transport.ts";
import type {
  Baseline,
  Changes,
  ChangesRequest,
  DryRun,
  DryRunRequest,
  ExecResult,
  FileContent,
  FileWrite,
  PatchSandbox,
  Pause,
  ProcessRequest,
  SandboxLogs,
  VmRecord,
} from "./types.ts";

/** Every method rejects with `ApiError` or `UnreachableError`; nothing is sent a second time. */
export class Sandbox {
  readonly executions: Executions;
  readonly files: Files;
  readonly network: SandboxNetwork;
  readonly ports: Ports;
  readonly snapshots: Snapshots;
  readonly #path: string;

  constructor(
    private readonly transport: Transport,
    readonly id: string,
  ) {
    this.executions = new Executions(transport, id);
    this.files = new Files(transport, id);
    this.network = new SandboxNetwork(transport, id);
    this.ports = new Ports(transport, id);
    this.snapshots = new Snapshots(transport, id);
    this.#path = `/v1/sandboxes/${segment(id)}`;
  }

  record(options?: CallOptions): Promise<VmRecord> {
    return this.#call("GET", "", undefined, options);
  }

  /** Renames it or changes its labels. */
  update(patch: PatchSandbox, options?: CallOptions): Promise<VmRecord> {
    return this.#call("PATCH", "", patch, options);
  }

  /** Ends it and removes everything that it held. */
  async delete(options?: CallOptions): Promise<void> {
    await this.#call("DELETE", "", undefined, options);
  }

  start(options?: CallOptions): Promise<VmRecord> {
    return this.#call("POST", "/start", undefined, options);
  }

  /** Ends its processes; its files stay. */
  stop(options?: CallOptions): Promise<VmRecord> {
    return this.#call("POST", "/stop", undefined, options);
  }

  /** Stops it and starts it again on the files that it has. */
  restart(options?: CallOptions): Promise<VmRecord> {
    return this.#call("POST", "/restart", undefined, options);
  }

  /** Rejects with `SANDBOX_BUSY` while commands run, unless `force` lets them freeze with it. */
  pause({ force, ...options }: CallOptions & Pause = {}): Promise<VmRecord> {
    return this.#call("POST", "/pause", force === undefined ? undefined : { force }, options);
  }

  resume(options?: CallOptions): Promise<VmRecord> {
    return this.#call("POST", "/resume", undefined, options);
  }

  /** How it is, with the last lines of its console as text; 100 when `lines` is absent. */
  logs({ lines, signal }: CallOptions & { readonly lines?: number } = {}): Promise<SandboxLogs> {
    return this.transport.json("GET", `${this.#path}/logs`, { query: { lines }, signal });
  }

  /** What its console wrote last, byte for byte; with `follow`, what it writes until the sandbox is deleted too. */
  consoleLog(options?: LogOptions): AsyncGenerator<Uint8Array, void, void> {
    return readLog(this.transport, this.id, options);
  }

  /** An execution that is there, over a WebSocket. */
  socket(executionId: string, options?: AttachOptions): ExecutionSocket {
    return new ExecutionSocket(this.transport, this.id, executionId, options);
  }

  /** Runs a command to its end; everything that it started is killed then. */
  process(request: ProcessRequest, options?: CallOptions): Promise<ExecResult> {
    return this.#call("POST", "/process", request, options);
  }

  /** A file in one piece, by its path in the workspace. */
  readFile(path: string, options?: CallOptions): Promise<FileContent> {
    return this.#call("POST", "/fs/read", { path }, options);
  }

  async writeFile(file: FileWrite, options?: CallOptions): Promise<void> {
    await this.#call("POST", "/fs/write", file, options);
  }

  /** Remembers the files below `paths` as they are now. */
  baseline(paths: readonly string[] = ["/"], options?: CallOptions): Promise<Baseline> {
    return this.#call("POST", "/baseline", { paths }, options);
  }

  /** What changed since the baseline. */
  changes(request: ChangesRequest = {}, options?: CallOptions): Promise<Changes> {
    return this.#call("POST", "/changes", request, options);
  }

  /** Runs a command, tells what it would change, and keeps nothing of it. */
  dryRun(request: DryRunRequest, options?: CallOptions): Promise<DryRun> {
    return this.#call("POST", "/dry-run", request, options);
  }

  #call<T>(method: string, path: string, json: unknown, { signal }: CallOptions = {}): Promise<T> {
    return this.transport.json<T>(method, this.#path + path, { json, signal });
  }
}
