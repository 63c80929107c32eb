// What the requests for virtual machines have in common, whatever runs them: fields of the wire's specification with their
// bounds, and how a field that is not served is refused.
import { isAbsolute } from "node:path";
import { z } from "zod";
import type { Json, JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

const MBIT_MAX = 8_000_000;
const OPERATIONS_MAX = 10_000_000;
export const MEMORY_MIB_MIN = 64;

export const absolutePath = z
  .string()
  .max(4096)
  .refine((path) => isAbsolute(path) && !path.includes("\0") && !path.split("/").includes(".."), "an absolute path");

/** What every machine is made of. Sizes in MiB and GiB. */
export const machineFields = {
  image: absolutePath,
  image_format: z.enum(["raw", "qcow2"]).optional(),
  initrd: absolutePath.nullish(),
  kernel_args: z.string().max(2048).nullish(),
  vcpus: z.int().min(1).nullish(),
  memory_mib: z.int().min(MEMORY_MIB_MIN).nullish(),
  disk_size_gib: z.int().min(1).nullish(),
};

/** Of reading and writing its own disk together: megabits and operations a second. */
export const diskLimitFields = {
  blk_mbit_limit: z.int().min(1).max(MBIT_MAX).nullish(),
  blk_ops_limit: z.int().min(1).max(OPERATIONS_MAX).nullish(),
};

/** Of reading and writing together; null is no limit. */
export interface DiskLimits {
  readonly blk_mbit_limit: number | null;
  readonly blk_ops_limit: number | null;
}

/** Throws `NOT_SUPPORTED` naming which of `fields` the request asks for. */
export function assertNotAsked(request: JsonObject, fields: readonly string[], backend: string): void {
  const refused = fields.filter((name) => isAsked(request[name]));
  if (refused.length === 0) return;
  throw new AgentError("NOT_SUPPORTED", `the ${backend} backend does not serve ${refused.join(", ")}`, {
    details: { fields: [...refused] },
  });
}

const isAsked = (value: Json | undefined): boolean =>
  value !== undefined && value !== null && value !== false && !(Array.isArray(value) && value.length === 0);

/** Throws `BAD_REQUEST` naming each field that is wrong. */
export function parsed<T>(schema: z.ZodType<T>, request: JsonObject, backend: string): T {
  const result = schema.safeParse(request);
  if (result.success) return result.data;
  const problems = result.error.issues.map((issue) => `${issue.path.join(".") || "request"}: ${issue.message}`);
  throw new AgentError("BAD_REQUEST", `${backend}: ${problems.join("; ")}`);
}

/** Throws `BAD_REQUEST`. */
export function atMost(name: string, value: number, most: number): void {
  if (value > most) throw new AgentError("BAD_REQUEST", `${name} is at most ${most} on this host`);
}

/** Throws `BAD_REQUEST` for what is no kernel's command line. */
export function kernelArguments(text: string): string {
  if (/[^\x20-\x7e]/.test(text)) throw new AgentError("BAD_REQUEST", "kernel_args is printable ASCII");
  return text;
}

/** The format of an image that does not say: by its name. */
export function formatOf(image: string, said: "raw" | "qcow2" | undefined): "raw" | "qcow2" {
  return said ?? (image.endsWith(".qcow2") ? "qcow2" : "raw");
}
