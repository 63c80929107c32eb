// Identities: numbers under which packets are counted. Reserved ones are below 256, groups have 0x1_0000 to 0x0fff_ffff
// and sandboxes 0x1000_0000 to 0x7fff_ffff, so that none can be taken for another.
import { AgentError } from "../errors/agent-error.ts";

export const GROUP_IDENTITY_MIN = 0x1_0000;
export const GROUP_IDENTITY_MAX = 0x0fff_ffff;
const SANDBOX_IDENTITY_MIN = 0x1000_0000;
const SANDBOX_IDENTITY_MAX = 0x7fff_ffff;

const FNV_OFFSET = 0xcbf2_9ce4_8422_2325n;
const FNV_PRIME = 0x100_0000_01b3n;
const MASK_64 = 0xffff_ffff_ffff_ffffn;
/** A tenth of these would be an unlikely accident; a host has some thousand sandboxes in a range of two milliards. */
const PROBES_MAX = 4096;

/** FNV-1a of 64 bits over the texts, each ended by a byte that none of them has. */
function hashOf(texts: readonly string[]): bigint {
  let hash = FNV_OFFSET;
  const mix = (byte: number): void => {
    hash = ((hash ^ BigInt(byte)) * FNV_PRIME) & MASK_64;
  };
  for (const text of texts) {
    for (const byte of Buffer.from(text)) mix(byte);
    mix(0xff);
  }
  return hash;
}

function probe(hash: bigint, min: number, max: number, isTaken: (identity: number) => boolean): number {
  const count = BigInt(max - min + 1);
  for (let step = 0n; step < PROBES_MAX; step += 1n) {
    const identity = min + Number((hash + step) % count);
    if (!isTaken(identity)) return identity;
  }
  throw new AgentError("INTERNAL", "no free identity near the one of these texts");
}

/** The identity of a set of labels, or of the name of a group without; the next free one where another set has it. */
export function groupIdentity(
  name: string,
  sortedLabels: readonly string[],
  isTaken: (identity: number) => boolean,
): number {
  const hash = hashOf(sortedLabels.length === 0 ? [`name=${name}`] : sortedLabels);
  return probe(hash, GROUP_IDENTITY_MIN, GROUP_IDENTITY_MAX, isTaken);
}

/**
 * Who has which identity now. An id gets the same one each time unless another sandbox has it, so it need not be
 * stored: what is attached under an older one is seen by its policy's fingerprint and attached again.
 */
export class SandboxIdentities {
  readonly #byId = new Map<string, number>();
  readonly #byIdentity = new Map<number, string>();

  /** The identity of a sandbox, which it keeps until `release`. */
  of(id: string): number {
    const known = this.#byId.get(id);
    if (known !== undefined) return known;
    const isTaken = (identity: number): boolean => this.#byIdentity.has(identity);
    const identity = probe(hashOf([id]), SANDBOX_IDENTITY_MIN, SANDBOX_IDENTITY_MAX, isTaken);
    this.#byId.set(id, identity);
    this.#byIdentity.set(identity, id);
    return identity;
  }

  idOf(identity: number): string | null {
    return this.#byIdentity.get(identity) ?? null;
  }

  release(id: string): void {
    const identity = this.#byId.get(id);
    if (identity === undefined) return;
    this.#byId.delete(id);
    this.#byIdentity.delete(identity);
  }
}
