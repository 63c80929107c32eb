// What the SSH server needs from the rest of the agent. Each member is the smallest shape that serves it; the start of the
// agent binds them to the core and the telemetry.
import type { Config } from "../config/schema.ts";
import type { Logger } from "../contracts/log.ts";
import type { ExecutionOperations } from "../sandbox/executions/operations.ts";
import type { FileSystemOperations } from "../sandbox/files/operations.ts";
import type { Operations } from "../sandbox/operations.ts";
import type { PortOperations } from "../sandbox/ports/operations.ts";
import type { AuditEntry } from "../telemetry/audit.ts";

/** Where the SSH server reports to. */
export interface SshTelemetry {
  readonly log: Logger;
  /** Called for every login and every session, also for refused ones. */
  audit(entry: AuditEntry): void;
  /** Counts `fluxvm_auth_deny_total`. */
  authDenied(): void;
}

export interface SshDependencies {
  readonly config: Config["ssh"];
  readonly stateDir: string;
  readonly operations: Pick<Operations, "visible">;
  readonly executions: ExecutionOperations;
  readonly files: FileSystemOperations;
  readonly ports: Pick<PortOperations, "connectPort">;
  readonly telemetry: SshTelemetry;
}
