// A listing of a sandbox's files in its canonical bytes: the guest-agent protocol's manifest entries, one after the
// other, sorted by path. `ManifestSummary.digest` is their SHA-256, whichever change-set method made the listing.
import { ENTRY_KINDS, type ManifestEntry } from "./channel.ts";

/** The highest number of bytes that an entry has beside its path and fingerprint. */
const ENTRY_OVERHEAD_BYTES = 48;

/** Order of paths in a listing: by bytes. */
export function compareBytes(left: Uint8Array, right: Uint8Array): number {
  return Buffer.compare(left, right);
}

/** Appends entries in order and answers the digest and size of the listing. */
export class ListingDigest {
  readonly #hasher = new Bun.CryptoHasher("sha256");
  #bytes = 0;

  /** Size of the canonical listing so far. */
  get bytes(): number {
    return this.#bytes;
  }

  add(path: Uint8Array, entry: ManifestEntry): void {
    const encoded = encodeEntry(path, entry);
    this.#hasher.update(encoded);
    this.#bytes += encoded.length;
  }

  /** Ends the listing. Nothing can be added afterwards. */
  digest(): Uint8Array {
    return new Uint8Array(this.#hasher.digest().buffer);
  }
}

/** One entry as the msgpack array `[path, kind, fingerprint, size, mode, uid, gid]` with the shortest integer forms. */
export function encodeEntry(path: Uint8Array, entry: ManifestEntry): Uint8Array {
  const out = Buffer.allocUnsafe(path.length + entry.fingerprint.length + ENTRY_OVERHEAD_BYTES);
  let at = out.writeUInt8(0x97, 0);
  at = writeBytes(out, at, path);
  at = writeInteger(out, at, ENTRY_KINDS.indexOf(entry.kind));
  at = writeBytes(out, at, entry.fingerprint);
  for (const value of [entry.size, entry.mode, entry.uid, entry.gid]) at = writeInteger(out, at, value);
  return out.subarray(0, at);
}

function writeBytes(out: Buffer, at: number, bytes: Uint8Array): number {
  let start: number;
  if (bytes.length <= 0xff) start = out.writeUInt8(bytes.length, out.writeUInt8(0xc4, at));
  else if (bytes.length <= 0xffff) start = out.writeUInt16BE(bytes.length, out.writeUInt8(0xc5, at));
  else start = out.writeUInt32BE(bytes.length, out.writeUInt8(0xc6, at));
  out.set(bytes, start);
  return start + bytes.length;
}

function writeInteger(out: Buffer, at: number, value: number): number {
  if (value <= 0x7f) return out.writeUInt8(value, at);
  if (value <= 0xff) return out.writeUInt8(value, out.writeUInt8(0xcc, at));
  if (value <= 0xffff) return out.writeUInt16BE(value, out.writeUInt8(0xcd, at));
  if (value <= 0xffff_ffff) return out.writeUInt32BE(value, out.writeUInt8(0xce, at));
  return out.writeBigUInt64BE(BigInt(value), out.writeUInt8(0xcf, at));
}
