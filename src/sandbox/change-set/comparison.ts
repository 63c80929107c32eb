// Compares what the guest lists now with a stored listing. A guest that answers with a difference is taken at its word
// and the stored entries are not even read; a whole listing is merged with them as it arrives.
import type { ManifestEntry, ManifestSink } from "../../contracts/channel.ts";
import { compareBytes } from "../../contracts/listing.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Changes } from "../operations.ts";
import { ChangeCollector } from "./compare.ts";
import type { Listed } from "./listing.ts";
import type { ListingEntry } from "./listing-format.ts";
import type { ListingReader } from "./listing-reader.ts";
import { ByteOrder, isUnder } from "./paths.ts";

export class Comparison implements ManifestSink {
  readonly #collector = new ChangeCollector();
  #arrived: ListingEntry[] = [];
  #sawDifference = false;
  readonly #order = new ByteOrder();

  /** `paths`: what the guest was asked for; entries of the stored listing elsewhere are passed over. */
  constructor(
    private readonly stored: ListingReader,
    private readonly paths: readonly Uint8Array[],
  ) {}

  entry(path: Uint8Array, entry: ManifestEntry): void {
    this.#order.check(path);
    this.#arrived.push({ path, entry });
  }

  difference(path: Uint8Array, now: ManifestEntry | null, before: ManifestEntry | null): void {
    this.#order.check(path);
    this.#sawDifference = true;
    this.#collector.add(path, now, before);
  }

  async drained(): Promise<void> {
    const arrived = this.#arrived;
    this.#arrived = [];
    for (const { path, entry } of arrived) {
      const before = await this.#passUpTo(path);
      this.#collector.add(path, entry, before);
    }
  }

  /** Rejects with `BASELINE_MODE_CHANGED` when the two sides cannot be compared. */
  async finish(listed: Listed): Promise<Changes> {
    const { mode } = this.stored.head;
    if (listed.mode !== mode) throw new AgentError("BASELINE_MODE_CHANGED");
    if (listed.delta) return this.#collector.result(mode, this.paths, listed.unchanged);
    if (this.#sawDifference) throw new AgentError("PROTOCOL_MISMATCH", "a whole listing had differences in it");
    await this.drained();
    await this.#passUpTo(null);
    return this.#collector.result(mode, this.paths, this.#collector.unchanged);
  }

  /** Counts stored entries before `path` as gone, and takes the one at `path`, if it is there. Null: to the end. */
  async #passUpTo(path: Uint8Array | null): Promise<ManifestEntry | null> {
    for (;;) {
      if (this.stored.needsFill) await this.stored.fill();
      const { current } = this.stored;
      if (current === null) return null;
      const order = path === null ? -1 : compareBytes(current.path, path);
      if (order > 0) return null;
      this.stored.advance();
      if (order === 0) return current.entry;
      if (isUnder(current.path, this.paths)) this.#collector.add(current.path, null, current.entry);
    }
  }
}
