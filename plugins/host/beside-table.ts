// The table of a macvtap device: nothing else of the host sees its frames, so that without the dataplane's program they
// would leave undecided. Here what the guest sends is marked before the program sees it, and goes neither out nor to
// another sandbox beside it unless the program has allowed it.
import { ALLOWED_MARK, BESIDE_MARK } from "./network-marks.ts";
import { applyNft, nftTable, removeNftTable, replaced } from "./nft.ts";

const FAMILY = "netdev";
const RULES = 3;

export interface BesideTable {
  /** The macvtap device. */
  readonly link: string;
  /** The operator's interface on which it is. */
  readonly lower: string;
}

/** Makes the table, or makes it anew. Rejects as `applyNft` does. */
export async function closeBeside(table: BesideTable): Promise<void> {
  await applyNft(replaced(FAMILY, nameOf(table.link), rulesOf(table)));
}

/** Whether the table is there with all its rules. Rejects as `nftTable` does. */
export async function isBesideClosed({ link }: Pick<BesideTable, "link">): Promise<boolean> {
  return (await nftTable(FAMILY, nameOf(link)))?.rules.length === RULES;
}

/** Removes the table; succeeds where there is none. */
export async function removeBesideTable(link: string): Promise<void> {
  await removeNftTable(FAMILY, nameOf(link));
}

const nameOf = (link: string): string => `fluxvm-${link}`;

/**
 * These hooks come before those of programs. What a macvtap device sends to another one on the same interface does not get
 * to that interface, so it is looked at where it arrives.
 */
function rulesOf({ link, lower }: BesideTable): string {
  const [mine, both] = [BESIDE_MARK, BESIDE_MARK | ALLOWED_MARK].map((mark) => `0x${mark.toString(16)}`);
  return `
  chain from {
    type filter hook egress device "${link}" priority 0; policy accept;
    meta mark set meta mark | ${mine} counter
  }
  chain out {
    type filter hook egress device "${lower}" priority 0; policy accept;
    meta mark & ${both} == ${mine} counter drop
  }
  chain beside {
    type filter hook ingress device "${link}" priority 0; policy accept;
    meta mark & ${both} == ${mine} counter drop
  }`;
}
