// What the difference between two listings means. The three reference lists hold regular files only; everything else
// that changed goes to `other`. One collector serves whole listings and deltas, so that both give the same answer.
import type { ManifestEntry } from "../../contracts/channel.ts";
import type { FingerprintMode } from "../../contracts/change-set.ts";
import { compareBytes } from "../../contracts/listing.ts";
import type { Changes, OtherChange } from "../operations.ts";

const sameFingerprint = (a: ManifestEntry, b: ManifestEntry): boolean =>
  compareBytes(a.fingerprint, b.fingerprint) === 0;

export class ChangeCollector {
  readonly #added: Uint8Array[] = [];
  readonly #modified: Uint8Array[] = [];
  readonly #deleted: Uint8Array[] = [];
  readonly #other: OtherChange[] = [];
  /** Regular files with equal fingerprints on both sides that passed through `add`. */
  unchanged = 0;

  /** One path of either side, in the order of their bytes; null = absent there. Equal pairs only count. */
  add(path: Uint8Array, now: ManifestEntry | null, before: ManifestEntry | null): void {
    if (now === null) {
      if (before !== null) this.#gone(path, before);
    } else if (before === null) {
      this.#came(path, now);
    } else if (now.kind !== before.kind) {
      this.#other.push({ path, change: "type", kind: now.kind });
      if (before.kind === "file") this.#deleted.push(path);
      if (now.kind === "file") this.#added.push(path);
    } else {
      this.#compareSameKind(path, now, before);
    }
  }

  /** The result, in the order of `add`. `unchanged` is given because deltas leave equal files out. */
  result(mode: FingerprintMode, paths: readonly Uint8Array[], unchanged: number): Changes {
    return {
      added: this.#added,
      modified: this.#modified,
      deleted: this.#deleted,
      unchanged,
      other: this.#other,
      mode,
      paths,
    };
  }

  #came(path: Uint8Array, now: ManifestEntry): void {
    if (now.kind === "file") this.#added.push(path);
    else this.#other.push({ path, change: "added", kind: now.kind });
  }

  #gone(path: Uint8Array, before: ManifestEntry): void {
    if (before.kind === "file") this.#deleted.push(path);
    else this.#other.push({ path, change: "deleted", kind: before.kind });
  }

  #compareSameKind(path: Uint8Array, now: ManifestEntry, before: ManifestEntry): void {
    const { kind } = now;
    // An unreadable file has an empty fingerprint, so it differs only when its readability did.
    const same = sameFingerprint(now, before);
    if (kind === "file") {
      if (same) this.unchanged += 1;
      else this.#modified.push(path);
    } else if (!same) {
      this.#other.push({ path, change: "modified", kind });
    }
    if (now.mode !== before.mode) this.#other.push({ path, change: "mode", kind });
    if (now.uid !== before.uid || now.gid !== before.gid) this.#other.push({ path, change: "owner", kind });
  }
}
