// What the HTTP surface needs from the rest of the agent. Each member is the smallest shape that serves the routes; the
// start of the agent binds them to the core, the store, the registry and the telemetry.
import type { Config } from "../config/schema.ts";
import type { JsonObject } from "../contracts/json.ts";
import type { Logger } from "../contracts/log.ts";
import type { ConsoleOperations } from "../sandbox/console/operations.ts";
import type { ExecutionOperations } from "../sandbox/executions/operations.ts";
import type { FileOperations } from "../sandbox/files/operations.ts";
import type { Operations } from "../sandbox/operations.ts";
import type { PoolOperations } from "../sandbox/pools/operations.ts";
import type { PortOperations } from "../sandbox/ports/operations.ts";
import type { ResourceOperations } from "../sandbox/resources/operations.ts";
import type { SnapshotOperations } from "../sandbox/snapshots/operations.ts";
import type { FlowFeed } from "../network/flow-feed.ts";
import type { NetworkServices } from "../network/services.ts";
import type { Store } from "../state/change.ts";
import type { AuditEntry } from "../telemetry/audit.ts";
import type { EventBus } from "../telemetry/events.ts";
import type { TemplateStore } from "../templates/store.ts";

/** Where the HTTP surface reports to. */
export interface HttpTelemetry {
  readonly log: Logger;
  /** Called for every request, also for refused ones. */
  audit(entry: AuditEntry): void;
  /** Counts `fluxvm_auth_deny_total`. */
  authDenied(): void;
  /** Counts one answered request; `route` is the path template, so that its values stay few. */
  answered(route: string, method: string, status: number, durationMs: number): void;
  /** Prometheus text exposition of every metric of the agent. */
  metricsText(): string | Promise<string>;
}

export interface ReadinessCheck {
  readonly name: string;
  readonly ok: boolean;
  readonly reason?: string;
}

/** Facts about the host and the plugins, as wire objects. */
export interface HostReports {
  /** One entry a plugin: what is loaded, what was skipped or failed, and why. */
  plugins(): readonly JsonObject[];
  /** One entry a check, with a remedy where it failed. */
  doctor(): Promise<readonly JsonObject[]>;
  readiness(): Promise<readonly ReadinessCheck[]>;
}

export interface HttpDependencies {
  readonly config: Pick<Config, "listen" | "auth" | "tls">;
  /** Version of the agent, for the OpenAPI document. */
  readonly version: string;
  readonly operations: Operations;
  readonly executions: ExecutionOperations;
  readonly files: FileOperations;
  readonly ports: PortOperations;
  readonly snapshots: SnapshotOperations;
  readonly consoles: ConsoleOperations;
  readonly pools: PoolOperations;
  readonly resources: ResourceOperations;
  readonly templates: Pick<TemplateStore, "list" | "get"> & { delete(name: string): Promise<void> };
  readonly store: Pick<Store, "idempotency" | "commit" | "events">;
  readonly events: Pick<EventBus, "epoch" | "sequence" | "follow">;
  readonly network: NetworkServices;
  /** Null where the dataplane of this host tells no flows. */
  readonly flows: Pick<FlowFeed, "epoch" | "join" | "follow"> | null;
  readonly telemetry: HttpTelemetry;
  readonly host: HostReports;
}
