// Addresses of sandboxes: block n of sixteen in 169.254.0.0/16, of which the host, the namespace and the guest have one
// each. Inside the namespace of a machine everything is always the same, so that a guest that goes on elsewhere finds it.

/** Blocks in the range. */
export const BLOCKS = 4096;
/** What every guest sees inside, and the block with the address under which clouds tell a host its secrets. */
export const RESERVED_BLOCKS: ReadonlySet<number> = new Set([0, 2719]);
/** Bits of a block's prefix. */
export const PREFIX_LENGTH = 28;
/** Inside the namespace of a machine. */
export const INSIDE = {
  gateway: "169.254.0.1",
  guest: "169.254.0.3",
  netmask: "255.255.255.240",
  mac: "02:fc:00:00:00:03",
} as const;

export interface BlockAddresses {
  /** The host's end: way out, and where names are resolved. */
  readonly host: string;
  /** The namespace's end, where it is not the sandbox's own. */
  readonly namespace: string;
  /** By which the sandbox is known. */
  readonly guest: string;
}

/** Throws `RangeError` for a block that no sandbox has. */
export function addressesOf(block: number): BlockAddresses {
  if (!Number.isInteger(block) || block < 0 || block >= BLOCKS || RESERVED_BLOCKS.has(block)) {
    throw new RangeError(`${block} is not a block of addresses`);
  }
  const base = (block % 16) * 16;
  const address = (offset: number): string => `169.254.${Math.floor(block / 16)}.${base + offset}`;
  return { host: address(1), namespace: address(2), guest: address(3) };
}
