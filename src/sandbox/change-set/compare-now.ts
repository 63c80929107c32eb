// What changed between a stored listing and now. A path that is not there any more holds nothing: all that was under it
// is deleted. Guests refuse to list such a path, because for a baseline it is most likely a mistyped one.
import type { ChangeSetMethod } from "../../contracts/change-set.ts";
import type { GuestChannel, ManifestSink } from "../../contracts/channel.ts";
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { withDeadline } from "../../errors/deadline.ts";
import type { Changes } from "../operations.ts";
import { Comparison } from "./comparison.ts";
import { list, type Listed } from "./listing.ts";
import type { ListingReader } from "./listing-reader.ts";

/** Takes entries and forgets them. */
const NOWHERE: ManifestSink = { entry() {}, difference() {}, async drained() {} };

/** Compares what is under `paths` now with `stored`. Rejects with what listing rejects with and `BASELINE_MODE_CHANGED`. */
export async function compareNow(
  methods: readonly ChangeSetMethod[],
  channel: GuestChannel,
  stored: ListingReader,
  paths: readonly Uint8Array[],
): Promise<Changes> {
  const comparison = new Comparison(stored, paths);
  const whole = { paths, base: stored.head.digest };
  const listed = await list(methods, channel, whole, comparison).catch((error: unknown) => {
    if (!isMissing(error)) throw error;
    const rest = listRest(methods, channel, stored, paths, comparison);
    return withDeadline(rest, limits.manifestTimeoutMs, "listing the files");
  });
  return await comparison.finish(listed);
}

/** Lists those of `paths` that are there, whole: a difference would say nothing of the others. */
async function listRest(
  methods: readonly ChangeSetMethod[],
  channel: GuestChannel,
  stored: ListingReader,
  paths: readonly Uint8Array[],
  sink: ManifestSink,
): Promise<Listed> {
  const left: Uint8Array[] = [];
  for (const path of paths) if (await isThere(methods, channel, path)) left.push(path);
  if (left.length > 0) return await list(methods, channel, { paths: left }, sink);
  const { mode, digest } = stored.head;
  return { mode, digest, files: 0, delta: false, unchanged: 0 };
}

/** The files under a path are hashed already where they did not change, so that this is mostly a walk. */
async function isThere(methods: readonly ChangeSetMethod[], channel: GuestChannel, path: Uint8Array): Promise<boolean> {
  try {
    await list(methods, channel, { paths: [path] }, NOWHERE);
    return true;
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof AgentError && error.code === "FILE_NOT_FOUND";
}
