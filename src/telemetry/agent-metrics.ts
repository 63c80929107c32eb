// The agent's own metrics. The names that do not begin with `fluxvm_http_` are part of the wire contract and are emitted
// with zero values even when nothing has happened.
import { readFileSync } from "node:fs";
import type { Counter, Histogram, MetricsRegistry } from "./metrics.ts";

const VM_STATUSES = ["creating", "running", "paused", "stopped", "failed"];
const VM_BACKENDS = ["qemu", "cloud-hypervisor", "firecracker", "fluxvm", "vz"];
/** Record words whose metrics label differs. */
const BACKEND_LABELS: ReadonlyMap<string, string> = new Map([["flux-vm", "fluxvm"]]);

const REQUEST_BUCKETS_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

/** Sandboxes by `status` and by backend. */
export interface Census {
  readonly byStatus: ReadonlyMap<string, number>;
  readonly byBackend: ReadonlyMap<string, number>;
}

/** What the parts of the agent report to; each method is one fact. */
export class AgentMetrics {
  readonly #creates: Counter;
  readonly #createMs: Counter;
  readonly #starts: Counter;
  readonly #startMs: Counter;
  readonly #denied: Counter;
  readonly #requests: Counter;
  readonly #requestSeconds: Histogram;

  /** Registers everything. `census` is asked at each rendering, as are the host's memory files. */
  constructor(registry: MetricsRegistry, census: () => Census) {
    registerCensus(registry, census);
    registerHostMemory(registry);
    registerContractZeros(registry);
    this.#creates = registry.counter("fluxvm_vm_create_total", "Sandboxes created.");
    this.#createMs = registry.counter("fluxvm_vm_create_duration_ms_total", "Milliseconds spent creating them.");
    this.#starts = registry.counter("fluxvm_vm_start_total", "Sandboxes started.");
    this.#startMs = registry.counter("fluxvm_vm_start_duration_ms_total", "Milliseconds spent starting them.");
    this.#denied = registry.counter("fluxvm_auth_deny_total", "Requests refused for their credentials.");
    this.#requests = registry.counter("fluxvm_http_requests_total", "Requests answered.", [
      "method",
      "route",
      "status",
    ]);
    this.#requestSeconds = registry.histogram(
      "fluxvm_http_request_duration_seconds",
      "Time from a request to its answer.",
      REQUEST_BUCKETS_SECONDS,
      ["method", "route"],
    );
  }

  created(durationMs: number): void {
    this.#creates.add();
    this.#createMs.add(Math.round(durationMs));
  }

  started(durationMs: number): void {
    this.#starts.add();
    this.#startMs.add(Math.round(durationMs));
  }

  authDenied(): void {
    this.#denied.add();
  }

  /** `route` is a path template, so that its values stay few. */
  answered(route: string, method: string, status: number, durationMs: number): void {
    this.#requests.add(1, { method, route, status: String(status) });
    this.#requestSeconds.observe(durationMs / 1000, { method, route });
  }
}

function registerCensus(registry: MetricsRegistry, census: () => Census): void {
  const byStatus = registry.gauge("fluxvm_vms_total", "VM records by status.", ["status"]);
  const byBackend = registry.gauge("fluxvm_vms_by_backend", "VM records by backend.", ["backend"]);
  for (const status of VM_STATUSES) byStatus.set(0, { status });
  for (const backend of VM_BACKENDS) byBackend.set(0, { backend });
  registry.onRender(() => {
    const now = census();
    byStatus.zero();
    byBackend.zero();
    for (const [status, count] of now.byStatus) byStatus.set(count, { status });
    for (const [id, count] of now.byBackend) byBackend.set(count, { backend: BACKEND_LABELS.get(id) ?? id });
  });
}

/** Names of the contract that nothing in this build moves; scrapers expect them all the same. */
function registerContractZeros(registry: MetricsRegistry): void {
  registry.gauge("fluxvm_vms_agent_enabled", "VM records with a guest agent enabled in their request.");
  registry.gauge("fluxvm_sandbox_balloons_inflated", "VMs whose balloon is inflated.");
  registry.counter("fluxvm_egress_deny_total", "Connections refused by an egress policy.");
  registry.counter("fluxvm_sandbox_warm_hits_total", "Creations served by a warm slot.");
  registry.counter("fluxvm_sandbox_warm_misses_total", "Creations that found no warm slot.");
  registry.counter("fluxvm_vz_agent_calls_total", "Calls to guest agents of vz machines.");
  registry.counter("fluxvm_vz_agent_ssh_fallbacks_total", "Calls to vz machines that fell back to SSH.");
}

function registerHostMemory(registry: MetricsRegistry): void {
  const level = registry.gauge("fluxvm_host_memory_pressure_level", "Memory pressure: 0 none, 1 some, 2 high.");
  const available = registry.gauge("fluxvm_host_mem_available_mib", "Memory that can be given out, in MiB.");
  registry.onRender(() => {
    const { totalMib, availableMib } = hostMemory(readProc("/proc/meminfo"));
    available.set(availableMib);
    level.set(pressureLevel(readProc("/proc/pressure/memory"), totalMib === 0 ? 1 : availableMib / totalMib));
  });
}

export function hostMemory(meminfo: string): { totalMib: number; availableMib: number } {
  const mib = (key: string): number => {
    const kib = new RegExp(`^${key}:\\s+(\\d+) kB$`, "m").exec(meminfo)?.[1];
    return Math.floor(Number(kib ?? 0) / 1024);
  };
  return { totalMib: mib("MemTotal"), availableMib: mib("MemAvailable") };
}

/** From the kernel's pressure file (empty where the kernel has none) and the share of memory that is available. */
export function pressureLevel(pressure: string, availableShare: number): 0 | 1 | 2 {
  const stalled = (kind: "some" | "full"): number =>
    Number(new RegExp(`^${kind} avg10=([\\d.]+)`, "m").exec(pressure)?.[1] ?? 0);
  if (stalled("full") >= 5 || availableShare < 0.05) return 2;
  return stalled("some") >= 10 || availableShare < 0.1 ? 1 : 0;
}

function readProc(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    // A kernel without pressure accounting is not an error of the agent.
    return "";
  }
}
