// Runs the suite of a plugin's kind on its definition: what `fluxctl plugin test` and `test/contracts` call.
import type { ChangeSetMethod } from "../contracts/change-set.ts";
import type { GuestChannel, GuestConnector } from "../contracts/channel.ts";
import type { Logger } from "../contracts/log.ts";
import type { HostFacts, InstanceOf, MissingCapability, PluginDefinition, PluginKind } from "../contracts/plugin.ts";
import { AgentError } from "../errors/agent-error.ts";
import { checkDefinition } from "../registry/definition.ts";
import { asPluginFault, guardInstance, pluginName } from "../registry/faults.ts";
import { checkInstance } from "../registry/instance.ts";
import { describeIssues, runProbe } from "../registry/probe.ts";
import { backendCases } from "./backend.ts";
import { type CaseResult, type ConformanceCase, runCase } from "./case.ts";
import { changeSetCases } from "./change-set.ts";
import { dataplaneCases } from "./dataplane.ts";
import { type Fixture, parseFixture } from "./fixture.ts";
import { Scratch } from "./scratch.ts";
import { storageCases } from "./storage.ts";

const PROBE_DEADLINE_MS = 10_000;

/** A guest whose root is the host's, for change-set methods. */
export interface HostGuest {
  readonly channel: GuestChannel;
  /** The user that the guest reads as. */
  readonly uid: number;
}

export interface ConformanceOptions {
  /** Facts of this host; the directories are replaced by the suite's own. */
  readonly host: HostFacts;
  readonly guest: GuestConnector;
  readonly log: Logger;
  /** The `conformance` export of the plugin's file; see `fixture.ts`. */
  readonly fixture?: unknown;
  /** Needed for change-set methods; without it their cases are skipped. */
  readonly hostGuest?: HostGuest;
  /** Runs the cases that it answers true for; all of them when absent. */
  readonly only?: (name: string) => boolean;
  /** Called with each result as it comes. */
  readonly onResult?: (result: CaseResult) => void;
}

export interface ConformanceReport {
  readonly plugin: string;
  readonly kind: PluginKind;
  /** Why nothing was run: the plugin says that it is not for this host. Empty when the cases ran. */
  readonly missing: readonly MissingCapability[];
  readonly cases: readonly CaseResult[];
}

/** One initialised plugin under test. */
interface Subject<Kind extends PluginKind> {
  readonly instance: InstanceOf[Kind];
  readonly capabilities: ReadonlySet<string>;
  readonly scratch: Scratch;
  readonly fixture: Fixture;
  restart(): Promise<InstanceOf[Kind]>;
}

/**
 * Probes and initialises the plugin in directories of its own, runs every case, and removes what was made. Rejects with
 * `PLUGIN_REFUSED` or `PLUGIN_FAULT` when there is nothing to run the cases on.
 */
export async function runConformance(candidate: unknown, options: ConformanceOptions): Promise<ConformanceReport> {
  const definition = checkDefinition(candidate);
  const { kind } = definition;
  const plugin = pluginName(kind, definition.id);
  const fixture = parseFixture(options.fixture);
  const pluginOptions = parseOptions(definition, fixture);
  const scratch = await Scratch.create();
  try {
    const host = await ownDirectories(options.host, scratch);
    const probe = await runProbe(definition, host, pluginOptions, PROBE_DEADLINE_MS);
    if (!probe.usable) return { plugin, kind, missing: probe.missing, cases: [] };
    const restart = async () => {
      const context = { options: pluginOptions, host, report: probe, log: options.log, guest: options.guest };
      try {
        return guardInstance(plugin, checkInstance(kind, await definition.init(context)));
      } catch (thrown) {
        throw asPluginFault(plugin, "init", thrown);
      }
    };
    const subject = { instance: await restart(), capabilities: new Set(probe.capabilities), scratch, fixture, restart };
    const cases = await runSuite(kind, subject, options);
    if ("close" in subject.instance) await subject.instance.close();
    return { plugin, kind, missing: [], cases };
  } finally {
    await scratch.remove();
  }
}

function runSuite(kind: PluginKind, subject: Subject<PluginKind>, options: ConformanceOptions): Promise<CaseResult[]> {
  switch (kind) {
    case "backend": {
      const { instance, scratch, fixture, restart } = subject as Subject<"backend">;
      return runCases(backendCases, subject, { backend: instance, fixture, scratch, restart }, options);
    }
    case "storage": {
      const { instance, scratch, capabilities, restart } = subject as Subject<"storage">;
      return runCases(storageCases, subject, { storage: instance, scratch, capabilities, restart }, options);
    }
    case "dataplane": {
      const { instance, scratch } = subject as Subject<"dataplane">;
      return runCases(dataplaneCases, subject, { dataplane: instance, scratch }, options);
    }
    case "change-set":
      return runChangeSet(subject as Subject<"change-set">, options);
  }
}

function runChangeSet(subject: Subject<"change-set">, options: ConformanceOptions): Promise<CaseResult[]> {
  const method: ChangeSetMethod = subject.instance;
  const { scratch } = subject;
  if (options.hostGuest !== undefined) {
    const { channel, uid } = options.hostGuest;
    return runCases(changeSetCases, subject, { method, channel, guestUid: uid, scratch }, options);
  }
  const reason = "missing capability: a guest agent";
  const skipped = changeSetCases.map(({ name }): CaseResult => ({ name, outcome: "skipped", reason, durationMs: 0 }));
  for (const result of skipped) options.onResult?.(result);
  return Promise.resolve(skipped);
}

async function runCases<Context>(
  cases: readonly ConformanceCase<Context>[],
  subject: { readonly capabilities: ReadonlySet<string>; readonly fixture: Fixture },
  context: Context,
  options: ConformanceOptions,
): Promise<CaseResult[]> {
  const results: CaseResult[] = [];
  for (const testCase of cases.filter(({ name }) => options.only?.(name) ?? true)) {
    const result = await runCase(testCase, subject.capabilities, context, subject.fixture.caseDeadlineSecs * 1000);
    results.push(result);
    options.onResult?.(result);
  }
  return results;
}

function parseOptions(definition: PluginDefinition, fixture: Fixture): unknown {
  const parsed = definition.options.safeParse(fixture.options);
  if (parsed.success) return parsed.data;
  const text = `the options of the fixture are not valid: ${describeIssues(parsed.error)}`;
  throw new AgentError("PLUGIN_REFUSED", text);
}

async function ownDirectories(host: HostFacts, scratch: Scratch): Promise<HostFacts> {
  const stateDir = await scratch.directory("state", 0o711);
  const runDir = await scratch.directory("run", 0o711);
  const instancesDir = await scratch.directory("state/instances", 0o711);
  return { ...host, stateDir, runDir, instancesDir };
}
