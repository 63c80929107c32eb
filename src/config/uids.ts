// The uids that an agent which is root gives out: three ranges of one size, one right above the other, so that a process
// sandbox, its supervisor and the process of a virtual machine never have the same.
import type { Config } from "./schema.ts";

export interface UidRange {
  readonly first: number;
  readonly count: number;
}

export interface UidRanges {
  readonly sandboxes: UidRange;
  /** Those of process sandboxes, each as far above its sandbox's uid as the ranges are long. */
  readonly supervisors: UidRange;
  readonly machines: UidRange;
  /** All of them together. */
  readonly all: UidRange;
}

export function uidRanges({ uid_base: first, uid_count: count }: Config["sandbox"]["procbox"]): UidRanges {
  return {
    sandboxes: { first, count },
    supervisors: { first: first + count, count },
    machines: { first: first + 2 * count, count },
    all: { first, count: 3 * count },
  };
}
