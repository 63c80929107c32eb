// Change-set methods: how a listing of a sandbox's files is made. The core keeps the baseline and compares; a method
// only lists. `mode` tells what a fingerprint is, because listings of different modes cannot be compared.
import type { GuestChannel, ManifestRequest, ManifestSink, ManifestSummary } from "./channel.ts";

/** `sha256`: content; `stat`: size and mtime, for guests without a hash tool. */
export type FingerprintMode = "sha256" | "stat";

export interface ChangeSetMethod {
  /** True when this guest can be listed by this method; methods are tried in registry order. */
  supports(channel: GuestChannel): boolean;
  /**
   * Lists regular files, links, directories and specials under the paths, sorted by path bytes, all or nothing: any
   * error of the walk rejects (`WALK_FAILED`), never a partial listing.
   */
  list(
    channel: GuestChannel,
    request: ManifestRequest,
    sink: ManifestSink,
  ): Promise<ManifestSummary & { readonly mode: FingerprintMode }>;
}
