//! The guest's RAM as a whole: saved to a file, replaced by one, and held so that it can go back to what it was.

use crate::page_map;
use crate::service::Status;
use crate::sparse;
use fluxvm_engine::error::Error;
use fluxvm_engine::memory::{GuestRam, Mapping};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use vm_memory::{Bytes, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

const PIECE_BYTES: u64 = 1 << 20;

/// Where the RAM is.
enum Place {
    /// In its file: what the guest writes goes there.
    Home,
    /// In this process, over its file, which stays as it is.
    Held,
    /// In this process, over this file of a snapshot; its own file has nothing.
    Over(File),
}

/// See the head of this file.
pub(crate) struct Memory {
    home: File,
    place: Place,
    page_map: Option<File>,
}

impl Memory {
    /// RAM that is mapped shared from its file. Without a page map all pages count as written.
    pub(crate) fn new(home: File, page_map: Option<File>) -> Self {
        Self { home, place: Place::Home, page_map }
    }

    /// How the RAM is mapped.
    pub(crate) fn mapping(&self) -> Mapping {
        if matches!(self.place, Place::Home) { Mapping::Shared } else { Mapping::Private }
    }

    /// Writes the RAM of a machine at rest to an empty file.
    ///
    /// # Errors
    /// What the host says; `Interrupted` when the machine is to end.
    pub(crate) fn save(&self, ram: &GuestRam, target: &File, status: &Status) -> io::Result<()> {
        target.set_len(ram.bytes())?;
        let below = match &self.place {
            // Not through the mapping: reading a hole there would fill it.
            Place::Home | Place::Held => &self.home,
            Place::Over(file) => file,
        };
        sparse::copy_data(below, target, status)?;
        self.write_own(ram, target, status)
    }

    /// Puts a file in place of the RAM of a machine at rest. The file is only read: what the guest writes stays with this
    /// process.
    ///
    /// # Errors
    /// What the host or the engine says; the guest must not go on then.
    pub(crate) fn replace(&mut self, ram: &GuestRam, file: &File) -> Result<(), Error> {
        let kept = file.try_clone().map_err(Error::MapMemory)?;
        ram.replace(file, Mapping::Private)?;
        self.place = Place::Over(kept);
        // Nothing leads to it any more. A host that cannot free it keeps it until the end.
        let _ = empty(&self.home, ram.bytes());
        Ok(())
    }

    /// From now on, what the guest writes stays with this process, and its file is what the RAM of the machine at rest was.
    ///
    /// # Errors
    /// [`HoldError::Before`] when all is as it was; after [`HoldError::Half`] the guest must not go on.
    pub(crate) fn hold(&mut self, ram: &GuestRam, status: &Status) -> Result<(), HoldError> {
        if let Place::Over(file) = &self.place {
            let brought = empty(&self.home, ram.bytes())
                .and_then(|()| sparse::copy_data(file, &self.home, status))
                .and_then(|()| self.write_own(ram, &self.home, status));
            brought.map_err(HoldError::Before)?;
        }
        ram.replace(&self.home, Mapping::Private).map_err(HoldError::Half)?;
        self.place = Place::Held;
        Ok(())
    }

    /// Puts the RAM of a machine at rest back to what it was when it was held.
    ///
    /// # Errors
    /// What the engine says; the guest must not go on then.
    pub(crate) fn release(&mut self, ram: &GuestRam) -> Result<(), Error> {
        ram.replace(&self.home, Mapping::Shared)?;
        self.place = Place::Home;
        Ok(())
    }

    /// Brings what the guest has written since its RAM was held into its file, while the machine is at rest. The RAM is still
    /// held then.
    ///
    /// # Errors
    /// What the host says; the file is then neither as it was nor as the RAM is.
    pub(crate) fn settle(&self, ram: &GuestRam, status: &Status) -> io::Result<()> {
        self.write_own(ram, &self.home, status)
    }

    /// Writes the pages that are this process's own.
    fn write_own(&self, ram: &GuestRam, target: &File, status: &Status) -> io::Result<()> {
        if matches!(self.place, Place::Home) {
            return Ok(());
        }
        let own = match &self.page_map {
            Some(map) => page_map::written(ram, map)?,
            None => std::iter::once(0..ram.bytes()).collect(),
        };
        own.into_iter().try_for_each(|run| write_run(ram, run, target, status))
    }
}

/// Why RAM is not held.
pub(crate) enum HoldError {
    /// Nothing has changed.
    Before(io::Error),
    /// A part of it is mapped in another way.
    Half(Error),
}

fn write_run(ram: &GuestRam, run: Range<u64>, target: &File, status: &Status) -> io::Result<()> {
    let mut region_offset = 0;
    for region in ram.memory().iter() {
        let here = run.start.max(region_offset)..run.end.min(region_offset + region.len());
        for piece in sparse::pieces(here, PIECE_BYTES) {
            status.go_on()?;
            let mut bytes = vec![0; (piece.end - piece.start) as usize];
            region
                .read_slice(&mut bytes, MemoryRegionAddress(piece.start - region_offset))
                .map_err(io::Error::other)?;
            target.write_all_at(&bytes, piece.start)?;
        }
        region_offset += region.len();
    }
    Ok(())
}

/// Makes a file all holes.
fn empty(file: &File, bytes: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::GuestAddress;

    const BYTES: u64 = 5 << 30;
    const HOLE_START: u64 = 3 << 30;
    /// The last byte before the hole for devices, the first one behind it, and the last one of all: in the guest, and in a file.
    const ADDRESSES: [u64; 3] = [HOLE_START - 1, 4 << 30, (6 << 30) - 1];
    const OFFSETS: [u64; 3] = [HOLE_START - 1, HOLE_START, BYTES - 1];

    fn sparse_file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        file
    }

    fn in_file(file: &File) -> [u8; 3] {
        OFFSETS.map(|offset| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).unwrap();
            byte[0]
        })
    }

    fn write(ram: &GuestRam, letters: [u8; 3]) {
        for (address, letter) in ADDRESSES.into_iter().zip(letters) {
            ram.memory().write_obj(letter, GuestAddress(address)).unwrap();
        }
    }

    fn read(ram: &GuestRam) -> [u8; 3] {
        ADDRESSES.map(|address| ram.memory().read_obj(GuestAddress(address)).unwrap())
    }

    #[test]
    fn ram_on_both_sides_of_the_hole_is_saved_taken_back_and_kept() {
        let home = sparse_file();
        let ram = GuestRam::new(home.try_clone().unwrap(), BYTES, Mapping::Shared).unwrap();
        let page_map = File::open("/proc/self/pagemap").unwrap();
        let mut memory = Memory::new(home.try_clone().unwrap(), Some(page_map));
        let status = Status::new();
        write(&ram, *b"abc");
        assert!(memory.hold(&ram, &status).is_ok());
        write(&ram, *b"def");
        assert_eq!(in_file(&home), *b"abc", "held");
        let saved = sparse_file();
        memory.save(&ram, &saved, &status).unwrap();
        assert_eq!(in_file(&saved), *b"def");
        memory.release(&ram).unwrap();
        assert_eq!(read(&ram), *b"abc", "taken back");

        assert!(memory.hold(&ram, &status).is_ok());
        write(&ram, *b"ghi");
        memory.settle(&ram, &status).unwrap();
        memory.release(&ram).unwrap();
        assert_eq!((in_file(&home), read(&ram)), (*b"ghi", *b"ghi"), "kept");

        // On a snapshot, and back in its own file.
        memory.replace(&ram, &saved).unwrap();
        assert_eq!((in_file(&home), read(&ram)), ([0; 3], *b"def"));
        write(&ram, *b"jkl");
        assert!(memory.hold(&ram, &status).is_ok());
        assert_eq!((in_file(&home), in_file(&saved), read(&ram)), (*b"jkl", *b"def", *b"jkl"));
    }
}
