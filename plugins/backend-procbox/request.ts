// The untrusted `procbox` object of a create request, turned into the normalised spec that the record keeps.
import { z } from "zod";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { ProcboxOptions } from "./options.ts";

const request = z.object({
  net_ports: z.array(z.int()).default([]),
  max_memory_mib: z.int().optional(),
  /** The create request's own `memory_mib`, used when `max_memory_mib` is absent. */
  memory_mib: z.int().optional(),
  max_processes: z.int().optional(),
  timeout_seconds: z.int().optional(),
  cpu_seconds: z.int().optional(),
});

/** What a process sandbox was created with, after defaults and bounds. */
export interface ProcboxSpec {
  readonly net_ports: number[];
  readonly memory_mib: number;
  readonly max_processes: number;
  readonly timeout_seconds: number;
  /** Bound on the timeout of one command. */
  readonly max_timeout_seconds: number;
  readonly cpu_seconds: number | null;
}

function bounded(name: string, value: number, min: number, max: number): number {
  if (value < min || value > max) {
    throw new AgentError("BAD_REQUEST", `procbox.${name} must be between ${min} and ${max}`, {
      details: { field: `procbox.${name}`, min, max },
    });
  }
  return value;
}

/** Rejects with 422 for a wrong type, 400 for a value out of bounds; a value over a cap is never lowered. */
export function parseRequest(untrusted: unknown, options: ProcboxOptions): ProcboxSpec {
  const parsed = request.safeParse(untrusted);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    const field = ["procbox", ...(issue?.path ?? [])].join(".");
    throw new AgentError("INVALID_FIELD", `${field}: ${issue?.message ?? "invalid"}`, { details: { field } });
  }
  const body = parsed.data;
  for (const port of body.net_ports) bounded("net_ports", port, 1, 65_535);
  return {
    net_ports: [...new Set(body.net_ports)].sort((a, b) => a - b),
    memory_mib: bounded(
      "max_memory_mib",
      body.max_memory_mib ?? body.memory_mib ?? Math.min(options.default_memory_mib, options.max_memory_mib),
      64,
      options.max_memory_mib,
    ),
    max_processes: bounded("max_processes", body.max_processes ?? options.max_processes, 1, options.max_processes),
    timeout_seconds: bounded(
      "timeout_seconds",
      body.timeout_seconds ?? Math.min(options.default_timeout_secs, options.max_timeout_secs),
      1,
      options.max_timeout_secs,
    ),
    max_timeout_seconds: options.max_timeout_secs,
    cpu_seconds:
      body.cpu_seconds === undefined ? null : bounded("cpu_seconds", body.cpu_seconds, 1, Number.MAX_SAFE_INTEGER),
  };
}
