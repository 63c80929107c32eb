//! One layer: a file, and what of the disk it has. A layer that a guest writes has its clusters at the offsets that they
//! have on the disk.

use super::map::{Cluster, ClusterMap, MAP_PAGE_BYTES};
use super::qcow2::{Image, Place};
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
    /// The image cannot be read.
    #[error("disk image: {0}")]
    Image(&'static str),
    /// Images do not fit on each other.
    #[error("disk image: {0}")]
    Chain(&'static str),
    /// The layer below is an image that is never written.
    #[error("disk: an image is not written")]
    Sealed,
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

/// What a layer has.
pub(super) enum Content {
    /// Everything: a raw file.
    Whole,
    /// What the map says.
    Mapped(ClusterMap),
    /// What an image has, at its own offsets.
    Image(Image),
}

pub(super) struct Layer {
    pub(super) file: Arc<File>,
    pub(super) content: Content,
    /// Size of the disk in the eyes of the layer.
    pub(super) bytes: u64,
    pub(super) durability: Durability,
}

impl Layer {
    /// A raw file, which has everything.
    pub(super) fn whole(file: File, bytes: u64) -> Self {
        Self { file: Arc::new(file), content: Content::Whole, bytes, durability: Durability::Durable }
    }

    /// A qcow2 image, which is only read. The file is untrusted.
    pub(super) fn image(file: File) -> Result<Self, DiskError> {
        let image = Image::read(&file)?;
        let bytes = image.bytes;
        Ok(Self { file: Arc::new(file), content: Content::Image(image), bytes, durability: Durability::Durable })
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
        let content = Content::Mapped(ClusterMap::new(clusters, kept));
        Ok(Self { file: Arc::new(file), content, bytes, durability })
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
        let content = Content::Mapped(ClusterMap::from_bytes(clusters, &map)?);
        Ok(Self { file: Arc::new(file), content, bytes, durability: Durability::Durable })
    }

    /// Where the layer has a cluster; nothing when it is in a layer below.
    pub(super) fn find(&self, cluster: u64) -> Option<Place> {
        let offset = cluster * CLUSTER_BYTES;
        if offset >= self.bytes {
            return None;
        }
        match &self.content {
            Content::Whole => Some(Place::At(offset)),
            Content::Image(image) => image.find(cluster),
            Content::Mapped(map) => match map.get(cluster) {
                Cluster::Absent => None,
                Cluster::Data => Some(Place::At(offset)),
                Cluster::Zero => Some(Place::Zeros),
            },
        }
    }

    /// Whether it has the data of a cluster where a write may go.
    pub(super) fn holds(&self, cluster: u64) -> bool {
        matches!(self.find(cluster), Some(Place::At(_)))
    }

    /// Whether a guest may write to it.
    pub(super) fn is_writable(&self) -> bool {
        !matches!(self.content, Content::Image(_))
    }

    /// The map, of a layer that has one.
    pub(super) fn map(&self) -> Option<&ClusterMap> {
        if let Content::Mapped(map) = &self.content { Some(map) } else { None }
    }

    /// Notes what clusters are now.
    pub(super) fn mark(&mut self, clusters: std::ops::Range<u64>, value: Cluster) {
        if let Content::Mapped(map) = &mut self.content {
            map.set(clusters, value);
        }
    }

    /// Writes the changed parts of the map to the file, without a sync. Returns whether there were any.
    pub(super) fn write_map(&mut self) -> io::Result<bool> {
        let Content::Mapped(map) = &mut self.content else { return Ok(false) };
        let pages = map.take_changed();
        let begin = map_offset(self.bytes) + MAP_PAGE_BYTES as u64;
        for (done, (offset, page)) in pages.iter().enumerate() {
            if let Err(error) = self.file.write_all_at(page, begin + offset) {
                // Only these: a host without room may have some for less, and the next sync is of all that was written.
                pages[done..].iter().for_each(|(offset, _)| map.change_again(*offset));
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
