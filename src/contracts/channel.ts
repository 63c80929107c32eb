// The guest channel: what can be asked of the guest agent inside a sandbox, whatever carries the bytes. Paths are
// absolute from the root of what the sandbox may write (process sandbox: its workspace; VM: its root file system).
import type { GuestExecutions } from "./executions.ts";
import type { GuestFiles } from "./files.ts";
import type { GuestPorts } from "./ports.ts";

/** A command, through `/bin/sh -c` or as an argument vector. Exactly one of `command` and `argv` is set. */
export interface ExecRequest {
  readonly command?: string;
  readonly argv?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  /** 0 = no limit. The whole process group and control group is killed when it passes. */
  readonly timeoutMs: number;
  /** Bytes of each of stdout and stderr that are kept, from the head. */
  readonly outputMaxBytes: number;
}

export interface ExecResult {
  /** Exit code, or null when a signal ended the command. 124 never appears here for a timeout: see `timedOut`. */
  readonly exitCode: number | null;
  readonly signal: number | null;
  readonly timedOut: boolean;
  readonly oomKilled: boolean;
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
  /** Bytes written by the command in total; more than `stdout.length` means that the rest was dropped. */
  readonly stdoutLength: number;
  readonly stderrLength: number;
}

export interface FileContent {
  readonly content: Uint8Array;
  /** Permission bits, 0o777 at most. */
  readonly mode: number;
}

export const ENTRY_KINDS = ["file", "directory", "symlink", "other"] as const;
export type EntryKind = (typeof ENTRY_KINDS)[number];

/** One name in a listing. `fingerprint`: SHA-256 of a file (empty: unreadable), target of a symlink, else empty. */
export interface ManifestEntry {
  readonly kind: EntryKind;
  readonly fingerprint: Uint8Array;
  readonly size: number;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
}

export interface ManifestRequest {
  readonly paths: readonly Uint8Array[];
  readonly filesMax: number;
  readonly listingMaxBytes: number;
  /** Digest of a listing that the host holds; the guest may then answer with the difference only. */
  readonly base?: Uint8Array;
}

export interface ManifestSummary {
  /** SHA-256 of the full listing of `paths` as the guest agent protocol serialises it. */
  readonly digest: Uint8Array;
  readonly files: number;
  readonly delta: boolean;
  /** With `delta`: regular files with equal fingerprints in both listings. */
  readonly unchanged: number;
}

/** Receives a listing in order. `drained` is awaited, which is the back-pressure. */
export interface ManifestSink {
  /** Full listing: one call an entry. */
  entry(path: Uint8Array, entry: ManifestEntry): void;
  /** Delta: one call a difference; null means absent on that side. */
  difference(path: Uint8Array, now: ManifestEntry | null, before: ManifestEntry | null): void;
  /** Called after each received chunk; resolves when the sink can take more. */
  drained(): Promise<void>;
}

export interface IdentityReset {
  readonly hostname?: string;
  readonly regenerateMachineId: boolean;
  readonly reseedEntropy: boolean;
}

export interface GuestClock {
  /** The clocks that measure durations are not touched. */
  set(unixMs: number): Promise<void>;
}

/** A guest agent that is reachable. Every method rejects with an `AgentError` (`GUEST_…`, `FILE_…`, `SANDBOX_GONE`). */
export interface GuestChannel {
  /** What the guest agent says it can do: `exec`, `executions`, `files`, `file-streams`, `ports`, `manifest`, `shell`, `identity`, `clock`. */
  readonly features: ReadonlySet<string>;
  /** Facet: commands with an id that outlive connections. */
  readonly executions?: GuestExecutions;
  /** Facet: files that are streamed, arranged and watched. */
  readonly fileStreams?: GuestFiles;
  /** Facet: TCP ports inside the sandbox. */
  readonly ports?: GuestPorts;
  /** Facet: the guest has a wall clock of its own, which stands still while the guest does. */
  readonly clock?: GuestClock;
  ping(): Promise<void>;
  exec(request: ExecRequest): Promise<ExecResult>;
  readFile(path: Uint8Array, maxBytes: number): Promise<FileContent>;
  /** Written beside and renamed over the name; `mode` & 0o777. */
  writeFile(path: Uint8Array, content: Uint8Array, mode: number, maxBytes: number): Promise<void>;
  manifest(request: ManifestRequest, sink: ManifestSink): Promise<ManifestSummary>;
  resetIdentity(request: IdentityReset): Promise<{ applied: readonly string[]; failures: readonly string[] }>;
  /** Asks the guest to stop, giving its processes `graceMs`. */
  shutdown(graceMs: number): Promise<void>;
  /** Closes the connection; what runs in the sandbox goes on. */
  close(): void;
}

/** Memory that bytes lie in, and that others are received into once all of them were given back. */
export interface Loan {
  /** Nobody looks at so many of the bytes any more. Those who keep bytes never give them back. */
  giveBack(bytes: number): void;
}

/** A connection to a guest agent that somebody has opened. */
export interface GuestLink {
  /** Takes of the bytes what it can at once, and says how many; none is 0 or less. */
  write(bytes: Uint8Array): number;
  /** Closes it at once. */
  terminate(): void;
}

export interface LinkEvents {
  /** Comes before the others. The link may not take bytes yet. */
  opened(link: GuestLink): void;
  /** The bytes are the receiver's from here on; those on loan can be given back. */
  received(bytes: Uint8Array, loan?: Loan): void;
  /** It takes bytes again, after it did not take all. */
  writable(): void;
  /** May come more than once. */
  closed(reason: string): void;
}

/** Opens one connection to a guest agent. Rejects when there is no way to it now. */
export type OpenLink = (events: LinkEvents) => Promise<unknown>;

export interface ConnectOptions {
  readonly token: string;
  /** It is tried until this time has passed, since the guest agent may only be starting. */
  readonly connectTimeoutMs: number;
  /** Called whenever a connection of the channel ends, for whatever reason: often the guest's own end. */
  readonly onCut?: () => void;
  /** Once it is aborted, for example because the machine has ended, nobody tries any longer. */
  readonly signal?: AbortSignal;
}

/** Makes guest channels for backends. A channel keeps one warm connection and reopens it after a cut. */
export interface GuestConnector {
  /** `device` says that the socket leads to a byte device of the guest, such as a serial port, and not to the guest agent itself. */
  unix(options: ConnectOptions & { readonly path: string; readonly device?: boolean }): Promise<GuestChannel>;
  /**
   * Over whatever carries bytes to the guest agent itself. A connection that is cut is opened again as the first was: it
   * is tried until the time has passed, since a machine that lives may refuse for a while.
   */
  through(options: ConnectOptions & { readonly open: OpenLink }): Promise<GuestChannel>;
}
