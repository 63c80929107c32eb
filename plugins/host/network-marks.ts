// How the parts of the host that decide about packets know each other's work: which interfaces are ours, and which packets
// a dataplane has allowed. All are numbers of the kernel's that nothing else on a host is known to use.

/** Group of every interface through which packets of a sandbox reach the host ("Flux"). It is set as the interface is made. */
export const NETWORK_DEVICE_GROUP = 0x466c_7578;
/** Bit of a packet's mark; set by the dataplane that allowed it. All other bits stay as they are. */
export const ALLOWED_MARK = 0x1000_0000;
/** Another bit; set on what a sandbox sends where nothing else tells that it is a sandbox's: on a macvtap device. */
export const BESIDE_MARK = 0x2000_0000;

/** Allowed packets of sandboxes are marked in this order of hooks, and those without a mark are dropped in the next. */
export const NFT_PRIORITY = { decide: -150, undecided: -140 } as const;
