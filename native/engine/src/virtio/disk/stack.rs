//! The layers of a disk as one: where each byte is read from, where it is written to, and what happens to the top.

use super::layer::{CLUSTER_BYTES, Content, DiskError, Durability, Layer};
use super::map::Cluster;
use super::qcow2::Place;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::sync::{Arc, Mutex};

/// The unit of addresses on a disk.
pub const SECTOR_BYTES: u64 = 512;
/// The most layers that one disk has.
pub const LAYERS_MAX: usize = 16;
/// Bytes that a merge moves at once.
const MERGE_BYTES: usize = 1 << 20;

/// A disk that the device uses and the machine's control changes while the device stands still.
pub type SharedDisk = Arc<Mutex<Disk>>;

/// Where a part of a disk is.
#[derive(Clone, Debug)]
pub enum Source {
    /// In this file, at this offset.
    File(Arc<File>, u64),
    /// Nowhere: it reads as zeros.
    Zeros,
}

/// A part of a disk that one source has.
#[derive(Clone, Debug)]
pub struct Run {
    /// Who has it.
    pub source: Source,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// One file of those that a disk is made of.
pub struct DiskImage {
    /// The file; of an image that others use it should be open for reading only.
    pub file: File,
    /// How to read it; never guessed from the content, which the guest may have written.
    pub format: ImageFormat,
}

/// How an image is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// The bytes of the disk.
    Raw,
    /// A qcow2 image without compression and encryption. It is only read: put a layer on it for a guest that writes.
    Qcow2,
}

/// A disk.
pub struct Disk {
    /// From the lowest to the top; never empty.
    layers: Vec<Layer>,
    bytes: u64,
    read_only: bool,
}

impl Disk {
    /// A disk in a raw file or on a block device, which must hold whole sectors.
    ///
    /// # Errors
    /// When the file is not one that can be a disk.
    pub fn open(mut file: File, read_only: bool) -> Result<Self, DiskError> {
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DiskError::Kind);
        }
        let bytes = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(DiskError::Size(bytes));
        }
        Ok(Self { layers: vec![Layer::whole(file, bytes)], bytes, read_only })
    }

    /// A disk of images on each other, the lowest first, which are all only read. The size is that of the last one. What
    /// images say about the names of those below is not looked at: whoever opened the files decides.
    ///
    /// # Errors
    /// When there is none, an image cannot be read, or they do not fit on each other.
    pub fn open_images(images: Vec<DiskImage>) -> Result<Self, DiskError> {
        let mut layers: Vec<Layer> = Vec::new();
        for DiskImage { file, format } in images {
            let layer = match format {
                ImageFormat::Raw if layers.is_empty() => Self::open(file, true)?.layers.remove(0),
                ImageFormat::Raw => return Err(DiskError::Chain("a raw file has nothing below it")),
                ImageFormat::Qcow2 => Layer::image(file)?,
            };
            match &layer.content {
                Content::Image(image) if image.has_backing && layers.is_empty() => {
                    return Err(DiskError::Chain("the image below it is missing"));
                }
                Content::Image(image) if !image.has_backing && !layers.is_empty() => {
                    return Err(DiskError::Chain("an image that is complete lies on another"));
                }
                _ => (),
            }
            // The end of a smaller disk must be the end of a cluster, or its last one would be read beyond it.
            let torn = |below: &Layer| below.bytes < layer.bytes && !below.bytes.is_multiple_of(CLUSTER_BYTES);
            if layers.iter().any(torn) {
                return Err(DiskError::Chain("an image below ends within a cluster of 4 KiB"));
            }
            layers.push(layer);
            if layers.len() >= LAYERS_MAX {
                return Err(DiskError::Layers(LAYERS_MAX));
            }
        }
        let bytes = layers.last().ok_or(DiskError::Chain("there is no image"))?.bytes;
        if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(DiskError::Size(bytes));
        }
        Ok(Self { layers, bytes, read_only: false })
    }

    /// Makes a disk that has no layer yet larger; what is new reads as zeros and can be written once a layer is on it.
    ///
    /// # Errors
    /// When it would shrink, holds no whole sectors then, or the image ends within a cluster.
    pub fn grow(&mut self, bytes: u64) -> Result<(), DiskError> {
        if bytes == self.bytes {
            return Ok(());
        }
        if bytes < self.bytes || !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(DiskError::Size(bytes));
        }
        if !self.bytes.is_multiple_of(CLUSTER_BYTES) {
            return Err(DiskError::Chain("an image that ends within a cluster of 4 KiB cannot grow"));
        }
        self.bytes = bytes;
        Ok(())
    }

    /// The disk as the device shares it.
    pub fn shared(self) -> SharedDisk {
        Arc::new(Mutex::new(self))
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the guest may only read.
    pub fn is_read_only(&self) -> bool {
        self.read_only || !self.top().is_writable()
    }

    /// How many layers there are, with the lowest.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// How many bytes the top layer has of its own; all of the disk when it is the lowest.
    pub fn top_bytes(&self) -> u64 {
        let top = self.top();
        top.map().map_or(self.bytes, |map| map.present() * CLUSTER_BYTES)
    }

    /// Freezes the top and puts a new layer on it, in an empty file. What the guest was told is on disk stays so.
    ///
    /// # Errors
    /// When the layers cannot be synced or the file is no place for one; the disk is then as before.
    pub fn push(&mut self, file: File, durability: Durability) -> Result<(), DiskError> {
        self.room_for_another()?;
        let layer = Layer::create(file, self.bytes, durability)?;
        if durability == Durability::Durable {
            self.sync()?;
        }
        self.layers.push(layer);
        Ok(())
    }

    /// Puts a durable layer from before on the top. The file is untrusted.
    ///
    /// # Errors
    /// When the file is not a layer of a disk of this size.
    pub fn push_existing(&mut self, file: File) -> Result<(), DiskError> {
        self.room_for_another()?;
        self.layers.push(Layer::open(file, self.bytes)?);
        Ok(())
    }

    /// Whether a file is a durable layer of a disk of `bytes`. The file is untrusted.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_layer(file: &File, bytes: u64) -> Result<(), DiskError> {
        Layer::open(file.try_clone()?, bytes).map(drop)
    }

    /// Takes the top layer off, with everything written since it was put on.
    ///
    /// # Errors
    /// When only the lowest is left.
    pub fn discard_top(&mut self) -> Result<(), DiskError> {
        if self.layers.len() == 1 {
            return Err(DiskError::NoLayer);
        }
        self.layers.pop();
        Ok(())
    }

    /// Writes what the top layer has into the one below and takes it off. A failure leaves both, and the disk reads as
    /// before.
    ///
    /// # Errors
    /// When only the lowest is left, or the host refuses.
    pub fn merge_top(&mut self) -> Result<(), DiskError> {
        let (top, rest) = self.layers.split_last_mut().ok_or(DiskError::NoLayer)?;
        let (Some(map), Some(below)) = (top.map(), rest.last_mut()) else { return Err(DiskError::NoLayer) };
        if !below.is_writable() {
            return Err(DiskError::Sealed);
        }
        let mut buffer = vec![0; MERGE_BYTES];
        for run in map.runs(Cluster::Data) {
            let end = (run.end * CLUSTER_BYTES).min(self.bytes);
            let mut at = run.start * CLUSTER_BYTES;
            while at < end {
                let piece = MERGE_BYTES.min((end - at) as usize);
                top.file.read_exact_at(&mut buffer[..piece], at)?;
                below.file.write_all_at(&buffer[..piece], at)?;
                at += piece as u64;
            }
            below.mark(run, Cluster::Data);
        }
        for run in map.runs(Cluster::Zero) {
            let (begin, end) = (run.start * CLUSTER_BYTES, (run.end * CLUSTER_BYTES).min(self.bytes));
            below.zero(begin, end - begin, true)?;
            below.mark(run, Cluster::Zero);
        }
        // What the guest was told is on disk must be so when the layer is gone.
        if top.durability == Durability::Durable {
            below.file.sync_data()?;
            if below.write_map()? {
                below.file.sync_data()?;
            }
        }
        self.layers.pop();
        Ok(())
    }

    /// Brings everything written so far to the disk of the host, unless it ends with its layer.
    ///
    /// # Errors
    /// When the host cannot.
    pub fn sync(&mut self) -> io::Result<()> {
        if let Some(file) = self.sync_target() {
            file.sync_data()?;
            if self.write_map()? {
                file.sync_data()?;
            }
        }
        Ok(())
    }

    /// The file that a flush of the guest has to sync; none when nothing written is to outlive its layer.
    pub fn sync_target(&self) -> Option<Arc<File>> {
        let top = self.top();
        (top.durability == Durability::Durable && !self.is_read_only()).then(|| top.file.clone())
    }

    /// Writes the map of the top after its data was synced. Returns whether another sync is needed.
    ///
    /// # Errors
    /// When the host refuses; the next flush then writes it again.
    pub fn write_map(&mut self) -> io::Result<bool> {
        self.top_mut().write_map()
    }

    /// Where a range is to be read, in order; added to `runs`. The range must lie on the disk.
    pub fn read_runs(&self, offset: u64, bytes: u64, runs: &mut Vec<Run>) {
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let cluster = at / CLUSTER_BYTES;
            let owner = self.owner(cluster);
            let mut until = next_cluster(at);
            while until < end && self.owner(until / CLUSTER_BYTES) == owner.after(until / CLUSTER_BYTES - cluster) {
                until = next_cluster(until);
            }
            let source = match owner {
                Owner::Nobody => Source::Zeros,
                Owner::Layer(index, place) => {
                    Source::File(self.layers[index].file.clone(), place + (at - cluster * CLUSTER_BYTES))
                }
            };
            runs.push(Run { source, offset: at, bytes: until.min(end) - at });
            at = until;
        }
    }

    /// Whether a write of this range needs [`Self::copy_up`] first: it touches a part of a cluster that the top does not
    /// have.
    pub fn needs_copy_up(&self, offset: u64, bytes: u64) -> bool {
        self.torn_clusters(offset, bytes).into_iter().flatten().any(|cluster| !self.top().holds(cluster))
    }

    /// Copies the clusters that a write of this range touches in part into the top. No write may be in flight.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn copy_up(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        for cluster in self.torn_clusters(offset, bytes).into_iter().flatten() {
            if self.top().holds(cluster) {
                continue;
            }
            let begin = cluster * CLUSTER_BYTES;
            let len = CLUSTER_BYTES.min(self.bytes - begin) as usize;
            let mut buffer = [0; CLUSTER_BYTES as usize];
            if let Owner::Layer(index, place) = self.owner(cluster) {
                self.layers[index].file.read_exact_at(&mut buffer[..len], place)?;
            }
            self.top().file.write_all_at(&buffer[..len], begin)?;
            self.top_mut().mark(cluster..cluster + 1, Cluster::Data);
        }
        Ok(())
    }

    /// The file that takes writes, at the offset that they have on the disk.
    pub fn write_target(&self) -> Arc<File> {
        self.top().file.clone()
    }

    /// A write of this range has reached the file.
    pub fn written(&mut self, offset: u64, bytes: u64) {
        self.top_mut().mark(offset / CLUSTER_BYTES..(offset + bytes).div_ceil(CLUSTER_BYTES), Cluster::Data);
    }

    /// Makes a range read as zeros; `unmap` lets its room go. No write may be in flight.
    ///
    /// # Errors
    /// When the host refuses; the range then has its old content or zeros.
    pub fn zero(&mut self, offset: u64, bytes: u64, unmap: bool) -> io::Result<()> {
        if self.top().map().is_none() {
            return self.top().zero(offset, bytes, unmap);
        }
        self.copy_up(offset, bytes)?;
        let end = offset + bytes;
        let whole_end = if end == self.bytes { end.div_ceil(CLUSTER_BYTES) } else { end / CLUSTER_BYTES };
        let whole = offset.div_ceil(CLUSTER_BYTES)..whole_end;
        let inner =
            if whole.is_empty() { end..end } else { whole.start * CLUSTER_BYTES..(whole_end * CLUSTER_BYTES).min(end) };
        for torn in [offset..inner.start.min(end), inner.end..end] {
            if !torn.is_empty() {
                self.top().zero(torn.start, torn.end - torn.start, false)?;
            }
        }
        if !inner.is_empty() {
            // The map says it; the hole only gives room back.
            self.top_mut().mark(whole, Cluster::Zero);
            self.top().zero(inner.start, inner.end - inner.start, true)?;
        }
        Ok(())
    }

    /// The clusters at both ends of a range that it does not cover whole.
    fn torn_clusters(&self, offset: u64, bytes: u64) -> [Option<u64>; 2] {
        let end = offset + bytes;
        let (first, last) = (offset / CLUSTER_BYTES, (end - 1) / CLUSTER_BYTES);
        let head = !offset.is_multiple_of(CLUSTER_BYTES);
        let tail = !end.is_multiple_of(CLUSTER_BYTES) && end != self.bytes;
        let only = first == last;
        [(head || only && tail).then_some(first), (!only && tail).then_some(last)]
    }

    /// Who has a cluster, and where.
    fn owner(&self, cluster: u64) -> Owner {
        let found = self.layers.iter().enumerate().rev().find_map(|(index, layer)| Some((index, layer.find(cluster)?)));
        match found {
            Some((index, Place::At(offset))) => Owner::Layer(index, offset),
            Some((_, Place::Zeros)) | None => Owner::Nobody,
        }
    }

    fn room_for_another(&self) -> Result<(), DiskError> {
        if self.layers.len() < LAYERS_MAX { Ok(()) } else { Err(DiskError::Layers(LAYERS_MAX)) }
    }

    fn top(&self) -> &Layer {
        self.layers.last().expect("there is always the lowest layer")
    }

    fn top_mut(&mut self) -> &mut Layer {
        self.layers.last_mut().expect("there is always the lowest layer")
    }
}

/// Who has a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A layer, at an offset of its file.
    Layer(usize, u64),
    /// It reads as zeros.
    Nobody,
}

impl Owner {
    /// Who would have a later cluster of the same run.
    fn after(self, clusters: u64) -> Self {
        match self {
            Self::Layer(index, offset) => Self::Layer(index, offset + clusters * CLUSTER_BYTES),
            Self::Nobody => Self::Nobody,
        }
    }
}

fn next_cluster(offset: u64) -> u64 {
    (offset / CLUSTER_BYTES + 1) * CLUSTER_BYTES
}
