// A core for tests of the HTTP surface: records in a map, files in a map, no confinement and no waiting. It follows the
// rules that callers can see (tenants, states, idempotent replies) so that whole-app tests mean something.
import type { ExecResult, FileContent } from "../../contracts/channel.ts";
import type { JsonObject } from "../../contracts/json.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type {
  BaselineReply,
  Caller,
  Changes,
  ChangesReply,
  CreateSandboxRequest,
  DryRunReply,
  DryRunRequest,
  IdempotentRequest,
  ListFilter,
  Operations,
  ProcessRequest,
  VmRecord,
} from "../../sandbox/operations.ts";
import type { Store } from "../../state/change.ts";

interface FakeSandbox {
  record: VmRecord;
  readonly tenant: string | null;
  readonly files: Map<string, FileContent>;
}

const encoder = new TextEncoder();

/** An execution that ended well, with fields to override. */
export function execResult(fields: Partial<ExecResult> = {}): ExecResult {
  const stdout = fields.stdout ?? new Uint8Array(0);
  const stderr = fields.stderr ?? new Uint8Array(0);
  return {
    exitCode: 0,
    signal: null,
    timedOut: false,
    oomKilled: false,
    stdout,
    stderr,
    stdoutLength: stdout.byteLength,
    stderrLength: stderr.byteLength,
    ...fields,
  };
}

/** A change-set without changes, with fields to override. */
export function noChanges(fields: Partial<Changes> = {}): Changes {
  return {
    added: [],
    modified: [],
    deleted: [],
    unchanged: 0,
    other: [],
    mode: "sha256",
    paths: [encoder.encode("/")],
    ...fields,
  };
}

export class FakeOperations implements Operations {
  readonly sandboxes = new Map<string, FakeSandbox>();
  readonly calls: { readonly name: string; readonly argument: unknown }[] = [];
  /** Awaited by `create` and `process`, so that a test can hold a request in the middle. */
  gate: Promise<void> = Promise.resolve();
  /** Thrown by the next call that reaches a sandbox. */
  failure: unknown = null;
  exec: ExecResult = execResult();
  changeSet: Changes = noChanges();

  constructor(private readonly store: Pick<Store, "commit">) {}

  async create(caller: Caller, request: CreateSandboxRequest): Promise<VmRecord> {
    this.#called("create", request);
    if (caller.tenant !== null && request.tenant !== undefined && request.tenant !== caller.tenant) {
      throw new AgentError("TENANT_REFUSED");
    }
    const id = request.id ?? crypto.randomUUID();
    if (this.sandboxes.has(id)) throw new AgentError("SANDBOX_EXISTS");
    await this.#begin(request.idempotency);
    try {
      await this.gate;
      this.#fail();
    } catch (error) {
      await this.#abandon(request.idempotency);
      throw error;
    }
    const tenant = request.tenant ?? caller.tenant;
    const record = fakeRecord(id, request, tenant, caller.token);
    this.sandboxes.set(id, { record, tenant, files: new Map() });
    await this.#finish(request.idempotency, record);
    return record;
  }

  list(caller: Caller, filter: ListFilter): readonly VmRecord[] {
    this.#called("list", filter);
    return [...this.sandboxes.values()]
      .filter(({ tenant }) => caller.tenant === null || tenant === caller.tenant)
      .map(({ record }) => record)
      .filter((record) => filter.name === undefined || record.name === filter.name)
      .filter((record) => filter.state === undefined || record.state === filter.state);
  }

  get(caller: Caller, id: string): VmRecord {
    return this.#find(caller, id).record;
  }

  visible(caller: Caller, id: string): boolean {
    const sandbox = this.sandboxes.get(id);
    return sandbox !== undefined && (caller.tenant === null || sandbox.tenant === caller.tenant);
  }

  async remove(caller: Caller, id: string, idempotency?: IdempotentRequest): Promise<void> {
    this.#called("remove", id);
    this.#find(caller, id);
    await this.#begin(idempotency);
    this.sandboxes.delete(id);
    await this.#finish(idempotency, null);
  }

  start = (caller: Caller, id: string): Promise<VmRecord> => this.#move(caller, id, "ready", "running");
  stop = (caller: Caller, id: string): Promise<VmRecord> => this.#move(caller, id, "stopped", "stopped");
  restart = (caller: Caller, id: string): Promise<VmRecord> => this.#move(caller, id, "ready", "running");
  pause = (caller: Caller, id: string): Promise<VmRecord> => this.#move(caller, id, "paused", "paused");
  resume = (caller: Caller, id: string): Promise<VmRecord> => this.#move(caller, id, "ready", "running");

  async update(
    caller: Caller,
    id: string,
    patch: { readonly name?: string; readonly labels?: Readonly<Record<string, string | null>> },
  ): Promise<VmRecord> {
    const sandbox = this.#find(caller, id);
    const merged = { ...(sandbox.record.labels as Record<string, string>), ...patch.labels };
    const labels = Object.fromEntries(Object.entries(merged).filter(([, value]) => value !== null)) as JsonObject;
    sandbox.record = { ...sandbox.record, labels, name: patch.name ?? sandbox.record.name! };
    return sandbox.record;
  }

  async ping(caller: Caller, id: string): Promise<void> {
    this.#find(caller, id);
  }

  async process(caller: Caller, id: string, request: ProcessRequest): Promise<ExecResult> {
    this.#called("process", request);
    this.#find(caller, id);
    await this.gate;
    return this.exec;
  }

  async readFile(caller: Caller, id: string, path: string): Promise<FileContent> {
    const file = this.#find(caller, id).files.get(path);
    if (file === undefined) throw new AgentError("FILE_NOT_FOUND");
    return file;
  }

  async writeFile(caller: Caller, id: string, path: string, content: Uint8Array, mode: number): Promise<void> {
    const sandbox = this.#find(caller, id);
    await this.gate;
    sandbox.files.set(path, { content, mode });
  }

  async baseline(caller: Caller, id: string, paths: readonly string[]): Promise<BaselineReply> {
    const { files } = this.#find(caller, id);
    if (paths.length === 0) throw new AgentError("PATHS_REQUIRED");
    return { files: files.size, mode: "sha256", paths: [...paths].sort().map((path) => encoder.encode(path)) };
  }

  async changes(caller: Caller, id: string, paths?: readonly string[]): Promise<ChangesReply> {
    this.#called("changes", paths);
    this.#find(caller, id);
    return { ...this.changeSet, baselineTakenAtUnix: 1_700_000_000 };
  }

  async dryRun(caller: Caller, id: string, request: DryRunRequest): Promise<DryRunReply> {
    this.#called("dryRun", request);
    this.#find(caller, id);
    return { changes: this.changeSet, exec: this.exec, revertedVia: "workspace-copy" };
  }

  quota() {
    return { vms: this.sandboxes.size, memoryMib: 0, vmsMax: null, memoryMibMax: 4096 };
  }

  #find(caller: Caller, id: string): FakeSandbox {
    this.#fail();
    if (!this.visible(caller, id)) throw new AgentError("SANDBOX_NOT_FOUND");
    return this.sandboxes.get(id)!;
  }

  async #move(caller: Caller, id: string, state: string, status: string): Promise<VmRecord> {
    const sandbox = this.#find(caller, id);
    sandbox.record = { ...sandbox.record, state, status };
    return sandbox.record;
  }

  #called(name: string, argument: unknown): void {
    this.calls.push({ name, argument });
  }

  #fail(): void {
    const { failure } = this;
    this.failure = null;
    if (failure !== null) throw failure;
  }

  async #begin(request: IdempotentRequest | undefined): Promise<void> {
    if (request === undefined) return;
    const { hash, bodyHash } = request;
    await this.store.commit([
      { begin: "idempotency", row: { hash, bodyHash, reply: null, createdAtUnixMs: Date.now() } },
    ]);
  }

  async #finish(request: IdempotentRequest | undefined, record: VmRecord | null): Promise<void> {
    if (request === undefined) return;
    await this.store.commit([{ finish: "idempotency", hash: request.hash, reply: request.reply(record) }]);
  }

  async #abandon(request: IdempotentRequest | undefined): Promise<void> {
    if (request === undefined) return;
    await this.store.commit([{ remove: "idempotency", hash: request.hash }]);
  }
}

function fakeRecord(id: string, request: CreateSandboxRequest, tenant: string | null, token: string | null): VmRecord {
  return {
    id,
    name: request.name ?? `sandbox-${id}`,
    backend: "flux-vm",
    status: "running",
    state: "ready",
    pid: null,
    created_at: new Date().toISOString(),
    expires_at: null,
    workspace: `/var/lib/fluxvm/instances/${id}`,
    error: null,
    request: { image: request.backend, tenant, created_by_token: token },
    labels: { ...request.labels },
    isolation: "strict",
  };
}
