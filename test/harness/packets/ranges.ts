// Ranges of addresses for the model: numbers, compared after a shift.

export interface Range {
  readonly prefixLength: number;
  /** `address` has 4 or 16 bytes. */
  holds(address: Uint8Array): boolean;
}

function numberOf(bytes: Uint8Array): bigint {
  return bytes.reduce((sum, byte) => (sum << 8n) | BigInt(byte), 0n);
}

/** A new copy each time. */
export function ipv4Of(address: string): Uint8Array {
  return Uint8Array.from(address.split("."), Number);
}

/** All eight groups, or a run of zeros written as `::`. */
export function ipv6Of(address: string): Uint8Array {
  const [front = "", back] = address.split("::");
  const groups = (part: string): string[] => (part === "" ? [] : part.split(":"));
  const tail = groups(back ?? "");
  const zeros = back === undefined ? 0 : 8 - groups(front).length - tail.length;
  const all = [...groups(front), ...Array<string>(zeros).fill("0"), ...tail];
  return Uint8Array.from(all.flatMap((group) => [Number.parseInt(group, 16) >> 8, Number.parseInt(group, 16) & 255]));
}

export function rangesOf(cidrs: readonly string[]): Range[] {
  return cidrs.map((cidr) => {
    const [address = "", length = ""] = cidr.split("/");
    const bytes = address.includes(":") ? ipv6Of(address) : ipv4Of(address);
    const prefixLength = Number(length);
    const shift = BigInt(bytes.length * 8 - prefixLength);
    const prefix = numberOf(bytes) >> shift;
    return {
      prefixLength,
      holds: (other) => other.length === bytes.length && numberOf(other) >> shift === prefix,
    };
  });
}
