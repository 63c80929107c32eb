//! Reads what a qcow2 image has and where, once, when the disk is opened. Images are never written: what a guest writes
//! goes to a layer above. Every number in an image is untrusted.

use super::layer::{CLUSTER_BYTES, DiskError};
use std::fs::File;
use std::os::unix::fs::FileExt;

const MAGIC: u32 = 0x5146_49FB;
const HEADER_BYTES_V2: usize = 72;
const HEADER_BYTES_V3: usize = 104;
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 12..=21;
/// 64 TiB.
const DISK_BYTES_MAX: u64 = 1 << 46;
/// What the tables of one image may come to in memory: a million pieces.
const EXTENTS_MAX: usize = 1 << 20;
/// Entries of the first table: 64 TiB in clusters of 64 KiB.
const TABLES_MAX: u64 = 1 << 17;

/// Incompatible features: unclean is harmless for a reader, and so is which compression is not used.
const FEATURES_HARMLESS: u64 = 1 << 0 | 1 << 3;
const OFFSET: u64 = 0x00FF_FFFF_FFFF_FE00;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;

/// Where a run of clusters is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At this offset of the image.
    At(u64),
    /// Nowhere: it reads as zeros.
    Zeros,
}

/// A run of clusters that lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    first: u64,
    clusters: u64,
    place: Place,
}

impl Extent {
    fn place_of(&self, cluster: u64) -> Place {
        match self.place {
            Place::At(offset) => Place::At(offset + (cluster - self.first) * CLUSTER_BYTES),
            Place::Zeros => Place::Zeros,
        }
    }
}

/// What an image has; the rest is in the image below it, or zeros.
pub(super) struct Image {
    /// Size of the disk in bytes.
    pub(super) bytes: u64,
    /// Whether it names an image below.
    pub(super) has_backing: bool,
    extents: Vec<Extent>,
}

struct Header {
    version: u32,
    bytes: u64,
    cluster_bits: u32,
    tables: u64,
    table_offset: u64,
    has_backing: bool,
}

impl Image {
    /// Reads header and tables.
    pub(super) fn read(file: &File) -> Result<Self, DiskError> {
        let header = Header::read(file)?;
        let mut image = Self { bytes: header.bytes, has_backing: header.has_backing, extents: Vec::new() };
        let file_bytes = file.metadata()?.len();
        let cluster_bytes = 1 << header.cluster_bits;
        let entries = cluster_bytes / 8;
        let mut table = vec![0; cluster_bytes as usize];
        let tables = read_table(file, header.table_offset, header.tables)?;
        // An image that names one table again and again would keep its reader busy for hours.
        let named = tables.iter().filter(|entry| **entry & OFFSET != 0).count() as u64;
        if named * cluster_bytes > file_bytes {
            return Err(DiskError::Image("it has more tables than it has room for"));
        }
        for (index, entry) in tables.into_iter().enumerate() {
            let offset = entry & OFFSET;
            if offset == 0 {
                continue;
            }
            check_offset(offset, cluster_bytes, file_bytes, cluster_bytes)?;
            file.read_exact_at(&mut table, offset)?;
            let (entries_of_table, _) = table.as_chunks::<8>();
            for (place, entry) in entries_of_table.iter().enumerate() {
                let guest = (index as u64 * entries + place as u64) * cluster_bytes;
                if guest < header.bytes {
                    image.add(&header, guest, u64::from_be_bytes(*entry), file_bytes)?;
                }
            }
        }
        Ok(image)
    }

    /// Where a cluster of a layer is; nothing when the image does not have it.
    pub(super) fn find(&self, cluster: u64) -> Option<Place> {
        let after = self.extents.partition_point(|extent| extent.first <= cluster);
        let extent = self.extents[..after].last()?;
        (cluster < extent.first + extent.clusters).then(|| extent.place_of(cluster))
    }

    fn add(&mut self, header: &Header, guest: u64, entry: u64, file_bytes: u64) -> Result<(), DiskError> {
        if entry & COMPRESSED != 0 {
            return Err(DiskError::Image("it is compressed; convert it first"));
        }
        let cluster_bytes = 1_u64 << header.cluster_bits;
        let used = cluster_bytes.min(header.bytes - guest);
        let place = match (entry & ZERO != 0 && header.version >= 3, entry & OFFSET) {
            (true, _) => Place::Zeros,
            (false, 0) => return Ok(()),
            (false, offset) => {
                check_offset(offset, cluster_bytes, file_bytes, used)?;
                Place::At(offset)
            }
        };
        let first = guest / CLUSTER_BYTES;
        let clusters = cluster_bytes / CLUSTER_BYTES;
        let goes_on = |last: &&mut Extent| last.first + last.clusters == first && last.place_of(first) == place;
        if let Some(last) = self.extents.last_mut().filter(goes_on) {
            last.clusters += clusters;
            return Ok(());
        }
        if self.extents.len() == EXTENTS_MAX {
            return Err(DiskError::Image("it is in too many pieces; convert it first"));
        }
        self.extents.push(Extent { first, clusters, place });
        Ok(())
    }
}

impl Header {
    fn read(file: &File) -> Result<Self, DiskError> {
        let mut bytes = [0; HEADER_BYTES_V3];
        let wrong = DiskError::Image;
        file.read_exact_at(&mut bytes[..HEADER_BYTES_V2], 0).map_err(|_| wrong("it is too short"))?;
        let u32_at = |bytes: &[u8], offset: usize| {
            u32::from_be_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
        };
        let u64_at =
            |bytes: &[u8], offset: usize| u64::from(u32_at(bytes, offset)) << 32 | u64::from(u32_at(bytes, offset + 4));
        let version = u32_at(&bytes, 4);
        if u32_at(&bytes, 0) != MAGIC || !(2..=3).contains(&version) {
            return Err(wrong("it is not qcow2"));
        }
        if version == 3 {
            file.read_exact_at(&mut bytes, 0).map_err(|_| wrong("it is too short"))?;
            if u64_at(&bytes, 72) & !FEATURES_HARMLESS != 0 {
                return Err(wrong("it is damaged or uses features that are not known"));
            }
        }
        let header = Self {
            version,
            has_backing: u64_at(&bytes, 8) != 0,
            cluster_bits: u32_at(&bytes, 20),
            bytes: u64_at(&bytes, 24),
            tables: u64::from(u32_at(&bytes, 36)),
            table_offset: u64_at(&bytes, 40),
        };
        if u32_at(&bytes, 32) != 0 {
            return Err(wrong("it is encrypted"));
        }
        if !CLUSTER_BITS.contains(&header.cluster_bits) {
            return Err(wrong("its clusters are smaller than 4 KiB or larger than 2 MiB"));
        }
        let covered = 1_u64 << (2 * header.cluster_bits - 3);
        let needed = header.bytes.div_ceil(covered);
        let fits = header.tables >= needed && header.tables <= TABLES_MAX;
        if header.bytes > DISK_BYTES_MAX || !fits {
            return Err(wrong("its size makes no sense"));
        }
        // What lies beyond the end of the disk is of no use to anybody.
        Ok(Self { tables: needed, ..header })
    }
}

fn read_table(file: &File, offset: u64, entries: u64) -> Result<Vec<u64>, DiskError> {
    let mut bytes = vec![0; entries as usize * 8];
    file.read_exact_at(&mut bytes, offset).map_err(|_| DiskError::Image("its table is not in the file"))?;
    let (entries, _) = bytes.as_chunks::<8>();
    Ok(entries.iter().map(|entry| u64::from_be_bytes(*entry)).collect())
}

fn check_offset(offset: u64, alignment: u64, file_bytes: u64, used: u64) -> Result<(), DiskError> {
    let inside = offset.checked_add(used).is_some_and(|end| end <= file_bytes);
    if offset.is_multiple_of(alignment) && inside { Ok(()) } else { Err(DiskError::Image("a table points to nowhere")) }
}
