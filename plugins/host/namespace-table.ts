// The table in the namespace of a virtual machine. Every guest has the same address inside; the namespace gives it the
// leased one on its way out and back, packet by packet and without state, so that nothing of it is lost or carried along
// when a machine is copied, restored or woken.
import { INSIDE } from "./network/addresses.ts";
import { applyNft, type NftPlace, replaced } from "./nft.ts";

const TABLE = "fluxvm";
/** As the guest sees itself and its way out. */
const { guest: GUEST_INSIDE, gateway: GATEWAY_INSIDE } = INSIDE;

const LINK_LOCAL_UPPER_HALF = 0xa9fe;
/** Bits from the beginning of an ICMP error: two bytes without meaning, and addresses of the packet that it is about. */
const UNUSED_AT_BIT = 32;
const SOURCE_AT_BIT = 160;
const DESTINATION_AT_BIT = 192;

export interface Translation extends NftPlace {
  /** Interface to the guest: the bridge. */
  readonly inside: string;
  /** Interface to the host. */
  readonly outside: string;
  /** Leased address of the guest. */
  readonly guest: string;
  /** The host's address, where names are resolved. */
  readonly gateway: string;
}

/** Makes the table, or makes it anew. Rejects as `applyNft` does. */
export async function translateNamespace(translation: Translation): Promise<void> {
  await applyNft(namespaceScript(translation), translation);
}

/**
 * Nothing here looks at connections, so the kernel tracks none. An answer about names gets its source last: a packet that
 * comes in from an address of the namespace's own is dropped when its way is looked up. What the guest sends to its gateway
 * stays inside, but for questions about names; addresses of its own choice go nowhere.
 */
function namespaceScript({ inside, outside, guest, gateway }: Translation): string {
  const [fromGuest, fromHost] = [`iifname "${inside}"`, `iifname "${outside}"`];
  const names = "meta l4proto { tcp, udp } th";
  const dhcp = `${fromGuest} udp sport 68 udp dport 67`;
  // What the guest sent, or was sent, is in the errors about it, too.
  const sent = aboutPacket(SOURCE_AT_BIT, guest, GUEST_INSIDE);
  const got = aboutPacket(DESTINATION_AT_BIT, GUEST_INSIDE, guest);
  return replaced(
    "inet",
    TABLE,
    `
  chain translate {
    type filter hook prerouting priority raw; policy accept;
    ${dhcp} accept
    ${fromGuest} ip saddr != ${GUEST_INSIDE} drop
    ${fromGuest} ip daddr ${GATEWAY_INSIDE} ${names} dport 53 ip saddr set ${guest} ip daddr set ${gateway} accept
    ${fromGuest} ip daddr ${GATEWAY_INSIDE} accept
    ${fromGuest} ${got}
    ${fromGuest} ip saddr set ${guest} accept
    ${fromHost} ip daddr ${guest} ${sent}
    ${fromHost} ip daddr ${guest} ip daddr set ${GUEST_INSIDE} accept
  }
  chain own {
    type filter hook output priority raw; policy accept;
    ip daddr ${guest} ${sent}
    ip daddr ${guest} ip daddr set ${GUEST_INSIDE}
  }
  chain names {
    type filter hook postrouting priority srcnat; policy accept;
    oifname "${inside}" ip saddr ${gateway} ${names} sport 53 ip saddr set ${GATEWAY_INSIDE}
  }
  chain input {
    type filter hook input priority filter; policy drop;
    iifname "lo" accept
    ${dhcp} accept
    ${fromGuest} ip daddr ${GATEWAY_INSIDE} icmp type echo-request accept
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ${fromGuest} oifname "${outside}" ip saddr ${guest} accept
    ${fromHost} oifname "${inside}" ip daddr ${GUEST_INSIDE} accept
  }`,
  );
}

/**
 * Changes an address in the packet that an ICMP error is about. Nothing computes the error's checksum anew, so the change is
 * taken back in two bytes of its header that are zero and that nobody reads. Both addresses begin with the same two bytes.
 */
function aboutPacket(bit: number, from: string, to: string): string {
  const [before, after] = [lowerHalf(from), lowerHalf(to)];
  const difference = (before - after + 0xffff) % 0xffff;
  const errors = "icmp type { destination-unreachable, time-exceeded }";
  const found = `@th,${bit},32 ${LINK_LOCAL_UPPER_HALF * 0x1_0000 + before}`;
  return `${errors} @th,${UNUSED_AT_BIT},16 0 ${found} @th,${bit + 16},16 set ${after} @th,${UNUSED_AT_BIT},16 set ${difference}`;
}

function lowerHalf(address: string): number {
  const [, , third = 0, fourth = 0] = address.split(".").map(Number);
  return third * 256 + fourth;
}
