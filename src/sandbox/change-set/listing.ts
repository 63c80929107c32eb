// Asking the guest for a listing: which method, within which bounds, and how many at a time.
import { limits } from "../../config/limits.ts";
import type { ChangeSetMethod, FingerprintMode } from "../../contracts/change-set.ts";
import type { GuestChannel, ManifestSink, ManifestSummary } from "../../contracts/channel.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { withDeadline } from "../../errors/deadline.ts";
import type { Sandbox } from "../sandbox.ts";

export type Listed = ManifestSummary & { readonly mode: FingerprintMode };

export interface ListingRequest {
  readonly paths: readonly Uint8Array[];
  /** Digest of a listing that the host holds; the guest may answer with the difference from it. */
  readonly base?: Uint8Array;
}

/** Lists with the first method that the guest supports. Rejects with `NOT_SUPPORTED` when there is none. */
export async function list(
  methods: readonly ChangeSetMethod[],
  channel: GuestChannel,
  request: ListingRequest,
  sink: ManifestSink,
): Promise<Listed> {
  const method = methods.find((candidate) => candidate.supports(channel));
  if (method === undefined) throw new AgentError("NOT_SUPPORTED", "no change-set method can list this guest");
  const listing = method.list(
    channel,
    {
      paths: request.paths,
      base: request.base,
      filesMax: limits.manifestFilesMax,
      listingMaxBytes: limits.manifestListingMaxBytes,
    },
    sink,
  );
  return await withDeadline(listing, limits.manifestTimeoutMs, "listing the files");
}

/** Bounds how many listings of one sandbox run at a time; the next is `SANDBOX_BUSY`. */
export async function listingTurn<T>(sandbox: Sandbox, work: () => Promise<T>): Promise<T> {
  if (sandbox.runningListings >= limits.listingsAtOnceMax) {
    throw new AgentError("SANDBOX_BUSY", `${limits.listingsAtOnceMax} listings of this sandbox are running`);
  }
  sandbox.runningListings += 1;
  try {
    return await work();
  } finally {
    sandbox.runningListings -= 1;
  }
}
