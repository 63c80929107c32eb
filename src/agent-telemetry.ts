// Binds the telemetry of one agent: its metrics, audit trail and event loop, in the shapes that core and HTTP ask for.
import type { Config } from "./config/schema.ts";
import type { Logger } from "./contracts/log.ts";
import type { HttpTelemetry } from "./http/dependencies.ts";
import type { CoreMetrics } from "./sandbox/dependencies.ts";
import { AgentMetrics, type Census } from "./telemetry/agent-metrics.ts";
import { openAudit } from "./telemetry/audit.ts";
import { LoopDelay } from "./telemetry/loop-delay.ts";
import { MetricsRegistry } from "./telemetry/metrics.ts";
import { NetworkMeter } from "./telemetry/network-metrics.ts";

export interface AgentTelemetry {
  readonly core: CoreMetrics;
  readonly http: HttpTelemetry;
  /** Knows of no network until its `census` is set. */
  readonly network: NetworkMeter;
  close(): Promise<void>;
}

/** `census` is asked at each scrape. */
export async function openTelemetry(config: Config, log: Logger, census: () => Census): Promise<AgentTelemetry> {
  const registry = new MetricsRegistry();
  const metrics = new AgentMetrics(registry, census);
  const network = new NetworkMeter(registry);
  const audit = await openAudit({ log, file: config.audit_log });
  const loop = new LoopDelay();
  const loopDelay = registry.gauge(
    "fluxvm_event_loop_delay_max_ms",
    "Longest time in ms for which the agent's event loop was late, since the last scrape.",
  );
  registry.onRender(() => loopDelay.set(loop.takeMaxMs()));
  loop.start();
  return {
    core: metrics,
    network,
    http: {
      log,
      audit: (line) => audit.record(line),
      authDenied: () => metrics.authDenied(),
      answered: (route, method, status, durationMs) => metrics.answered(route, method, status, durationMs),
      async metricsText() {
        await network.refresh();
        return registry.render();
      },
    },
    async close() {
      loop.stop();
      await audit.close();
    },
  };
}
