//! The configuration space and the features of a disk.

use crate::virtio::disk::{CLUSTER_BYTES, SECTOR_BYTES};

pub(super) const QUEUE_SIZE: u16 = 256;
/// Data buffers of a request: what is left of a queue beside header and status.
const SEGMENTS_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Ranges of one request to discard or zero.
pub(super) const RANGES_MAX: u64 = 16;
/// 1 GiB: a discard costs little.
pub(super) const DISCARD_SECTORS_MAX: u32 = 1 << 21;
/// 32 MiB: zeros may have to be written.
pub(super) const ZERO_SECTORS_MAX: u32 = 1 << 16;

const FEATURE_SEGMENTS: u64 = 1 << 2;
const FEATURE_READ_ONLY: u64 = 1 << 5;
const FEATURE_BLOCK_SIZE: u64 = 1 << 6;
pub(super) const FEATURE_FLUSH: u64 = 1 << 9;
const FEATURE_TOPOLOGY: u64 = 1 << 10;
const FEATURE_DISCARD: u64 = 1 << 13;
const FEATURE_WRITE_ZEROES: u64 = 1 << 14;

pub(super) const SPACE_BYTES: usize = 60;

/// What is offered for a disk.
pub(super) fn features(read_only: bool) -> u64 {
    let common = FEATURE_SEGMENTS | FEATURE_BLOCK_SIZE | FEATURE_FLUSH | FEATURE_TOPOLOGY;
    common | if read_only { FEATURE_READ_ONLY } else { FEATURE_DISCARD | FEATURE_WRITE_ZEROES }
}

/// The space for a disk of so many bytes.
pub(super) fn space(disk_bytes: u64) -> [u8; SPACE_BYTES] {
    let mut space = [0; SPACE_BYTES];
    let mut put = |offset: usize, bytes: &[u8]| space[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0, &(disk_bytes / SECTOR_BYTES).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &(SECTOR_BYTES as u32).to_le_bytes());
    // Writes of whole clusters need no copy in a layer.
    put(24, &[(CLUSTER_BYTES / SECTOR_BYTES).trailing_zeros() as u8]);
    put(26, &((CLUSTER_BYTES / SECTOR_BYTES) as u16).to_le_bytes());
    put(34, &1_u16.to_le_bytes());
    put(36, &DISCARD_SECTORS_MAX.to_le_bytes());
    put(40, &(RANGES_MAX as u32).to_le_bytes());
    put(44, &((CLUSTER_BYTES / SECTOR_BYTES) as u32).to_le_bytes());
    put(48, &ZERO_SECTORS_MAX.to_le_bytes());
    put(52, &(RANGES_MAX as u32).to_le_bytes());
    put(56, &[1]);
    space
}
