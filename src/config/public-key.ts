// Public keys of SSH users as they stand in a `.pub` file, taken apart as far as it takes to refuse what must not log in:
// another kind of key, a weak one, or a line that is not one key.

export interface PublicKey {
  readonly type: "ssh-ed25519" | "ecdsa-sha2-nistp256" | "ecdsa-sha2-nistp384" | "ecdsa-sha2-nistp521" | "ssh-rsa";
  /** The key as it travels, which begins with its type. */
  readonly blob: Buffer;
}

const RSA_BITS_MIN = 2048;
const RSA_BITS_MAX = 16_384;
const ED25519_BYTES = 32;
/** Bytes of an uncompressed point of each curve. */
const POINT_BYTES: ReadonlyMap<string, number> = new Map([
  ["nistp256", 65],
  ["nistp384", 97],
  ["nistp521", 133],
]);
const TYPES = ["ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa"] as const;

/** The key of one line `TYPE BASE64 [COMMENT]`, or what is wrong with it, in words that do not quote it. */
export function parsePublicKey(line: string): PublicKey | string {
  if (/[\r\n]/.test(line.trim())) return "expected one line, as in a .pub file";
  const [name = "", base64 = ""] = line.trim().split(/[ \t]+/, 2);
  const type = TYPES.find((known) => known === name);
  if (type === undefined) return `expected a public key that begins with ${TYPES.join(", ")}`;
  if (base64 === "" || !/^[A-Za-z0-9+/]+={0,2}$/.test(base64)) return "expected Base64 after the type of the key";
  const blob = Buffer.from(base64, "base64");
  const fault = faultOf(type, strings(blob));
  return fault ?? { type, blob };
}

/** What a comparison of two keys compares. */
export function sameKey(left: PublicKey, right: PublicKey): boolean {
  return left.blob.equals(right.blob);
}

function faultOf(type: PublicKey["type"], parts: readonly Buffer[] | null): string | null {
  const damaged = "the key is damaged: its bytes are not those of a key of this type";
  if (parts === null || parts[0]?.toString("latin1") !== type) return damaged;
  const [, first, second] = parts;
  if (type === "ssh-ed25519") return parts.length === 2 && first?.length === ED25519_BYTES ? null : damaged;
  if (first === undefined || second === undefined || parts.length !== 3) return damaged;
  if (type !== "ssh-rsa") {
    const curve = type.slice("ecdsa-sha2-".length);
    return first.toString("latin1") === curve && second.length === POINT_BYTES.get(curve) ? null : damaged;
  }
  const bits = bitLength(second);
  if (bits < RSA_BITS_MIN) return `an RSA key of ${bits} bits is too weak: expected ${RSA_BITS_MIN} or more`;
  return bits <= RSA_BITS_MAX ? null : `an RSA key of ${bits} bits is too long: expected ${RSA_BITS_MAX} at most`;
}

/** The length-prefixed strings that the bytes consist of; null when they do not. */
function strings(bytes: Buffer): Buffer[] | null {
  const parts: Buffer[] = [];
  for (let at = 0; at < bytes.length;) {
    if (bytes.length - at < 4) return null;
    const end = at + 4 + bytes.readUInt32BE(at);
    if (end > bytes.length) return null;
    parts.push(bytes.subarray(at + 4, end));
    at = end;
  }
  return parts;
}

function bitLength(integer: Buffer): number {
  const start = integer.findIndex((byte) => byte !== 0);
  if (start < 0) return 0;
  return (integer.length - start) * 8 - Math.clz32(integer[start]!) + 24;
}
