// What a check of the host is: a question with an answer and, where something is wrong, what an operator does about it.
import type { Config } from "../config/schema.ts";
import type { PluginReport } from "../registry/report.ts";

/** `info`: a fact that no part of this build depends on. */
export type FindingState = "ok" | "info" | "warning" | "failed";

export interface Finding {
  readonly state: FindingState;
  /** What was found, in one line. */
  readonly found: string;
  /** What to do, or null when nothing is wrong. */
  readonly remedy: string | null;
}

/** `damaged`: there and not as it was made. `newer`: made by a newer agent on this host. */
export type HostTableState = "intact" | "newer" | "absent" | "damaged";

/** How a file begins. */
export interface FileHead {
  readonly bytes: Uint8Array;
  /** Length of the whole file. */
  readonly size: number;
}

/** The host as checks see it; tests put made-up files in its place. */
export interface Host {
  /** Effective uid of the agent. */
  readonly uid: number;
  readonly config: Config;
  readonly plugins: readonly PluginReport[];
  /** Landlock version of the kernel, 0 without Landlock, or null when nothing here can ask for it. */
  readonly landlockAbi: number | null;
  /** The agent's nftables table, or null when nothing here can look at it. */
  readonly hostTable: HostTableState | null;
  /** The sandboxes that there are, or null when no agent is asked. */
  readonly sandboxIds: ReadonlySet<string> | null;
  /** The text of a file, or null when it cannot be read. */
  read(path: string): Promise<string | null>;
  /** The first `bytes` of a file, or null when it cannot be read or is no file. */
  head(path: string, bytes: number): Promise<FileHead | null>;
  /** What a path is, following links, or null when there is nothing. */
  status(path: string): Promise<{ readonly uid: number; readonly mode: number; readonly directory: boolean } | null>;
  /** Bytes that an unprivileged writer may still use on the file system of a path, or null. */
  freeBytes(path: string): Promise<number | null>;
  /** Whether the agent may read and write a device or a directory. */
  opens(path: string): Promise<boolean>;
  /** Names in a directory; none where there is no directory. */
  list(path: string): Promise<readonly string[]>;
  /** Where a command is, or null. */
  command(name: string): Promise<string | null>;
  /** What a command prints, or null when it fails or takes too long. */
  run(argv: readonly string[]): Promise<string | null>;
}

export interface Check {
  readonly id: string;
  readonly title: string;
  run(host: Host): Promise<Finding>;
}

export const ok = (found: string): Finding => ({ state: "ok", found, remedy: null });
export const info = (found: string): Finding => ({ state: "info", found, remedy: null });
export const warning = (found: string, remedy: string): Finding => ({ state: "warning", found, remedy });
export const failed = (found: string, remedy: string): Finding => ({ state: "failed", found, remedy });
