// What can be asked of the agent. HTTP, the command line and tests call these and nothing deeper; nothing here knows
// how a caller reached the agent.
import type { FingerprintMode } from "../contracts/change-set.ts";
import type { EntryKind, ExecResult, FileContent } from "../contracts/channel.ts";
import type { JsonObject } from "../contracts/json.ts";

/** Who is asking, as decided by the transport. `tenant` null = not bound to a tenant. */
export interface Caller {
  readonly actor: string;
  readonly role: "admin" | "read-only";
  readonly tenant: string | null;
  /** Stable name of the token for quotas, or null when authentication is off. */
  readonly token: string | null;
  /** A call that reaches the guest is not to resume a paused sandbox. */
  readonly declinesResume?: boolean;
}

/** The wire's VM record (field names as on the wire), with the additive fields of `GET /v1/sandboxes/{id}`. */
export type VmRecord = JsonObject & { readonly id: string };

/**
 * A request that may be sent again. The core commits `begin` with the first transaction of the operation and `finish`,
 * with the rendered reply, in the transaction that makes the result durable; when the operation fails its row is gone.
 * So the transport writes nothing itself: it looks the row up before, and answers what `reply` renders after.
 */
export interface IdempotentRequest<Outcome = VmRecord | null> {
  readonly hash: string;
  readonly bodyHash: string;
  /** Renders the stored reply; must be pure and quick. The outcome of a removal is null. */
  readonly reply: (outcome: Outcome) => { readonly status: number; readonly body: string };
}

/** Use and limits of one token; null = no limit. */
export interface QuotaReply {
  readonly vms: number;
  readonly memoryMib: number;
  readonly vmsMax: number | null;
  readonly memoryMibMax: number | null;
}

export interface CreateSandboxRequest {
  readonly id?: string;
  readonly name?: string;
  readonly tenant?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly ttlSeconds?: number;
  /** Variables of every command in it. */
  readonly env?: Readonly<Record<string, string>>;
  /** Backend id and its untrusted request, for example `procbox` and the body's `procbox` object. */
  readonly backend: string;
  readonly backendRequest: JsonObject;
  /** The pool that it is made for, which the core alone says: nobody sees it until it is claimed. */
  readonly pool?: string;
  readonly idempotency?: IdempotentRequest;
}

export interface ListFilter {
  readonly state?: string;
  readonly name?: string;
  readonly tenant?: string;
  /** Label selector `a=b,c!=d,has,!hasnt`. */
  readonly label?: string;
}

export interface ProcessRequest {
  readonly command?: string;
  readonly argv?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  readonly timeoutSeconds?: number;
}

export interface BaselineReply {
  readonly files: number;
  readonly mode: FingerprintMode;
  readonly paths: readonly Uint8Array[];
}

/** A change that the three reference lists do not hold: links, directories, specials, mode and ownership. */
export interface OtherChange {
  readonly path: Uint8Array;
  readonly change: "added" | "modified" | "deleted" | "mode" | "owner" | "type";
  readonly kind: EntryKind;
}

/** Paths are bytes because names need not be UTF-8; all lists are sorted by bytes. */
export interface Changes {
  readonly added: readonly Uint8Array[];
  readonly modified: readonly Uint8Array[];
  readonly deleted: readonly Uint8Array[];
  readonly unchanged: number;
  readonly other: readonly OtherChange[];
  readonly mode: FingerprintMode;
  readonly paths: readonly Uint8Array[];
}

export interface ChangesReply extends Changes {
  readonly baselineTakenAtUnix: number;
}

export interface DryRunRequest {
  readonly command: string;
  readonly timeoutSeconds?: number;
  readonly paths?: readonly string[];
}

export interface DryRunReply {
  readonly changes: Changes;
  readonly exec: ExecResult;
  readonly revertedVia: "workspace-copy" | "snapshot";
}

/** Every method rejects with `AgentError`. Unknown and foreign ids are `SANDBOX_NOT_FOUND` alike. */
export interface Operations {
  create(caller: Caller, request: CreateSandboxRequest): Promise<VmRecord>;
  list(caller: Caller, filter: ListFilter): readonly VmRecord[];
  get(caller: Caller, id: string): VmRecord;
  /** Whether the caller may see this id; the transport's guard for every path that carries one. */
  visible(caller: Caller, id: string): boolean;
  /** Accepts any state; resolves when the record and everything that it held are gone. */
  remove(caller: Caller, id: string, idempotency?: IdempotentRequest): Promise<void>;
  start(caller: Caller, id: string): Promise<VmRecord>;
  stop(caller: Caller, id: string): Promise<VmRecord>;
  /** Stops and starts. */
  restart(caller: Caller, id: string): Promise<VmRecord>;
  /** `SANDBOX_BUSY` while commands run, unless `force`: then they freeze with the sandbox. */
  pause(caller: Caller, id: string, options?: { readonly force?: boolean }): Promise<VmRecord>;
  resume(caller: Caller, id: string): Promise<VmRecord>;
  update(
    caller: Caller,
    id: string,
    patch: { readonly name?: string; readonly labels?: Readonly<Record<string, string | null>> },
  ): Promise<VmRecord>;
  ping(caller: Caller, id: string): Promise<void>;
  /** Killed at its end with everything it left behind; a timeout is exit code 124 on the wire. */
  process(caller: Caller, id: string, request: ProcessRequest): Promise<ExecResult>;
  readFile(caller: Caller, id: string, path: string): Promise<FileContent>;
  writeFile(caller: Caller, id: string, path: string, content: Uint8Array, mode: number): Promise<void>;
  baseline(caller: Caller, id: string, paths: readonly string[]): Promise<BaselineReply>;
  changes(caller: Caller, id: string, paths?: readonly string[]): Promise<ChangesReply>;
  dryRun(caller: Caller, id: string, request: DryRunRequest): Promise<DryRunReply>;
  quota(caller: Caller): QuotaReply;
}
