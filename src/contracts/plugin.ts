// What a plugin is: a value with a kind, an id, options, a probe and an init. The registry is the only caller.
import type { ZodType } from "zod";
import type { Backend } from "./backend.ts";
import type { ChangeSetMethod } from "./change-set.ts";
import type { GuestConnector } from "./channel.ts";
import type { Dataplane } from "./dataplane.ts";
import type { Logger } from "./log.ts";
import type { Storage } from "./storage.ts";

/** Raised by one whenever a contract in this folder changes in a way that breaks a plugin. */
export const CONTRACT_VERSION = 1;

/** The four kinds of plugin; see `backend.ts`, `dataplane.ts`, `change-set.ts` and `storage.ts`. */
export const PLUGIN_KINDS = ["backend", "dataplane", "change-set", "storage"] as const;
export type PluginKind = (typeof PLUGIN_KINDS)[number];

/** What `init` answers, by kind. */
export interface InstanceOf {
  readonly backend: Backend;
  readonly dataplane: Dataplane;
  readonly "change-set": ChangeSetMethod;
  readonly storage: Storage;
}

/** Something that a plugin could do on another host: what is missing here, why, and what an operator does about it. */
export interface MissingCapability {
  readonly capability: string;
  readonly reason: string;
  readonly remedy: string;
}

/** The answer of `probe`: data about this host, never an action on it. */
export interface ProbeReport {
  /** False: the plugin is skipped on this host, for the reasons in `missing`. */
  readonly usable: boolean;
  /** The capability words that hold here. The core branches on these, never on a plugin's id. */
  readonly capabilities: readonly string[];
  readonly missing: readonly MissingCapability[];
}

/** What a plugin may know about the host and the agent's directories. */
export interface HostFacts {
  /** Effective uid of the agent; 0 is root. */
  readonly uid: number;
  readonly gid: number;
  readonly kernelRelease: string;
  readonly arch: string;
  readonly stateDir: string;
  readonly runDir: string;
  /** `<state_dir>/instances`: one directory a sandbox, named by its id. */
  readonly instancesDir: string;
  /** Absolute path of the guest-agent executable, checked by hash, or null when this build has none. */
  readonly guestAgentPath: string | null;
  /** Likewise of the program that runs one virtual machine. */
  readonly hypervisorPath: string | null;
  /** Likewise of the library that runs them in the agent's own process. */
  readonly engineLibraryPath: string | null;
  /** Object with the programs of sandboxes' interfaces; to be read, not executed, so it may lie in the binary. */
  readonly trafficObjectPath: string | null;
  /** Likewise with the guard of the host's own interface. */
  readonly guardObjectPath: string | null;
}

export interface PluginContext<Options> {
  readonly options: Options;
  readonly host: HostFacts;
  readonly report: ProbeReport;
  readonly log: Logger;
  /** Opens guest channels; a backend hands the result to the core. */
  readonly guest: GuestConnector;
}

/** A plugin. `options` gives defaults for everything, so that `options.parse({})` is valid. */
export interface PluginDefinition<Kind extends PluginKind = PluginKind, Options = unknown, Instance = unknown> {
  readonly kind: Kind;
  /** `[a-z0-9][a-z0-9-]{0,31}`, unique within the kind. */
  readonly id: string;
  readonly contractVersion: number;
  /** One sentence for `fluxctl plugin list`. */
  readonly summary: string;
  readonly options: ZodType<Options>;
  probe(host: HostFacts, options: Options): Promise<ProbeReport>;
  init(context: PluginContext<Options>): Promise<Instance>;
}

/** Identity function that checks a definition's type where it is written. */
export function definePlugin<Kind extends PluginKind, Options, Instance extends InstanceOf[Kind]>(
  definition: PluginDefinition<Kind, Options, Instance>,
): PluginDefinition<Kind, Options, Instance> {
  return definition;
}
