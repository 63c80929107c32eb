// Encodes manifest entries as a guest agent would, for tests.
import { ENTRY_KINDS, type EntryKind, type ManifestEntry } from "../../contracts/channel.ts";

export function state(kind: EntryKind, fields: Partial<ManifestEntry> = {}): ManifestEntry {
  const fingerprint = kind === "file" ? new Uint8Array(32).fill(7) : new Uint8Array(0);
  return { kind, fingerprint, size: 0, mode: 0o644, uid: 0, gid: 0, ...fields };
}

/** `[path, kind, fingerprint, size, mode, uid, gid]`. */
export function fullEntry(path: Uint8Array, entry: ManifestEntry): Buffer {
  return Buffer.concat([Buffer.from([0x97]), bin(path), stateFields(entry)]);
}

/** `[path, now, before]`. */
export function difference(path: Uint8Array, now: ManifestEntry | null, before: ManifestEntry | null): Buffer {
  const side = (entry: ManifestEntry | null): Buffer =>
    entry === null ? Buffer.from([0xc0]) : Buffer.concat([Buffer.from([0x96]), stateFields(entry)]);
  return Buffer.concat([Buffer.from([0x93]), bin(path), side(now), side(before)]);
}

function stateFields(entry: ManifestEntry): Buffer {
  const { kind, fingerprint, size, mode, uid, gid } = entry;
  return Buffer.concat([int(ENTRY_KINDS.indexOf(kind)), bin(fingerprint), int(size), int(mode), int(uid), int(gid)]);
}

export function bin(bytes: Uint8Array): Buffer {
  const head = Buffer.alloc(5);
  head[0] = 0xc6;
  head.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([head, bytes]);
}

export function int(value: number): Buffer {
  if (value < 0x80) return Buffer.from([value]);
  const wide = Buffer.alloc(9);
  wide[0] = 0xcf;
  wide.writeBigUInt64BE(BigInt(value), 1);
  return wide;
}
