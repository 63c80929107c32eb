//! What a network device offers, which choices make sense together, and what a choice means for the tap.

use fluxvm_sys::tap::{OFFLOAD_CHECKSUM, OFFLOAD_TSO_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6};

/// The device takes frames whose checksum is not finished.
pub const CHECKSUM: u64 = 1 << 0;
/// The driver takes such frames.
pub const GUEST_CHECKSUM: u64 = 1 << 1;
/// The configuration says the largest frame.
pub const MTU: u64 = 1 << 3;
/// The configuration says the address.
pub const MAC: u64 = 1 << 5;
/// The driver takes long TCP segments over IPv4.
pub const GUEST_TSO4: u64 = 1 << 7;
/// The driver takes long TCP segments over IPv6.
pub const GUEST_TSO6: u64 = 1 << 8;
/// Such segments may carry congestion marks.
pub const GUEST_ECN: u64 = 1 << 9;
/// The device takes long TCP segments over IPv4.
pub const HOST_TSO4: u64 = 1 << 11;
/// The device takes long TCP segments over IPv6.
pub const HOST_TSO6: u64 = 1 << 12;
/// Such segments may carry congestion marks.
pub const HOST_ECN: u64 = 1 << 13;
/// A frame may lie in several buffers.
pub const MERGEABLE_BUFFERS: u64 = 1 << 15;
/// The configuration says whether the link is up.
pub const STATUS: u64 = 1 << 16;
/// There is a control queue.
pub const CONTROL_QUEUE: u64 = 1 << 17;
/// There are several queue pairs.
pub const MULTIQUEUE: u64 = 1 << 22;

/// What every device offers.
pub const ALWAYS: u64 = CHECKSUM
    | GUEST_CHECKSUM
    | MAC
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MERGEABLE_BUFFERS
    | STATUS;

/// A feature and what it needs at least one of (virtio 1.2, section 5.1.3.1).
const NEEDS: [(u64, u64); 7] = [
    (GUEST_TSO4, GUEST_CHECKSUM),
    (GUEST_TSO6, GUEST_CHECKSUM),
    (GUEST_ECN, GUEST_TSO4 | GUEST_TSO6),
    (HOST_TSO4, CHECKSUM),
    (HOST_TSO6, CHECKSUM),
    (HOST_ECN, HOST_TSO4 | HOST_TSO6),
    (MULTIQUEUE, CONTROL_QUEUE),
];

/// Whether these make sense together.
pub fn agree(features: u64) -> bool {
    NEEDS.iter().all(|(feature, needed)| features & feature == 0 || features & needed != 0)
}

/// The work that the tap may leave to the guest.
pub fn tap_offloads(features: u64) -> u32 {
    let offloads = [
        (GUEST_CHECKSUM, OFFLOAD_CHECKSUM),
        (GUEST_TSO4, OFFLOAD_TSO4),
        (GUEST_TSO6, OFFLOAD_TSO6),
        (GUEST_ECN, OFFLOAD_TSO_ECN),
    ];
    offloads.iter().filter(|(feature, _)| features & feature != 0).map(|(_, offload)| offload).sum()
}

/// Whether the guest takes long TCP segments.
pub fn takes_segments(features: u64) -> bool {
    features & (GUEST_TSO4 | GUEST_TSO6) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_need_checksums_and_several_pairs_need_control() {
        assert!(agree(ALWAYS));
        assert!(agree(0));
        assert!(!agree(GUEST_TSO4));
        assert!(!agree(HOST_TSO6 | GUEST_CHECKSUM));
        assert!(!agree(CHECKSUM | HOST_ECN));
        assert!(!agree(MULTIQUEUE));
        assert!(agree(MULTIQUEUE | CONTROL_QUEUE));
    }

    #[test]
    fn the_tap_leaves_to_the_guest_what_the_guest_takes_and_nothing_else() {
        assert_eq!(tap_offloads(CHECKSUM | HOST_TSO4), 0);
        assert_eq!(tap_offloads(GUEST_CHECKSUM | GUEST_TSO6), OFFLOAD_CHECKSUM | OFFLOAD_TSO6);
        assert_eq!(tap_offloads(ALWAYS), 0xF);
    }
}
