// What may be asked of the fake backend: its options in the configuration, and the same knobs in a create request.
import { z } from "zod";

/** The steps at which a failure can be injected. */
export const FAIL_STEPS = ["plan", "launch", "channel", "exec", "stop", "release"] as const;

const delayMs = z.number().int().min(0).max(600_000);

const injected = {
  launch_delay_ms: delayMs.default(0),
  exec_delay_ms: delayMs.default(0),
  stop_delay_ms: delayMs.default(0),
  /** The step that fails, every time it is reached. */
  fail_at: z.enum(FAIL_STEPS).optional(),
};

export const optionsSchema = z.strictObject({ enabled: z.boolean().default(false), ...injected });
export type FakeOptions = z.output<typeof optionsSchema>;

export const requestSchema = z.strictObject({
  vcpus: z.number().int().min(1).max(64).default(1),
  memory_mib: z.number().int().min(16).max(65_536).default(64),
  max_workspace_mib: z.number().int().min(1).max(65_536).default(64),
  launch_delay_ms: delayMs.optional(),
  exec_delay_ms: delayMs.optional(),
  stop_delay_ms: delayMs.optional(),
  fail_at: z.enum(FAIL_STEPS).optional(),
});

/** A request with the options filled in: what a plan carries to `launch`. */
export const specSchema = requestSchema.required({
  launch_delay_ms: true,
  exec_delay_ms: true,
  stop_delay_ms: true,
});
export type FakeSpec = z.output<typeof specSchema>;
