// Names of what a sandbox's network is made of, all from its short name: at most fifteen bytes, as the kernel wants them.
import type { NetworkWish } from "../../../src/contracts/network.ts";
import { INSIDE } from "./addresses.ts";

/** Where `ip netns` looks, too. */
const NAMESPACES_DIR = "/run/netns";

export interface NetworkNames {
  /** Below `NAMESPACES_DIR`. */
  readonly namespace: string;
  /** The host's end of the pair, and the namespace's. */
  readonly host: string;
  readonly inner: string;
  /** In the namespace of a machine. */
  readonly bridge: string;
  readonly tap: string;
  /** Beside interfaces of an operator. */
  readonly beside: string;
}

/** Names for a sandbox whose short name has twelve letters. */
export function networkNames(shortName: string): NetworkNames {
  return {
    namespace: `eph-${shortName}`,
    host: `vh${shortName}`,
    inner: `vn${shortName}`,
    bridge: `br${shortName}`,
    tap: `tap${shortName}`,
    beside: `eph${shortName}`,
  };
}

/** Where a namespace with this name is pinned. */
export function namespacePath(name: string): string {
  return `${NAMESPACES_DIR}/${name}`;
}

/** What every interface of the sandbox says of itself. */
export function labelOf(sandboxId: string): string {
  return `fluxvm:${sandboxId}`;
}

/** The guest's hardware address: as asked, always the same in a namespace, and else one that its name gives. */
export function macOf(wish: NetworkWish, shortName: string): string {
  if (wish.mac !== null) return wish.mac;
  if (wish.netns) return INSIDE.mac;
  const digest = new Bun.CryptoHasher("sha256").update(`mac ${shortName}`).digest("hex");
  return `02:fc:${digest.slice(0, 8).replace(/..(?=.)/g, "$&:")}`;
}
