// Options of the btrfs storage plugin, and the size of the pool that follows from them.
import { z } from "zod";

const MIB = 1024 * 1024;
export const POOL_MIN_BYTES = 512 * MIB;
const POOL_DEFAULT_MAX_BYTES = 16 * 1024 * MIB;
const POOL_DEFAULT_SHARE = 0.4;

export const options = z.strictObject({
  /** Size of the pool image. Null: 16 GiB, but at most 40 % of the free space when it is made. */
  pool_size_mib: z
    .int()
    .min(POOL_MIN_BYTES / MIB)
    .max(2 ** 30)
    .nullable()
    .default(null),
});

export type BtrfsOptions = z.output<typeof options>;

/** Bytes of a new pool image on a file system with `availableBytes` free, in whole MiB. */
export function poolBytes({ pool_size_mib }: BtrfsOptions, availableBytes: number): number {
  if (pool_size_mib !== null) return pool_size_mib * MIB;
  return Math.floor(Math.min(POOL_DEFAULT_MAX_BYTES, availableBytes * POOL_DEFAULT_SHARE) / MIB) * MIB;
}
