//! One layer: a file with the clusters that it has at the offsets that they have on the disk, and the map of them. The
//! lowest layer has no map: it has everything.

use super::map::{Cluster, ClusterMap, MAP_PAGE_BYTES};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use thiserror::Error;

/// The unit in which layers know what they have: what file systems of guests write in.
pub const CLUSTER_BYTES: u64 = 4096;

const MAGIC: [u8; 8] = *b"FLUXLAY1";
/// Zeros for where a hole cannot be made.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Why a disk or a layer cannot be used.
#[derive(Debug, Error)]
pub enum DiskError {
    /// The host refused.
    #[error("disk: {0}")]
    Host(#[from] io::Error),
    /// The file is empty or does not hold whole sectors.
    #[error("disk: {0} bytes are not a number of 512-byte sectors")]
    Size(u64),
    /// The file is neither a regular file nor a block device.
    #[error("disk: neither a regular file nor a block device")]
    Kind,
    /// The file of a layer is not what it should be.
    #[error("disk layer: {0}")]
    Layer(&'static str),
    /// There are as many layers as one disk may have.
    #[error("disk: more than {0} layers")]
    Layers(usize),
    /// There is no layer above the lowest.
    #[error("disk: no layer to remove")]
    NoLayer,
}

/// What becomes of a layer after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Flushes reach the file, and its map with it.
    Durable,
    /// Nothing is synced: the layer of a dry run, which ends with it.
    Ephemeral,
}

pub(super) struct Layer {
    pub(super) file: Arc<File>,
    /// Absent in the lowest layer.
    pub(super) map: Option<ClusterMap>,
    pub(super) durability: Durability,
}

impl Layer {
    /// The lowest layer.
    pub(super) fn whole(file: File) -> Self {
        Self { file: Arc::new(file), map: None, durability: Durability::Durable }
    }

    /// A new layer over a disk of `bytes`, in an empty file.
    pub(super) fn create(file: File, bytes: u64, durability: Durability) -> Result<Self, DiskError> {
        if file.metadata()?.len() != 0 {
            return Err(DiskError::Layer("the file of a new layer is not empty"));
        }
        let clusters = bytes.div_ceil(CLUSTER_BYTES);
        let kept = durability == Durability::Durable;
        let header = map_offset(bytes);
        file.set_len(header + if kept { MAP_PAGE_BYTES as u64 + ClusterMap::file_bytes(clusters) } else { 0 })?;
        if kept {
            file.write_all_at(&header_bytes(bytes), header)?;
        }
        Ok(Self { file: Arc::new(file), map: Some(ClusterMap::new(clusters, kept)), durability })
    }

    /// A durable layer from before, for a disk of `bytes`. The file is untrusted.
    pub(super) fn open(file: File, bytes: u64) -> Result<Self, DiskError> {
        let clusters = bytes.div_ceil(CLUSTER_BYTES);
        let header = map_offset(bytes);
        let map_bytes = ClusterMap::file_bytes(clusters);
        if file.metadata()?.len() != header + MAP_PAGE_BYTES as u64 + map_bytes {
            return Err(DiskError::Layer("the file has the wrong size"));
        }
        let mut found = [0; MAP_PAGE_BYTES];
        file.read_exact_at(&mut found, header)?;
        if found != header_bytes(bytes) {
            return Err(DiskError::Layer("the file is not a layer of this disk"));
        }
        let mut map = vec![0; map_bytes as usize];
        file.read_exact_at(&mut map, header + MAP_PAGE_BYTES as u64)?;
        let map = Some(ClusterMap::from_bytes(clusters, &map)?);
        Ok(Self { file: Arc::new(file), map, durability: Durability::Durable })
    }

    /// What the layer says about a cluster.
    pub(super) fn cluster(&self, cluster: u64) -> Cluster {
        self.map.as_ref().map_or(Cluster::Data, |map| map.get(cluster))
    }

    /// Writes the changed parts of the map to the file, without a sync. Returns whether there were any.
    pub(super) fn write_map(&mut self, bytes: u64) -> io::Result<bool> {
        let Some(map) = self.map.as_mut().filter(|_| self.durability == Durability::Durable) else { return Ok(false) };
        let pages = map.take_changed();
        let begin = map_offset(bytes) + MAP_PAGE_BYTES as u64;
        for (offset, page) in &pages {
            if let Err(error) = self.file.write_all_at(page, begin + offset) {
                map.change_all();
                return Err(error);
            }
        }
        Ok(!pages.is_empty())
    }

    /// Makes a range read as zeros, as a hole where the file can have one.
    pub(super) fn zero(&self, offset: u64, bytes: u64, hole: bool) -> io::Result<()> {
        let first = if hole { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
        match fallocate(&*self.file, first | FallocateFlags::KEEP_SIZE, offset, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL) => self.write_zeros(offset, bytes),
            result => Ok(result?),
        }
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let piece = ZEROS.len().min((end - at) as usize);
            self.file.write_all_at(&ZEROS[..piece], at)?;
            at += piece as u64;
        }
        Ok(())
    }
}

/// The map lies behind the data, on whole clusters.
fn map_offset(bytes: u64) -> u64 {
    bytes.next_multiple_of(CLUSTER_BYTES)
}

fn header_bytes(bytes: u64) -> [u8; MAP_PAGE_BYTES] {
    let mut header = [0; MAP_PAGE_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&CLUSTER_BYTES.to_le_bytes());
    header[16..24].copy_from_slice(&bytes.to_le_bytes());
    header
}
