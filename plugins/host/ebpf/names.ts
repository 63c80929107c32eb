// How names of DNS questions and TLS greetings are looked up: by a hash of the name read from its end, so that the
// program in the kernel hashes a name once and meets every domain above it on the way.

const OFFSET = 0xcbf2_9ce4_8422_2325n;
const PRIME = 0x100_0000_01b3n;
const MASK = 0xffff_ffff_ffff_ffffn;

/** FNV-1a, 64 bits, of the name's bytes, the last one first. */
export function nameHash(name: string): bigint {
  let hash = OFFSET;
  for (const byte of new TextEncoder().encode(name).toReversed()) hash = ((hash ^ BigInt(byte)) * PRIME) & MASK;
  return hash;
}

/** `*.example.org`: everything below `example.org`, and not itself. */
export function namePattern(pattern: string): { readonly hash: bigint; readonly match: "exact" | "below" } {
  return pattern.startsWith("*.")
    ? { hash: nameHash(pattern.slice(2)), match: "below" }
    : { hash: nameHash(pattern), match: "exact" };
}
