//! A file that is memory of the guest beside its RAM and that the guest only reads: all machines with the same file share its
//! pages, and none of them has a copy.

use crate::arch::layout::{IMAGE_ALIGNMENT_BYTES, image_start};
use crate::error::{Error, Result};
use fluxvm_sys::guest_vm::map_image;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

/// A file in its place above RAM. What the file does not fill up to a whole number of large pages is zeros.
#[derive(Clone)]
pub struct Image {
    region: Arc<GuestRegionMmap>,
}

impl Image {
    /// Maps files one after the other above RAM that ends at `ram_end`. They must keep their lengths as long as the machine runs: a
    /// guest that reads where its file has become shorter is ended.
    ///
    /// # Errors
    /// [`Error::Image`] for an empty file or one that cannot be mapped.
    pub fn map_all(files: &[File], ram_end: u64) -> Result<Vec<Self>> {
        let mut next = image_start(ram_end);
        let mut images = Vec::with_capacity(files.len());
        for file in files {
            let image = Self::map(file, next)?;
            next = image_start(image.start() + image.bytes());
            images.push(image);
        }
        Ok(images)
    }

    fn map(file: &File, start: u64) -> Result<Self> {
        let file_bytes = file.metadata().map_err(Error::Image)?.len();
        let bytes = file_bytes.checked_next_multiple_of(IMAGE_ALIGNMENT_BYTES).filter(|bytes| *bytes > 0);
        let wrong = || Error::Image(std::io::Error::new(std::io::ErrorKind::InvalidInput, "its length makes no sense"));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(wrong)?;
        let region = MmapRegionBuilder::new(bytes)
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)
            .build()
            .map_err(|error| Error::Image(std::io::Error::other(error)))?;
        let region = GuestRegionMmap::new(region, GuestAddress(start)).ok_or_else(wrong)?;
        map_image(&region, file.as_fd(), file_bytes).map_err(|errno| Error::Image(errno.into()))?;
        Ok(Self { region: Arc::new(region) })
    }

    /// Its first guest address.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.region.start_addr().0
    }

    /// Its length as the guest sees it: a whole number of large pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.region.len()
    }
}

/// RAM and images as one memory.
pub(super) fn with_images(ram: &GuestMemoryMmap, images: &[Image]) -> Result<GuestMemoryMmap> {
    images.iter().try_fold(ram.clone(), |memory, image| {
        let joined = memory.insert_region(Arc::clone(&image.region));
        joined.map_err(|error| Error::Image(std::io::Error::other(error)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use vm_memory::Bytes;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn images_lie_above_ram_one_after_the_other_and_read_as_their_files_with_zeros_behind() {
        let files = [file(&[7; 5000]), file(&[9; 1])];
        let images = Image::map_all(&files, 64 << 20).unwrap();
        assert_eq!(images[0].start(), 4 << 30);
        assert_eq!(images[0].bytes(), IMAGE_ALIGNMENT_BYTES);
        assert!(images[1].start() >= images[0].start() + images[0].bytes());
        let ram = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 20)]).unwrap();
        let memory = with_images(&ram, &images).unwrap();
        let mut bytes = [1; 5001];
        memory.read_slice(&mut bytes, GuestAddress(images[0].start())).unwrap();
        assert_eq!((bytes[4999], bytes[5000]), (7, 0));
        let last: u8 = memory.read_obj(GuestAddress(images[0].start() + images[0].bytes() - 1)).unwrap();
        assert_eq!(last, 0);
        // A device that is told to write there changes nothing for others.
        memory.write_obj(1u8, GuestAddress(images[1].start())).unwrap();
        let mut again = [0];
        std::os::unix::fs::FileExt::read_exact_at(&files[1], &mut again, 0).unwrap();
        assert_eq!(again, [9]);
    }

    #[test]
    fn a_file_without_content_is_refused() {
        assert!(matches!(Image::map_all(&[file(&[])], 64 << 20), Err(Error::Image(_))));
    }

    #[test]
    fn a_file_that_may_only_be_read_is_enough() {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), [5; 4096]).unwrap();
        assert!(Image::map_all(&[File::open(path.path()).unwrap()], 9 << 30).is_ok());
    }
}
