//! Guest RAM: a file handed in as a descriptor, mapped in one region below the hole for devices and one above it. The mapping
//! can be replaced in place while the guest is paused, without the memory slots noticing.

mod image;

use crate::arch::layout;
use crate::error::{Error, Result};
pub use fluxvm_sys::guest_vm::Mapping;
use fluxvm_sys::guest_vm::{prefer_huge_pages, replace_mapping};
pub use image::Image;
use image::with_images;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

/// Guest RAM and the file behind it.
#[derive(Clone)]
pub struct GuestRam {
    memory: GuestMemoryMmap,
    images: Vec<Image>,
    /// RAM and images.
    whole: GuestMemoryMmap,
}

impl GuestRam {
    /// Maps a file of exactly `bytes` as RAM, so that writes reach it (home) or stay private (layered).
    ///
    /// # Errors
    /// [`Error::MemorySize`] when the size is no whole number of pages, too small or too large, or not the file's;
    /// [`Error::MapMemory`] with what `mmap` says.
    pub fn new(file: File, bytes: u64, mapping: Mapping) -> Result<Self> {
        let file_bytes = file.metadata().map_err(Error::MapMemory)?.len();
        if file_bytes != bytes {
            return Err(Error::MemorySize(bytes, "it is not the size of the file"));
        }
        let file = Arc::new(file);
        let mut offset = 0;
        let mut regions = Vec::new();
        for (start, length) in layout::ram_regions(bytes)? {
            let kind = match mapping {
                Mapping::Shared => libc::MAP_SHARED,
                Mapping::Private => libc::MAP_PRIVATE,
            };
            let length_in_host = usize::try_from(length).map_err(|_| Error::MemorySize(bytes, "it is too large"))?;
            let region = MmapRegionBuilder::new(length_in_host)
                .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
                .with_mmap_flags(kind | libc::MAP_NORESERVE)
                .with_file_offset(FileOffset::from_arc(Arc::clone(&file), offset))
                .build()
                .map_err(|error| Error::MapMemory(std::io::Error::other(error)))?;
            let region = GuestRegionMmap::new(region, start).ok_or(Error::MemorySize(bytes, "it is too large"))?;
            prefer_huge_pages(&region);
            regions.push(region);
            offset += length;
        }
        let memory =
            GuestMemoryMmap::from_regions(regions).map_err(|error| Error::MapMemory(std::io::Error::other(error)))?;
        Ok(Self { whole: memory.clone(), memory, images: Vec::new() })
    }

    /// Adds files that the guest reads as memory above its RAM.
    ///
    /// # Errors
    /// As [`Image::map_all`].
    pub fn add_images(&mut self, files: &[File]) -> Result<()> {
        let ram_end = self.memory.last_addr().0 + 1;
        let images = Image::map_all(files, ram_end)?;
        self.whole = with_images(&self.memory, &images)?;
        self.images = images;
        Ok(())
    }

    /// The images, in the order in which they were added.
    #[must_use]
    pub fn images(&self) -> &[Image] {
        &self.images
    }

    /// RAM and images as one memory, for devices: a guest may let a device read from an image what it could read itself.
    /// What it lets a device write there only this process sees.
    #[must_use]
    pub fn whole(&self) -> &GuestMemoryMmap {
        &self.whole
    }

    /// RAM alone, as loaders use it.
    #[must_use]
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// How much RAM there is.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.iter().map(GuestMemoryRegion::len).sum()
    }

    /// Puts another file of the same size behind the same addresses. The guest and all workers must be paused.
    ///
    /// # Errors
    /// [`Error::MemorySize`] when the file has another size, [`Error::MapMemory`] with what `mmap` says. After an error of
    /// the second region the first is already replaced: the guest must not go on.
    pub fn replace(&self, file: &File, mapping: Mapping) -> Result<()> {
        if file.metadata().map_err(Error::MapMemory)?.len() != self.bytes() {
            return Err(Error::MemorySize(self.bytes(), "it is not the size of the file"));
        }
        let mut offset = 0;
        for region in self.memory.iter() {
            replace_mapping(region, file.as_fd(), offset, mapping).map_err(|errno| Error::MapMemory(errno.into()))?;
            prefer_huge_pages(region);
            offset += region.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
