// What can be asked of the host's side of a sandbox: what it uses, what it waits for, and what it may use.
import type { MemoryUse, Pressure, ResourceLimits, ResourceUse } from "../../contracts/backend.ts";
import type { Caller } from "../operations.ts";

/**
 * Every method rejects with `AgentError`: `INVALID_STATE` for a sandbox that does not run, `NOT_SUPPORTED` where the
 * backend tells nothing, `CAPABILITY_MISSING` for what this host cannot do.
 */
export interface ResourceOperations {
  /** Holds, over restarts too, until another is set. Nothing changes when one of them cannot be. Answers what is used. */
  limitResources(caller: Caller, id: string, limits: ResourceLimits): Promise<ResourceUse>;
  resourceUse(caller: Caller, id: string): Promise<ResourceUse>;
  pressure(caller: Caller, id: string): Promise<Readonly<Record<"cpu" | "memory" | "io", Pressure>>>;
  /** Processors and memory nodes of the host, as the kernel lists them. */
  cpuset(caller: Caller, id: string): Promise<{ readonly cpus: string; readonly mems: string }>;
  /** `usage` is null for a sandbox that does not run. */
  memoryUse(caller: Caller, id: string): Promise<{ readonly configuredMib: number; readonly usage: MemoryUse | null }>;
}
