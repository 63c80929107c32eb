// The baseline of a sandbox: one file beside its workspace, replaced whole by each new baseline, and what has changed
// since. It belongs to the host and is not part of anything that the sandbox can restore.
import { join } from "node:path";
import type { Context } from "../context.ts";
import { liveOf } from "../guest-access.ts";
import type { BaselineReply, ChangesReply } from "../operations.ts";
import type { Sandbox } from "../sandbox.ts";
import { compareNow } from "./compare-now.ts";
import { list, listingTurn } from "./listing.ts";
import { ListingReader } from "./listing-reader.ts";
import { ListingWriter } from "./listing-writer.ts";
import { assertMembers, listingPaths } from "./paths.ts";

export const BASELINE_NAME = "sandbox-baseline.json";

function baselinePath(context: Context, sandbox: Sandbox): string {
  return join(context.places.instanceDir(sandbox.id), BASELINE_NAME);
}

/** Records the files under `paths` now. Rejects with `PATHS_REQUIRED`, `PATH_INVALID`, `WALK_FAILED`, `LISTING_TOO_LARGE`. */
export async function takeBaseline(
  context: Context,
  sandbox: Sandbox,
  rawPaths: readonly string[],
): Promise<BaselineReply> {
  const paths = listingPaths(rawPaths);
  liveOf(sandbox);
  // One after the other, so that the file is the newest baseline and has one temporary name.
  return await sandbox.baselines.run("baseline", () =>
    listingTurn(sandbox, async () => {
      const { changeSets, clock, crashPoint } = context.dependencies;
      const takenAtUnixMs = clock.nowUnixMs();
      const channel = await liveOf(sandbox).instance.channel();
      const writer = await ListingWriter.create(baselinePath(context, sandbox), paths);
      try {
        const { mode, digest, files } = await list(changeSets, channel, { paths }, writer);
        await writer.finish({ mode, takenAtUnixMs, digest, files }, crashPoint);
        return { files, mode, paths };
      } finally {
        await writer.discard();
      }
    }),
  );
}

/**
 * What changed since the baseline, under all of its paths or some of them. Rejects with `BASELINE_MISSING`,
 * `BASELINE_CORRUPT`, `BASELINE_MODE_CHANGED` and what `takeBaseline` rejects with.
 */
export async function changesSinceBaseline(
  context: Context,
  sandbox: Sandbox,
  rawPaths: readonly string[] | undefined,
): Promise<ChangesReply> {
  const asked = rawPaths === undefined ? null : listingPaths(rawPaths);
  const { instance } = liveOf(sandbox);
  return await listingTurn(sandbox, async () => {
    const stored = await ListingReader.open(baselinePath(context, sandbox));
    try {
      const { head } = stored;
      if (asked !== null) assertMembers(asked, head.paths);
      const paths = asked ?? head.paths;
      const channel = await instance.channel();
      const changes = await compareNow(context.dependencies.changeSets, channel, stored, paths);
      return { ...changes, baselineTakenAtUnix: Math.floor(head.takenAtUnixMs / 1000) };
    } finally {
      await stored.close();
    }
  });
}
