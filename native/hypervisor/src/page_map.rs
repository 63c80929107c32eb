//! Which pages of a private mapping this process has written: those that are its own and no longer the file's.

use fluxvm_engine::memory::GuestRam;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

const PAGE_BYTES: u64 = 4096;
/// Each page has an entry of so many bytes.
const ENTRY_BYTES: u64 = 8;
/// Entries that are read at once.
const ENTRIES: u64 = 8192;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// A page of a file, or of memory that is shared.
const OF_FILE: u64 = 1 << 61;

/// The parts of RAM that is mapped privately which have been written, as offsets in its file, in order.
///
/// # Errors
/// What reading says.
pub(crate) fn written(ram: &GuestRam, page_map: &File) -> io::Result<Vec<Range<u64>>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut region_offset = 0;
    for region in ram.memory().iter() {
        let address = region.get_host_address(MemoryRegionAddress(0)).map_err(io::Error::other)?.addr() as u64;
        let pages = region.len() / PAGE_BYTES;
        for first in (0..pages).step_by(ENTRIES as usize) {
            let mut entries = vec![0; (ENTRIES.min(pages - first) * ENTRY_BYTES) as usize];
            page_map.read_exact_at(&mut entries, (address / PAGE_BYTES + first) * ENTRY_BYTES)?;
            for (page, entry) in (first..).zip(entries.as_chunks().0) {
                if is_own(u64::from_ne_bytes(*entry)) {
                    add_page(&mut runs, region_offset + page * PAGE_BYTES);
                }
            }
        }
        region_offset += region.len();
    }
    Ok(runs)
}

fn is_own(entry: u64) -> bool {
    entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0
}

fn add_page(runs: &mut Vec<Range<u64>>, offset: u64) {
    match runs.last_mut() {
        Some(last) if last.end == offset => last.end += PAGE_BYTES,
        _ => runs.push(offset..offset + PAGE_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fluxvm_engine::memory::Mapping;
    use vm_memory::{Bytes, GuestAddress};

    #[test]
    fn pages_that_were_written_are_found_and_no_others() {
        const BYTES: u64 = 32 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        let ram = GuestRam::new(file, BYTES, Mapping::Private).unwrap();
        let page_map = File::open("/proc/self/pagemap").unwrap();
        assert_eq!(written(&ram, &page_map).unwrap(), []);
        let memory = ram.memory();
        assert_eq!(memory.read_obj::<u8>(GuestAddress(5)).unwrap(), 1, "a page that was only read");
        for address in [0x5000, 0x6FFF, BYTES - 1] {
            memory.write_obj(7u8, GuestAddress(address)).unwrap();
        }
        assert_eq!(written(&ram, &page_map).unwrap(), [0x5000..0x7000, BYTES - 4096..BYTES]);
    }

    #[test]
    fn pages_beyond_the_hole_for_devices_are_those_behind_it_in_the_file() {
        const BYTES: u64 = 5 << 30;
        const HOLE_START: u64 = 3 << 30;
        const ABOVE: u64 = 4 << 30;
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        let ram = GuestRam::new(file, BYTES, Mapping::Private).unwrap();
        for address in [HOLE_START - 1, ABOVE, ABOVE + (2 << 30) - 1] {
            ram.memory().write_obj(7u8, GuestAddress(address)).unwrap();
        }
        let page_map = File::open("/proc/self/pagemap").unwrap();
        assert_eq!(written(&ram, &page_map).unwrap(), [HOLE_START - 4096..HOLE_START + 4096, BYTES - 4096..BYTES]);
    }
}
