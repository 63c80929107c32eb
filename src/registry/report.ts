// What the registry says about each plugin: the body of `GET /v1/host/plugins`, and the input of `doctor`.
import type { MissingCapability, PluginKind } from "../contracts/plugin.ts";

/**
 * `loaded`: in use. `usable`: probed only, by a command that starts nothing. `skipped`: not for this host, or not asked
 * for, as `missing` says. `failed`: refused or faulty, as `fault` says.
 */
export type PluginState = "loaded" | "usable" | "skipped" | "failed";

export interface PluginReport {
  /** Null when a file could not be read as a plugin. */
  readonly kind: PluginKind | null;
  readonly id: string;
  readonly summary: string;
  readonly state: PluginState;
  readonly capabilities: readonly string[];
  readonly missing: readonly MissingCapability[];
  readonly fault: string | null;
  /** `built-in`, or the absolute path of the file. */
  readonly source: string;
}
