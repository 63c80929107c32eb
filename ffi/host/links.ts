// Network links of this host and the namespaces that sandboxes are connected through. Whatever is made here has a label
// and a group, and only what has them is removed.
import { runJob } from "../channel.ts";
import { isHostError } from "../status.ts";

/** A tap device that is no user's in particular. */
const NO_OWNER = 0xffff_ffff;

/** The way of one sandbox; see the job. Addresses are dotted IPv4. */
export interface Way {
  /** File under which the namespace is known. */
  readonly namespace: string;
  /** The host's end of the pair of links, and the other one. At most 15 bytes each. */
  readonly link: string;
  readonly inner: string;
  /** Null: the sandbox is in the namespace itself, and has `guestAddress` on `inner`. */
  readonly machine: {
    readonly bridge: string;
    readonly tap: string;
    /** On `inner`, beside `guestAddress`, for which the namespace answers. */
    readonly innerAddress: string;
    readonly bridgeAddress: string;
    readonly owner: number | null;
    readonly queues: number;
  } | null;
  readonly label: string;
  readonly group: number;
  readonly hostAddress: string;
  readonly guestAddress: string;
  readonly prefixLength: number;
}

/** What is there under a link's name. */
export interface LinkFacts {
  readonly index: number;
  readonly group: number;
  readonly isLabelled: boolean;
  readonly isUp: boolean;
  readonly kind: LinkKind;
}

const KINDS = ["other", "bridge", "tap", "macvtap"] as const;
export type LinkKind = (typeof KINDS)[number];

/**
 * Makes a way, the host's end down; answers its number. What is left of one with the same label goes first. Rejects with
 * a `HostError`: `EEXIST`: somebody else has one of the names; then, and after any other error, nothing is left.
 */
export async function makeWay({ machine, ...way }: Way): Promise<number> {
  const { index } = await runJob(
    "wayMake",
    {
      namespace: way.namespace,
      link: way.link,
      inner: way.inner,
      bridge: machine?.bridge ?? "",
      tap: machine?.tap ?? "",
      label: way.label,
      group: way.group,
      hostAddress: addressBits(way.hostAddress),
      innerAddress: machine === null ? 0 : addressBits(machine.innerAddress),
      guestAddress: addressBits(way.guestAddress),
      bridgeAddress: machine === null ? 0 : addressBits(machine.bridgeAddress),
      prefixLength: way.prefixLength,
      owner: machine?.owner ?? NO_OWNER,
      queues: machine?.queues ?? 1,
    },
    way.link,
  );
  return index;
}

/**
 * Removes a link and lets a namespace go, as far as they are there; what is somebody else's stays. False: both were
 * gone, or are somebody else's.
 */
export async function removeWay(way: {
  readonly namespace: string | null;
  readonly link: string;
  readonly label: string;
  readonly group: number;
}): Promise<boolean> {
  try {
    return (await runJob("wayRemove", { ...way, namespace: way.namespace ?? "" }, way.link)).found === 1;
  } catch (error) {
    if (isHostError(error, "EEXIST")) return false;
    throw error;
  }
}

/** Sets a link up. `label` null: whosever it is. Rejects with a `HostError`: `ENODEV`; `EEXIST`: it has another label. */
export async function raiseLink(link: string, label: string | null): Promise<void> {
  await runJob("linkRaise", { link, label: label ?? "" }, link);
}

/** Null: there is no link of that name. */
export async function linkFacts(link: string, label: string): Promise<LinkFacts | null> {
  try {
    const { index, group, state, kind } = await runJob("linkFacts", { link, label }, link);
    return { index, group, isLabelled: (state & 1) !== 0, isUp: (state & 2) !== 0, kind: KINDS[kind] ?? "other" };
  } catch (error) {
    if (isHostError(error, "ENODEV")) return null;
    throw error;
  }
}

/** Puts a link into a group of links. Rejects with a `HostError`: `ENODEV`. */
export async function setLinkGroup(link: string, group: number): Promise<void> {
  await runJob("linkGroup", { link, group }, link);
}

export interface LinkBeside {
  readonly link: string;
  readonly label: string;
  readonly group: number;
}

/** Makes a tap device, down, as a port of `bridge`; answers its number. `ENODEV`: there is no such bridge. */
export async function makeTap(
  tap: LinkBeside & { readonly bridge: string; readonly owner: number | null; readonly queues: number },
): Promise<number> {
  return (await runJob("tapMake", { ...tap, owner: tap.owner ?? NO_OWNER }, tap.link)).index;
}

/** Makes a macvtap on the link `lower`, down; answers its number. `ENODEV`: there is no such link. */
export async function makeMacvtap({
  mac,
  ...macvtap
}: LinkBeside & { readonly lower: string; readonly mac: string }): Promise<number> {
  const bits = Number.parseInt(mac.replaceAll(":", ""), 16);
  return (await runJob("macvtapMake", { ...macvtap, mac: bits }, macvtap.link)).index;
}

/**
 * Attaches to a queue of a tap device or macvtap, in the namespace that is known under a file or in the agent's. Answers
 * a descriptor, which belongs to the caller.
 */
export async function openTap(namespace: string | null, link: string, isMultiqueue: boolean): Promise<number> {
  const job = { namespace: namespace ?? "", link, multiqueue: isMultiqueue ? 1 : 0 };
  return (await runJob("tapOpen", job, link)).descriptor;
}

/** Whether a link of this host has the address. */
export async function hasAddress(address: string): Promise<boolean> {
  return (await runJob("addressProbe", { address: addressBits(address) }, address)).used === 1;
}

function addressBits(address: string): number {
  const parts = address.split(".").map(Number);
  if (parts.length !== 4 || !parts.every((part) => Number.isInteger(part) && part >= 0 && part <= 255)) {
    throw new RangeError(`${JSON.stringify(address)} is not an IPv4 address`);
  }
  return parts.reduce((bits, part) => bits * 256 + part, 0);
}
