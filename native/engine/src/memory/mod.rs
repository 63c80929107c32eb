//! Guest RAM: a file handed in as a descriptor, mapped in one region below the hole for devices and one above it. The mapping
//! can be replaced in place while the guest is paused, without the memory slots noticing.

use crate::arch::layout;
use crate::error::{Error, Result};
pub use fluxvm_sys::guest_vm::Mapping;
use fluxvm_sys::guest_vm::replace_mapping;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

/// Guest RAM and the file behind it.
#[derive(Clone)]
pub struct GuestRam {
    memory: GuestMemoryMmap,
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
            regions.push(GuestRegionMmap::new(region, start).ok_or(Error::MemorySize(bytes, "it is too large"))?);
            offset += length;
        }
        let memory =
            GuestMemoryMmap::from_regions(regions).map_err(|error| Error::MapMemory(std::io::Error::other(error)))?;
        Ok(Self { memory })
    }

    /// The memory, as devices and loaders use it.
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
            offset += region.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
