// Gathers a listing in memory, for comparing.
import type { ChangeSetMethod, FingerprintMode } from "../contracts/change-set.ts";
import type {
  GuestChannel,
  ManifestEntry,
  ManifestRequest,
  ManifestSink,
  ManifestSummary,
} from "../contracts/channel.ts";
import { compareBytes, ListingDigest } from "../contracts/listing.ts";
import { check, textOf } from "./assert.ts";

export interface ListedEntry {
  readonly path: Uint8Array;
  readonly now: ManifestEntry;
}

export interface ListedDifference {
  readonly path: Uint8Array;
  readonly now: ManifestEntry | null;
  readonly before: ManifestEntry | null;
}

export interface Listing<Summary extends ManifestSummary = ManifestSummary> {
  readonly entries: readonly ListedEntry[];
  readonly differences: readonly ListedDifference[];
  readonly summary: Summary;
  /** Digest of `entries`, computed here. */
  readonly digest: Uint8Array;
}

/** Lists through the channel's own manifest. */
export function collect(channel: GuestChannel, request: ManifestRequest): Promise<Listing> {
  return gather((sink) => channel.manifest(request, sink));
}

/** Lists through a change-set method. */
export function collectBy(
  method: ChangeSetMethod,
  channel: GuestChannel,
  request: ManifestRequest,
): Promise<Listing<ManifestSummary & { readonly mode: FingerprintMode }>> {
  return gather((sink) => method.list(channel, request, sink));
}

async function gather<Summary extends ManifestSummary>(
  list: (sink: ManifestSink) => Promise<Summary>,
): Promise<Listing<Summary>> {
  const entries: ListedEntry[] = [];
  const differences: ListedDifference[] = [];
  const digest = new ListingDigest();
  let last: Uint8Array | null = null;
  const inOrder = (path: Uint8Array): Uint8Array => {
    check(last === null || compareBytes(last, path) < 0, `${textOf(path)} is not after ${last && textOf(last)}`);
    last = new Uint8Array(path);
    return last;
  };
  const summary = await list({
    entry(path, entry) {
      const now = { ...entry, fingerprint: new Uint8Array(entry.fingerprint) };
      entries.push({ path: inOrder(path), now });
      digest.add(path, now);
    },
    difference(path, now, before) {
      differences.push({ path: inOrder(path), now, before });
    },
    drained: async () => undefined,
  });
  return { entries, differences, summary, digest: digest.digest() };
}
