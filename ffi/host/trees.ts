// Whole directory trees whose content is hostile: copied, measured and removed on native threads, never through links.
import { runJob } from "../channel.ts";

/**
 * Copies a tree to a new directory; `skipped` counts sockets, FIFOs and devices. `EDQUOT`: more than `bytesMax`;
 * `E2BIG`: more than `entriesMax` entries; `ENAMETOOLONG`: too deep. A failed copy leaves what it made.
 */
export async function copyTree(options: {
  readonly source: string;
  readonly target: string;
  readonly bytesMax: number;
  readonly entriesMax: number;
}): Promise<{ bytes: number; entries: number; skipped: number }> {
  return runJob("treeCopy", options, options.source);
}

/** Removes a tree that nothing uses any more, whatever its modes and depth. Already gone is success. */
export async function removeTree(path: string): Promise<{ entries: number }> {
  return runJob("treeRemove", { path }, path);
}

/** Allocated bytes and entries of a tree. `E2BIG`: more than `entriesMax` entries. */
export async function measureTree(path: string, entriesMax: number): Promise<{ bytes: number; entries: number }> {
  return runJob("treeMeasure", { path, entriesMax }, path);
}
