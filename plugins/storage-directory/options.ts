// Options of the directory storage plugin.
import { z } from "zod";

export const options = z.strictObject({
  /** Bound on the entries of one volume, beyond which it is not copied or measured. */
  entries_max: z.int().min(1).max(10_000_000).default(500_000),
  /** How often the free space is looked at, which is what limits how far a fast writer overshoots its bound. */
  watch_interval_ms: z.int().min(10).max(60_000).default(100),
});

export type DirectoryOptions = z.output<typeof options>;
