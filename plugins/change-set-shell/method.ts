// The shell method: runs the listing script over the guest channel and turns what it prints into a listing.
import { limits } from "../../src/config/limits.ts";
import type { ChangeSetMethod, FingerprintMode } from "../../src/contracts/change-set.ts";
import type {
  ExecResult,
  GuestChannel,
  ManifestRequest,
  ManifestSink,
  ManifestSummary,
} from "../../src/contracts/channel.ts";
import { ListingDigest } from "../../src/contracts/listing.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { ErrorCode } from "../../src/errors/catalogue.ts";
import { parseHeader, readFields } from "./fields.ts";
import { Pace } from "./pace.ts";
import { startingPoints } from "./paths.ts";
import { type Found, printable, Records, sorted, walkFailed } from "./records.ts";
import { batches, EXIT, type Flavour, listingCommand } from "./script.ts";

/** What encoding and the script's numbers may add to a listing: hex with its spaces is 3 characters a byte. */
const OUTPUT_PER_LISTING_BYTE = 4;
const OUTPUT_BASE_BYTES = 64 * 1024;
const ENTRIES_A_DRAIN = 256;

const exitFaults: Readonly<Record<number, readonly [ErrorCode, string?]>> = {
  [EXIT.missing]: ["FILE_NOT_FOUND"],
  [EXIT.notDirectory]: ["NOT_A_DIRECTORY"],
  [EXIT.link]: ["FILE_IS_SYMLINK"],
  [EXIT.denied]: ["FILE_DENIED"],
  [EXIT.noTools]: ["NOT_SUPPORTED", "the guest lacks find, ls, readlink, a hash tool or stat, or base64 or od"],
};

export class ShellMethod implements ChangeSetMethod {
  readonly #flavour: Flavour;

  constructor(flavour: Flavour = "best") {
    this.#flavour = flavour;
  }

  supports(channel: GuestChannel): boolean {
    return channel.features.has("exec");
  }

  /** Always a whole listing, whatever `request.base` is. */
  async list(
    channel: GuestChannel,
    request: ManifestRequest,
    sink: ManifestSink,
  ): Promise<ManifestSummary & { readonly mode: FingerprintMode }> {
    const pace = new Pace();
    const found: Found[] = [];
    let mode: FingerprintMode | null = null;
    for (const paths of batches(startingPoints(request.paths))) {
      const part = await this.#run(channel, paths, { ...request, filesMax: request.filesMax - filesIn(found) }, pace);
      if (mode !== null && mode !== part.mode) throw walkFailed("the guest's tools changed during the walk");
      mode = part.mode;
      for (const entry of part.found) found.push(entry);
    }
    if (mode === null) throw walkFailed("nothing was listed");
    return { ...(await emit(await sorted(found, pace), request, sink, pace)), mode };
  }

  async #run(channel: GuestChannel, paths: readonly Uint8Array[], request: ManifestRequest, pace: Pace) {
    const result = await channel.exec({
      command: listingCommand(paths, this.#flavour),
      timeoutMs: limits.manifestTimeoutMs,
      outputMaxBytes: request.listingMaxBytes * OUTPUT_PER_LISTING_BYTE + OUTPUT_BASE_BYTES,
    });
    checkExit(result);
    const header = parseHeader(result.stdout);
    const records = new Records(header.mode, request);
    await readFields(result.stdout, header, pace, (field) => records.take(field));
    if (!records.complete) throw incomplete(result);
    return { mode: header.mode, found: records.finish() };
  }
}

function checkExit(result: ExecResult): void {
  if (result.timedOut) throw new AgentError("DEADLINE_EXCEEDED", "listing the files took too long; narrow the paths");
  const [code, message] = exitFaults[result.exitCode ?? -1] ?? [];
  if (code !== undefined) throw new AgentError(code, message);
  if (result.exitCode !== 0) throw walkFailed(complaint(result));
}

/** The end mark is missing: output was cut somewhere, or the walk met an error and said so. */
function incomplete(result: ExecResult): AgentError {
  if (result.stdoutLength > result.stdout.length || result.stderrLength === 0) {
    return new AgentError("LISTING_TOO_LARGE", "the listing does not fit the guest's output; narrow the paths");
  }
  return walkFailed(complaint(result));
}

function complaint(result: ExecResult): string {
  const [line = ""] = Buffer.from(result.stderr).toString("latin1").split("\n", 1);
  return line === ""
    ? `the listing script ended with ${result.exitCode ?? `signal ${result.signal}`}`
    : printable(line);
}

function filesIn(found: readonly Found[]): number {
  return found.reduce((count, { entry }) => count + (entry.kind === "file" ? 1 : 0), 0);
}

/** Nothing reaches the sink before the whole listing is known to be within its bound. */
async function emit(
  found: readonly Found[],
  request: ManifestRequest,
  sink: ManifestSink,
  pace: Pace,
): Promise<ManifestSummary> {
  const digest = new ListingDigest();
  for (const { path, entry } of found) {
    digest.add(path, entry);
    if (digest.bytes > request.listingMaxBytes) throw new AgentError("LISTING_TOO_LARGE");
    await pace.turn();
  }
  for (const [index, { path, entry }] of found.entries()) {
    sink.entry(path, entry);
    if (index % ENTRIES_A_DRAIN !== 0) continue;
    await sink.drained();
    await pace.turn();
  }
  await sink.drained();
  return { digest: digest.digest(), files: filesIn(found), delta: false, unchanged: 0 };
}
