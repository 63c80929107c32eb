// A command that is watched: the files before it, the command, the files after it, and what differs.
import { limits } from "../../config/limits.ts";
import type { ExecResult, GuestChannel } from "../../contracts/channel.ts";
import type { Context } from "../context.ts";
import type { Environment } from "../environment.ts";
import { execRequest } from "../guest-access.ts";
import type { Changes } from "../operations.ts";
import { withDeadline } from "../../errors/deadline.ts";
import { compareNow } from "./compare-now.ts";
import { list } from "./listing.ts";
import { ListingReader } from "./listing-reader.ts";
import { ListingWriter } from "./listing-writer.ts";

export interface ObservedCommand {
  readonly command: string;
  readonly environment: Environment;
  readonly timeoutMs: number;
  readonly paths: readonly Uint8Array[];
  /** Where the listing from before lies meanwhile. */
  readonly listing: string;
}

/** Rejects with what listing and commands reject with; a timeout of the command is a result. */
export async function observe(
  context: Context,
  channel: GuestChannel,
  { command, environment, timeoutMs, paths, listing }: ObservedCommand,
): Promise<{ readonly changes: Changes; readonly exec: ExecResult }> {
  const { changeSets, crashPoint } = context.dependencies;
  await listBefore(context, channel, paths, listing);
  const running = channel.exec(execRequest({ command, env: environment }, timeoutMs));
  const exec = await withDeadline(running, timeoutMs + limits.execGraceMs, "the guest agent's answer");
  await crashPoint("dry-run.ran");
  const before = await ListingReader.open(listing);
  try {
    return { exec, changes: await compareNow(changeSets, channel, before, paths) };
  } finally {
    await before.close();
  }
}

async function listBefore(
  context: Context,
  channel: GuestChannel,
  paths: readonly Uint8Array[],
  target: string,
): Promise<void> {
  const { changeSets, clock } = context.dependencies;
  const writer = await ListingWriter.create(target, paths);
  try {
    const { mode, digest, files } = await list(changeSets, channel, { paths }, writer);
    await writer.finish({ mode, digest, files, takenAtUnixMs: clock.nowUnixMs() });
  } finally {
    await writer.discard();
  }
}
