// The replies of the API that commands read. Unknown fields are kept for `-o json`; what is missing reads as absent.

export interface SandboxRecord {
  readonly id: string;
  readonly name?: string;
  /** The API's word for what runs it; process sandboxes have the nominal one, see `backendOf`. */
  readonly backend?: string;
  readonly status?: string;
  readonly state?: string;
  readonly created_at?: string;
  readonly expires_at?: string | null;
  readonly error?: string | null;
  readonly isolation?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly request?: { readonly image?: unknown };
  readonly [field: string]: unknown;
}

/** What runs a sandbox, for people: the API's clients know a process sandbox by its image alone. */
export function backendOf({ backend = "", request }: SandboxRecord): string {
  return request?.image === "procbox" ? "procbox" : backend;
}

export interface List<T> {
  readonly items: readonly T[];
}

/** `*_base64` is there when the bytes are not UTF-8, and then it is what counts. */
export interface ExecReply {
  readonly exit_code: number;
  readonly stdout: string;
  readonly stderr: string;
  readonly stdout_base64?: string;
  readonly stderr_base64?: string;
  readonly stdout_truncated_bytes?: number;
  readonly stderr_truncated_bytes?: number;
}

export interface OtherChange {
  readonly path?: string;
  readonly path_base64?: string;
  readonly change: string;
  readonly kind: string;
}

/** Names that are not UTF-8 are in the `*_base64` lists only. */
export interface ChangeSet {
  readonly added: readonly string[];
  readonly modified: readonly string[];
  readonly deleted: readonly string[];
  readonly added_base64?: readonly string[];
  readonly modified_base64?: readonly string[];
  readonly deleted_base64?: readonly string[];
  readonly other?: readonly OtherChange[];
  readonly unchanged: number;
}

export interface ChangesReply extends ChangeSet {
  readonly mode: string;
  readonly paths: readonly string[];
  readonly baseline_taken_at_unix: number;
}

export interface BaselineReply {
  readonly files: number;
  readonly mode: string;
  readonly paths: readonly string[];
}

export interface DryRunReply extends ExecReply {
  readonly changes: ChangeSet;
  readonly discarded: boolean;
  readonly reverted_via: string;
}

/** The exact bytes of an output. */
export function outputBytes(text: string, base64: string | undefined): Uint8Array {
  return base64 === undefined ? new TextEncoder().encode(text) : Buffer.from(base64, "base64");
}
