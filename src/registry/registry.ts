// The registry: takes registrations (built-in values and external files), checks, probes and initialises them in order,
// and hands them to the core by kind. It is the only caller of `probe` and `init`.
import type { Backend } from "../contracts/backend.ts";
import type { GuestConnector } from "../contracts/channel.ts";
import type { Logger } from "../contracts/log.ts";
import type { HostFacts, InstanceOf, PluginDefinition, PluginKind, ProbeReport } from "../contracts/plugin.ts";
import type { Release } from "../contracts/resource.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import { checkDefinition } from "./definition.ts";
import { asPluginFault, callWithin, guardInstance, pluginName } from "./faults.ts";
import { checkInstance } from "./instance.ts";
import { describeIssues, runProbe } from "./probe.ts";
import type { PluginReport } from "./report.ts";

/** On a host that does much else a probe is slow, and the sandboxes that live there need their backend all the same. */
const PROBE_DEADLINE_MS = 60_000;
const INIT_DEADLINE_MS = 120_000;

/** A candidate: a definition that is yet to be checked, or a file that was refused before it could run. */
export type Registration =
  | { readonly source: string; readonly definition: unknown }
  | { readonly source: string; readonly name: string; readonly refused: AgentError };

export interface ProbeOptions {
  readonly registrations: readonly Registration[];
  readonly host: HostFacts;
  /** The operator's options of a plugin, or undefined for its defaults. */
  readonly optionsOf: (kind: PluginKind, id: string) => unknown;
  readonly probeDeadlineMs?: number;
}

export interface RegistryOptions extends ProbeOptions {
  readonly guest: GuestConnector;
  readonly log: Logger;
  readonly initDeadlineMs?: number;
}

/** A plugin in use. */
export interface LoadedPlugin<Kind extends PluginKind = PluginKind> {
  readonly kind: Kind;
  readonly id: string;
  readonly capabilities: ReadonlySet<string>;
  readonly instance: InstanceOf[Kind];
}

/** A plugin whose probe said that it can be used here. */
interface UsablePlugin {
  readonly definition: PluginDefinition;
  readonly options: unknown;
  readonly probe: ProbeReport;
}

interface Probed {
  readonly report: PluginReport;
  readonly usable: UsablePlugin | null;
}

export class Registry {
  readonly #plugins: readonly LoadedPlugin[];
  readonly #reports: readonly PluginReport[];

  constructor(plugins: readonly LoadedPlugin[], reports: readonly PluginReport[]) {
    this.#plugins = plugins;
    this.#reports = reports;
  }

  /** The loaded plugins of a kind, in registration order: the first is the preferred one. */
  list<Kind extends PluginKind>(kind: Kind): readonly LoadedPlugin<Kind>[] {
    return this.#plugins.filter((plugin) => plugin.kind === kind) as unknown as readonly LoadedPlugin<Kind>[];
  }

  /** Throws `PLUGIN_NOT_FOUND`, or `CAPABILITY_MISSING` with the reasons why it is not loaded. */
  get<Kind extends PluginKind>(kind: Kind, id: string): LoadedPlugin<Kind> {
    const loaded = this.list(kind).find((plugin) => plugin.id === id);
    if (loaded !== undefined) return loaded;
    const report = this.#reports.find((candidate) => candidate.kind === kind && candidate.id === id);
    if (report === undefined) {
      const known = this.#reports.filter((candidate) => candidate.kind === kind).map((candidate) => candidate.id);
      const hint = known.length === 0 ? "" : `; there are: ${known.join(", ")}`;
      throw new AgentError("PLUGIN_NOT_FOUND", `no ${kind} plugin is called ${id}${hint}`);
    }
    const reasons = report.fault ?? report.missing.map((entry) => `${entry.reason} (${entry.remedy})`).join("; ");
    throw new AgentError("CAPABILITY_MISSING", `plugin ${pluginName(kind, id)} is not in use: ${reasons}`, {
      details: { missing: report.missing.map((entry) => entry.capability) },
    });
  }

  /** One report a registration, in order. */
  report(): readonly PluginReport[] {
    return this.#reports;
  }

  /** Stops what plugins run inside the agent. Volumes and sandboxes stay. */
  async close(): Promise<void> {
    for (const { instance } of this.list("storage")) await instance.close();
  }
}

/** Checks and probes every registration without initialising any: what `doctor` and `plugin list` show. */
export async function probePlugins(options: ProbeOptions): Promise<readonly PluginReport[]> {
  return (await probeAll(options)).map((probed) => probed.report);
}

/** Checks, probes (all at once) and initialises (in order). A plugin that fails is reported and left out. */
export async function startRegistry(options: RegistryOptions): Promise<Registry> {
  const plugins: LoadedPlugin[] = [];
  const reports: PluginReport[] = [];
  const releaseOwners = new Map<string, string>();
  for (const { report, usable } of await probeAll(options)) {
    reports.push(usable === null ? report : await load(usable, report, plugins, releaseOwners, options));
  }
  for (const report of reports) logReport(options.log, report);
  return new Registry(plugins, reports);
}

/** Which options, by plugin kind and id, belong to no plugin: most likely the id is misspelt. */
export function strayOptions(
  options: Readonly<Record<PluginKind, Readonly<Record<string, unknown>>>>,
  reports: readonly PluginReport[],
): readonly string[] {
  const known = new Set(reports.map(({ kind, id }) => `${kind}/${id}`));
  const named = Object.entries(options).flatMap(([kind, byId]) => Object.keys(byId).map((id) => `${kind}/${id}`));
  return named.filter((name) => !known.has(name));
}

async function probeAll(options: ProbeOptions): Promise<readonly Probed[]> {
  const taken = new Map<string, string>();
  return Promise.all(options.registrations.map((registration) => probeOne(registration, taken, options)));
}

async function probeOne(
  registration: Registration,
  taken: Map<string, string>,
  options: ProbeOptions,
): Promise<Probed> {
  if ("refused" in registration) return refused(registration.source, registration.name, registration.refused.message);
  let definition: PluginDefinition;
  try {
    definition = checkDefinition(registration.definition);
  } catch (error) {
    return refused(registration.source, nameOf(registration.definition), asAgentError(error).message);
  }
  const base = {
    kind: definition.kind,
    id: definition.id,
    summary: definition.summary,
    source: registration.source,
    capabilities: [],
    missing: [],
    fault: null,
  };
  const failed = (fault: string): Probed => ({ report: { ...base, state: "failed", fault }, usable: null });

  const name = pluginName(definition.kind, definition.id);
  const earlier = taken.get(name);
  if (earlier !== undefined) return failed(`${name} is already registered by ${earlier}`);
  taken.set(name, registration.source);

  const parsed = definition.options.safeParse(options.optionsOf(definition.kind, definition.id) ?? {});
  if (!parsed.success) return failed(`its options are not valid: ${describeIssues(parsed.error)}`);
  try {
    const probe = await runProbe(definition, options.host, parsed.data, options.probeDeadlineMs ?? PROBE_DEADLINE_MS);
    const { capabilities, missing } = probe;
    if (!probe.usable) return { report: { ...base, capabilities, missing, state: "skipped" }, usable: null };
    const usable = { definition, options: parsed.data, probe };
    return { report: { ...base, capabilities, missing, state: "usable" }, usable };
  } catch (error) {
    return failed(asAgentError(error).message);
  }
}

function refused(source: string, id: string, fault: string): Probed {
  const report = {
    kind: null,
    id,
    summary: "",
    state: "failed",
    capabilities: [],
    missing: [],
    fault,
    source,
  } as const;
  return { report, usable: null };
}

function nameOf(definition: unknown): string {
  const id: unknown = typeof definition === "object" && definition !== null ? Reflect.get(definition, "id") : undefined;
  return typeof id === "string" ? id.slice(0, 64) : "unnamed";
}

async function load(
  usable: UsablePlugin,
  report: PluginReport,
  plugins: LoadedPlugin[],
  releaseOwners: Map<string, string>,
  options: RegistryOptions,
): Promise<PluginReport> {
  const { kind, id } = usable.definition;
  const name = pluginName(kind, id);
  try {
    const instance = await initialise(usable, options);
    claimReleases(name, releasesOf(instance), releaseOwners);
    const capabilities = new Set(usable.probe.capabilities);
    plugins.push({ kind, id, capabilities, instance: guardInstance(name, instance) as Backend });
    return { ...report, state: "loaded" };
  } catch (thrown) {
    return { ...report, state: "failed", fault: asPluginFault(name, "init", thrown).message };
  }
}

/** Runs `init` with the context it may see. Rejects with whatever it throws, or when it answers no such instance. */
export async function initialise(usable: UsablePlugin, options: RegistryOptions): Promise<InstanceOf[PluginKind]> {
  const { definition, probe } = usable;
  const context = {
    options: usable.options,
    host: options.host,
    report: probe,
    log: options.log.child({ plugin: pluginName(definition.kind, definition.id) }),
    guest: options.guest,
  };
  const deadlineMs = options.initDeadlineMs ?? INIT_DEADLINE_MS;
  const instance = await callWithin(deadlineMs, "init", () => definition.init(context), closeLate);
  return checkInstance(definition.kind, instance);
}

/** A storage plugin that came up after it was given up on must not keep watchers running. */
function closeLate(instance: unknown): void {
  const close: unknown = typeof instance === "object" && instance !== null ? Reflect.get(instance, "close") : undefined;
  if (typeof close === "function") Promise.resolve(close.call(instance)).catch(() => undefined);
}

function releasesOf(instance: InstanceOf[PluginKind]): Readonly<Record<string, Release>> {
  return "releases" in instance ? instance.releases : {};
}

/** A resource kind belongs to one plugin; a second claim would release things by the wrong hands. */
function claimReleases(name: string, releases: Readonly<Record<string, Release>>, owners: Map<string, string>): void {
  const kinds = Object.keys(releases);
  for (const kind of kinds) {
    const owner = owners.get(kind);
    if (owner !== undefined) throw new Error(`resource kind ${kind} belongs to plugin ${owner}`);
  }
  for (const kind of kinds) owners.set(kind, name);
}

function logReport(log: Logger, report: PluginReport): void {
  const fields = { plugin: report.id, kind: report.kind, source: report.source };
  if (report.state === "failed") log.error({ ...fields, fault: report.fault }, "plugin failed");
  else if (report.state === "skipped") log.info({ ...fields, missing: report.missing }, "plugin skipped");
  else log.info({ ...fields, capabilities: report.capabilities }, "plugin loaded");
}
