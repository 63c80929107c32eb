// The composition root: what is wired to what, in the order in which an agent starts, and the reverse at its end.
// Nothing listens before the state is locked, read and reconciled with what lives on the host.
import { join } from "node:path";
import packageJson from "../package.json" with { type: "json" };
import { monotonicNs } from "../ffi/host/clock.ts";
import { FileLock } from "../ffi/host/files.ts";
import { receiveNow } from "../ffi/host/sockets.ts";
import { removeTree } from "../ffi/host/trees.ts";
import { isWritable } from "../ffi/readiness.ts";
import { claimRange } from "../plugins/host/claim.ts";
import { Guard } from "../plugins/host/ebpf/guard.ts";
import { networkPresence } from "../plugins/host/ebpf/presence.ts";
import { hostTableState } from "../plugins/host/host-table.ts";
import { RESERVED_BLOCKS } from "../plugins/host/network/addresses.ts";
import { builtInPlugins } from "../plugins/index.ts";
import { openPlumbing } from "./agent-network.ts";
import { type AgentTelemetry, openTelemetry } from "./agent-telemetry.ts";
import { limits } from "./config/limits.ts";
import { parseListen } from "./config/listen.ts";
import type { Config } from "./config/schema.ts";
import { uidRanges } from "./config/uids.ts";
import type { JsonObject } from "./contracts/json.ts";
import type { Logger } from "./contracts/log.ts";
import type { HostFacts, PluginKind } from "./contracts/plugin.ts";
import { examine } from "./doctor/doctor.ts";
import { AgentError, asAgentError } from "./errors/agent-error.ts";
import { createGuestConnector } from "./guest/connector.ts";
import { createApp } from "./http/app.ts";
import type { HttpDependencies } from "./http/dependencies.ts";
import { prepareNativeFiles } from "./native-files.ts";
import { tcpdump } from "./network/captures.ts";
import { chooseDataplane, type DataplaneMode } from "./network/dataplane-choice.ts";
import { createDnsResolver } from "./network/dns-resolver.ts";
import { type NetworkServices, openNetwork } from "./network/services.ts";
import { NetworkStore } from "./network/store.ts";
import { discoverExternal } from "./registry/external.ts";
import { type Registry, startRegistry, strayOptions } from "./registry/registry.ts";
import { systemClock } from "./sandbox/clock.ts";
import { createCore, type SandboxCore } from "./sandbox/core.ts";
import { CRASH_POINTS, type CrashHook } from "./sandbox/crash-points.ts";
import type { CoreSettings, LeaseKind } from "./sandbox/dependencies.ts";
import { makePassableDir } from "./sandbox/places.ts";
import { openStore } from "./state/store.ts";
import { EventBus } from "./telemetry/events.ts";
import { createLogger } from "./telemetry/log.ts";
import { TemplateStore } from "./templates/store.ts";

export interface RunningAgent {
  /** `http://127.0.0.1:7788`, `https://…` or `unix:/path`. */
  readonly url: string;
  /** Resolves when the agent cannot go on and has to be restarted. */
  readonly failed: Promise<AgentError>;
  /** Stops listening, lets go of every sandbox without ending it, and closes the state. */
  stop(): Promise<void>;
}

/** Starts the agent. Rejects with an `AgentError` and holds nothing when it cannot. */
export async function startAgent({ config }: { config: Config }): Promise<RunningAgent> {
  const log = createLogger({ level: config.log_level, isWritable });
  await using starting = new AsyncDisposableStack();
  await makeDirectories(config);
  const host = await prepareNativeFiles(config, join(config.state_dir, "bin"));
  await takeLocks(config, starting);

  const store = await openStore({ stateDir: config.state_dir, log });
  starting.defer(() => store.close());
  const telemetry = await openTelemetry(config, log, () => core.census());
  starting.defer(() => telemetry.close());
  const registry = await startRegistry({
    registrations: [
      ...builtInPlugins.map((definition) => ({ source: "built-in", definition })),
      ...(await discoverExternal(config.plugins_dir, host.uid)),
    ],
    host,
    optionsOf: pluginOptions(config),
    guest: createGuestConnector({ receive: receiveNow }),
    log,
  });
  starting.defer(() => registry.close());
  for (const plugin of strayOptions(config.plugins, registry.report())) {
    log.warn({ plugin }, "the configuration has options for a plugin that does not exist");
  }

  const events = new EventBus(store);
  const plumbing = openPlumbing(host, ownPorts(config), log, starting);
  const notes = () => plumbing?.notes() ?? [];
  const network = await openNetworkOf(config, host, registry, telemetry, log, () => core, notes);
  starting.defer(() => network.stop());
  telemetry.network.census = () => network.census();
  const core = createCore({
    store,
    backends: new Map(registry.list("backend").map(({ id, instance }) => [id, instance])),
    storage: chosenStorage(registry, config.storage.plugin),
    changeSets: registry.list("change-set").map(({ instance }) => instance),
    dataplanes: new Map(registry.list("dataplane").map(({ id, instance }) => [id, instance])),
    network: { plumbing, life: network.life },
    settings: coreSettings(config, host),
    claimLeases: (kind) => claimLeases(config, kind),
    removeTree,
    clock: systemClock,
    log,
    metrics: telemetry.core,
    publish: (event) => events.publish(event),
    crashPoint: crashHook(log),
  });
  const reconciled = await core.reconcile();
  log.info({ ...reconciled }, "state reconciled with the host");
  starting.defer(() => core.shutdown(limits.shutdownBudgetMs / 2));

  const app = createApp({
    config,
    version: packageJson.version,
    operations: core.operations,
    executions: core.executions,
    files: core.files,
    ports: core.ports,
    snapshots: core.snapshots,
    consoles: core.consoles,
    pools: core.pools,
    resources: core.resources,
    templates: templatesOf(config, core),
    network,
    store,
    events,
    flows: network.flows,
    telemetry: telemetry.http,
    host: {
      plugins: () => registry.report().map((report) => ({ ...report }) as unknown as JsonObject),
      doctor: async () => (await examineHere(config, registry, core)) as unknown as JsonObject[],
      readiness: async () => readiness(registry),
    },
  });
  const ssh = config.ssh.listen === null ? null : await listenForSsh(config, core, telemetry);
  if (ssh !== null) {
    starting.defer(() => ssh.stop());
    log.info({ address: ssh.address, host_key: ssh.fingerprint }, "listening for SSH");
  }
  const server = await app.listen();
  core.startKeepers();
  network.start();
  log.info({ url: server.url, version: packageJson.version }, "listening");

  const running = starting.move();
  return {
    url: server.url,
    failed: store.failed,
    async stop() {
      // First, because a dry-run may last longer than the budget and cannot outlive the agent.
      core.close();
      await Promise.all([server.stop(limits.shutdownBudgetMs / 2), ssh?.stop()]);
      await running.disposeAsync();
      log.info({}, "stopped");
    },
  };
}

async function openNetworkOf(
  config: Config,
  host: HostFacts,
  registry: Registry,
  telemetry: AgentTelemetry,
  log: Logger,
  core: () => SandboxCore,
  notes: () => readonly string[],
): Promise<NetworkServices> {
  const { dataplane: settings } = config.sandbox;
  const find = (mode: DataplaneMode) => {
    try {
      return registry.get("dataplane", mode).instance;
    } catch (error) {
      return asAgentError(error);
    }
  };
  const { default_allow, allow_cidrs, allow_ports, max_egress_mbps, max_egress_pps, sample_rate } = settings;
  const chosen = chooseDataplane({ mode: settings.mode, required: settings.required, find, log });
  await ensureGuard(config, host, chosen.mode, log);
  return await openNetwork({
    ...chosen,
    store: new NetworkStore(config.state_dir),
    directory: { get: (id) => core().directory.get(id), all: () => core().directory.all() },
    defaults: { default_allow, allow_cidrs, allow_ports, max_egress_mbps, max_egress_pps, sample_rate },
    resolver: createDnsResolver(),
    addresses: () => core().addressUse(),
    presence: () => networkPresence(settings.pin_root),
    notes,
    capturesDir: join(config.state_dir, "captures"),
    captureProgram: tcpdump,
    nowMs: () => systemClock.nowUnixMs(),
    monotonicNowNs: monotonicNs,
    log,
    metrics: telemetry.network,
  });
}

/** Puts the guard of the host's own interface there, or takes it away. Rejects only where it is required. */
async function ensureGuard(config: Config, host: HostFacts, mode: DataplaneMode, log: Logger): Promise<void> {
  const { xdp } = config.sandbox.dataplane;
  if (host.uid !== 0 && !xdp.enabled) return;
  const guard = new Guard({
    enabled: xdp.enabled,
    interface: xdp.interface,
    blockCidrs: xdp.block_cidrs,
    object: { path: xdp.bpf_object, builtInPath: host.guardObjectPath },
    pinRoot: xdp.pin_root,
    runDir: host.runDir,
    stateDir: host.stateDir,
    besideCilium: mode === "cilium",
    log,
  });
  await guard.ensure().catch((error: unknown) => {
    if (xdp.required) throw error;
    log.warn({ reason: asAgentError(error).message }, "the guard of the host's interface is not as it should be");
  });
}

function templatesOf(config: Config, core: SandboxCore): HttpDependencies["templates"] {
  const directory = config.sandbox.templates_dir ?? join(config.state_dir, "templates");
  const store = new TemplateStore(directory, (path) => FileLock.take(path));
  return {
    list: () => store.list(),
    get: (name) => store.get(name),
    delete: (name) => store.delete(name, () => core.dependants()),
  };
}

/** Loaded only where it is wanted. */
async function listenForSsh(config: Config, core: SandboxCore, telemetry: AgentTelemetry) {
  const { startSshServer } = await import("./ssh/server.ts");
  const { operations, executions, files, ports } = core;
  const { state_dir: stateDir, ssh } = config;
  return startSshServer({ config: ssh, stateDir, operations, executions, files, ports, telemetry: telemetry.http });
}

/** Sandboxes pass through these; what is private below them is private by itself. */
async function makeDirectories(config: Config): Promise<void> {
  for (const path of [join(config.state_dir, "instances"), join(config.run_dir, "sandboxes")]) {
    await makePassableDir(path).catch((cause: unknown) => {
      const reason = (cause as NodeJS.ErrnoException).code ?? String(cause);
      const denied = reason === "EACCES";
      const remedy = denied ? ": set state_dir and run_dir to directories of this user; fluxctl init chooses them" : "";
      throw new AgentError("CONFIG_INVALID", `cannot make the directory ${path} (${reason})${remedy}`, { cause });
    });
  }
}

/** One agent per state directory and per run directory; the kernel drops the locks with the process. */
async function takeLocks(config: Config, stack: AsyncDisposableStack): Promise<void> {
  for (const directory of [config.state_dir, config.run_dir]) {
    const lock = await FileLock.take(join(directory, "agent.lock"));
    if (lock === null) throw new AgentError("STATE_LOCKED", `another agent uses ${directory}`);
    stack.use(lock);
  }
}

async function claimLeases(config: Config, kind: LeaseKind): Promise<void> {
  const { state_dir: stateDir, sandbox } = config;
  if (kind === "uid" || kind === "machine_uid") {
    // The three ranges are one claim.
    await claimRange({ kind: "uid", stateDir, ...uidRanges(sandbox.procbox).all }, "sandbox.procbox.uid_base");
  } else if (kind === "cid") {
    const { cid_base: first, cid_count: count } = sandbox.vsock;
    await claimRange({ kind, stateDir, first, count }, "sandbox.vsock.cid_base");
  } else {
    const { block_base: first, block_count: count } = sandbox.addresses;
    await claimRange({ kind, stateDir, first, count }, "sandbox.addresses.block_base");
  }
}

/** Options of a plugin: the sections that the configuration has for built-ins, else `[plugins.<kind>.<id>]`. */
export function pluginOptions(config: Config): (kind: PluginKind, id: string) => unknown {
  const { pin_root, bpf_object } = config.sandbox.dataplane;
  const programOptions = { pin_root, bpf_object };
  const { default_bridge, policy } = config;
  const networkOptions = { default_bridge, allowed_network_modes: policy.allowed_network_modes };
  const sections: Readonly<Record<string, unknown>> = {
    "backend/procbox": { ...config.sandbox.procbox, reserved_ports: ownPorts(config) },
    "backend/qemu": {
      ...config.plugins.backend.qemu,
      ...networkOptions,
      qemu_binary: config.qemu_binary,
      qemu_img_binary: config.qemu_img_binary,
      virtiofsd_binary: config.virtiofsd_binary,
    },
    "backend/flux-vm": {
      ...config.plugins.backend["flux-vm"],
      ...networkOptions,
      isolation: config.isolation,
      fluxvm_engine: config.fluxvm_engine ?? undefined,
    },
    "dataplane/ebpf": programOptions,
    "dataplane/cilium": programOptions,
    "storage/btrfs": config.storage.pool_size_mib === null ? {} : { pool_size_mib: config.storage.pool_size_mib },
  };
  return (kind, id) => sections[`${kind}/${id}`] ?? config.plugins[kind][id];
}

/** The TCP ports that the agent itself listens on, as far as the configuration names them. */
function ownPorts(config: Config): number[] {
  return [config.listen, config.ssh.listen ?? ""].flatMap((listen) => {
    const address = parseListen(listen);
    return address?.kind === "tcp" && address.port > 0 ? [address.port] : [];
  });
}

/** The storage plugin that the operator names, else the first that works on this host. */
function chosenStorage(registry: Registry, id: string | null) {
  if (id !== null) return registry.get("storage", id).instance;
  const [storage] = registry.list("storage");
  if (storage === undefined) throw new AgentError("CAPABILITY_MISSING", "no storage plugin can be used on this host");
  return storage.instance;
}

function coreSettings(config: Config, host: HostFacts): CoreSettings {
  const uids = uidRanges(config.sandbox.procbox);
  const { cid_base, cid_count } = config.sandbox.vsock;
  const { block_base, block_count } = config.sandbox.addresses;
  return {
    instancesDir: host.instancesDir,
    runDir: config.run_dir,
    sandboxesMax: config.limits.sandboxes_max,
    vmsMaxPerToken: config.auth.max_vms_per_token,
    memoryMibMaxPerToken: config.auth.max_memory_mib_per_token,
    leaseRanges: {
      uid: uids.sandboxes,
      machine_uid: uids.machines,
      cid: { first: cid_base, count: cid_count },
      address: { first: block_base, count: block_count, excluded: RESERVED_BLOCKS },
    },
    readyTimeoutMs: config.sandbox.ready_timeout_secs * 1000,
    networksLookedAtMs: limits.networksLookedAtMs,
    reaperIntervalMs: config.reaper_interval_secs * 1000,
    reservedHostPorts: new Set(ownPorts(config)),
  };
}

async function examineHere(config: Config, registry: Registry, { directory }: SandboxCore) {
  const { landlockAbi } = await import("../ffi/host/landlock.ts");
  const isRoot = process.geteuid?.() === 0;
  return examine({
    config,
    plugins: registry.report(),
    landlockAbi: landlockAbi(),
    hostTable: isRoot ? await hostTableState().catch(() => null) : null,
    sandboxIds: new Set(directory.all().map(({ id }) => id)),
  });
}

/** Ready means that sandboxes can be made: a plugin that nobody needs may fail and only `doctor` complains. */
function readiness(registry: Registry) {
  return (["backend", "storage", "change-set"] as const).map((name) => {
    const ok = registry.list(name).length > 0;
    return ok ? { name, ok } : { name, ok, reason: `no ${name} plugin can be used on this host` };
  });
}

/** Ends the agent at a named step, for the tests that prove what a crash there leaves. Does nothing by default. */
function crashHook(log: Logger): CrashHook {
  const wanted = process.env.FLUXVM_TEST_CRASH_AT;
  if (wanted === undefined || wanted === "") return () => {};
  const point = CRASH_POINTS.find((name) => name === wanted);
  if (point === undefined) throw new AgentError("CONFIG_INVALID", `FLUXVM_TEST_CRASH_AT names no step: ${wanted}`);
  return (reached) => {
    if (reached !== point) return;
    log.warn({ point }, "ending at a step, as asked by a test");
    process.kill(process.pid, "SIGKILL");
  };
}
