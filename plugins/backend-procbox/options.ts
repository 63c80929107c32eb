// Options of the process-sandbox backend: the `[sandbox.procbox]` section of the configuration, with its defaults.
import { z } from "zod";

export const options = z.object({
  enabled: z.boolean().default(false),
  best_effort: z.boolean().default(false),
  allow_net: z.boolean().default(false),
  default_timeout_secs: z.int().min(1).default(30),
  max_timeout_secs: z.int().min(1).default(300),
  default_memory_mib: z.int().min(64).default(512),
  max_memory_mib: z.int().min(64).default(2048),
  max_processes: z.int().min(1).default(4096),
  max_workspace_mib: z.int().min(1).default(1024),
  uid_base: z.int().min(1).default(200_000),
  uid_count: z.int().min(1).default(4096),
  isolation: z.enum(["off", "auto", "strict"]).default("auto"),
  /** TCP ports that no sandbox may be granted: the agent's own. Set by the agent, not by the operator. */
  reserved_ports: z.array(z.int()).default([]),
});

export type ProcboxOptions = z.infer<typeof options>;
