//! Kernels made of a few bytes, loaded as a stock one would be.

use super::super::layout::{COMMAND_LINE, PVH_MEMORY_MAP, PVH_MODULES, PVH_START_INFO, ZERO_PAGE};
use super::*;
use linux_loader::bootparam::boot_params;
use linux_loader::loader::elf::start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info};
use std::io::Write;

const MIB: u64 = 1 << 20;
const LOAD: u64 = 0x10_0000;
const PVH_ENTRY: u32 = 0x10_0010;

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 20), (GuestAddress(4 << 30), 4096)]).unwrap()
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// An ELF image with one segment, and a note for the PVH entry or not.
fn elf(with_entry: bool) -> Vec<u8> {
    const HEADER: usize = 64;
    const PROGRAM_HEADER: usize = 56;
    let code_offset = (HEADER + 2 * PROGRAM_HEADER) as u64;
    let code = [0x90u8; 32];
    let note_offset = code_offset + code.len() as u64;
    let mut image = Vec::new();
    image.extend_from_slice(&[0x7F, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    image.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [LOAD, HEADER as u64, 0] {
        image.extend_from_slice(&word.to_le_bytes());
    }
    image.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
    let note_bytes = 12 + 4 + 8;
    let kind = if with_entry { 18u32 } else { 1 };
    for (kind, offset, address, bytes) in [(1u32, code_offset, LOAD, 32u64), (4, note_offset, 0, note_bytes)] {
        image.extend_from_slice(&kind.to_le_bytes());
        image.extend_from_slice(&7u32.to_le_bytes());
        for word in [offset, address, address, bytes, bytes, 4] {
            image.extend_from_slice(&word.to_le_bytes());
        }
    }
    image.extend_from_slice(&code);
    for word in [4u32, 8, kind] {
        image.extend_from_slice(&word.to_le_bytes());
    }
    image.extend_from_slice(b"Xen\0");
    image.extend_from_slice(&u64::from(PVH_ENTRY).to_le_bytes());
    image
}

/// A bzImage with one sector of set-up and so many bytes of kernel.
fn bz_image(version: u16, flags: u16) -> Vec<u8> {
    let mut image = vec![0; 2 * 512 + 4096];
    image[0x1F1] = 1;
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x206..0x208].copy_from_slice(&version.to_le_bytes());
    image[0x211] = 1;
    image[0x214..0x218].copy_from_slice(&(LOAD as u32).to_le_bytes());
    image[0x22C..0x230].copy_from_slice(&0x7FFF_FFFFu32.to_le_bytes());
    image[0x236..0x238].copy_from_slice(&flags.to_le_bytes());
    image[0x258..0x260].copy_from_slice(&(16 * MIB).to_le_bytes());
    image[0x260..0x264].copy_from_slice(&(8u32 << 20).to_le_bytes());
    image[2 * 512 + 0x200] = 0xF4;
    image
}

fn boot(memory: &GuestMemoryMmap, kernel: &[u8], initrd: Option<&[u8]>, command_line: &str) -> Result<Entry> {
    let mut kernel = file(kernel);
    let mut initrd = initrd.map(file);
    load(memory, BootSource { kernel: &mut kernel, initrd: initrd.as_mut(), command_line })
}

#[test]
fn an_elf_kernel_is_entered_by_pvh_and_told_all_that_it_needs() {
    let memory = memory();
    let entry = boot(&memory, &elf(true), Some(&[7; 5000]), "quiet").unwrap();
    assert_eq!(entry, Entry::Pvh { address: u64::from(PVH_ENTRY) });
    assert_eq!(memory.read_obj::<u8>(GuestAddress(LOAD)).unwrap(), 0x90);
    let start: hvm_start_info = memory.read_obj(PVH_START_INFO).unwrap();
    assert_eq!((start.magic, start.version, start.nr_modules), (0x336E_C578, 1, 1));
    assert_eq!((start.cmdline_paddr, start.memmap_paddr), (COMMAND_LINE.0, PVH_MEMORY_MAP.0));
    let module: hvm_modlist_entry = memory.read_obj(PVH_MODULES).unwrap();
    assert_eq!((module.size, module.paddr), (5000, 64 * MIB - 8192));
    assert_eq!(memory.read_obj::<u8>(GuestAddress(module.paddr + 4999)).unwrap(), 7);
    let last = GuestAddress(PVH_MEMORY_MAP.0 + 24 * u64::from(start.memmap_entries - 1));
    let last: hvm_memmap_table_entry = memory.read_obj(last).unwrap();
    assert_eq!((last.addr, last.size, last.type_), (MIB, 63 * MIB + 4096, 1));
    let mut text = [0; 6];
    memory.read_slice(&mut text, COMMAND_LINE).unwrap();
    assert_eq!(&text, b"quiet\0");
}

#[test]
fn a_bz_image_is_entered_in_64_bit_mode_with_its_own_header() {
    let memory = memory();
    let entry = boot(&memory, &bz_image(0x20F, 1), Some(&[9; 100]), "").unwrap();
    assert_eq!(entry, Entry::Linux { address: LOAD + 0x200 });
    assert_eq!(memory.read_obj::<u8>(GuestAddress(LOAD + 0x200)).unwrap(), 0xF4);
    let page: boot_params = memory.read_obj(ZERO_PAGE).unwrap();
    let (header, count) = (page.hdr, page.e820_entries);
    let (disk, bytes, loader) = (header.ramdisk_image, header.ramdisk_size, header.type_of_loader);
    assert_eq!((u64::from(disk), bytes, loader, count), (64 * MIB - 4096, 100, 0xFF, 3));
}

#[test]
fn kernels_that_cannot_be_booted_are_refused() {
    // Entered beyond all memory: the one says so, the other has no code and is loaded there.
    let mut elsewhere = elf(true);
    let entry = elsewhere.len() - 8;
    elsewhere[entry..].copy_from_slice(&0xB400_0000_u64.to_le_bytes());
    let mut nowhere = bz_image(0x20F, 1);
    nowhere.truncate(2 * 512);
    nowhere[0x214..0x218].copy_from_slice(&0xB400_0000_u32.to_le_bytes());
    for (kernel, word) in [
        (elsewhere, "entry does not lie in the memory"),
        (nowhere, "entry does not lie in the memory"),
        (elf(false), "no PVH entry"),
        (bz_image(0x20B, 1), "older than"),
        (bz_image(0x20F, 0), "older than"),
        (vec![], "empty"),
    ] {
        let error = boot(&memory(), &kernel, None, "").unwrap_err();
        assert!(matches!(error, Error::Kernel(_)) && error.to_string().contains(word), "{error}");
    }
    assert!(matches!(boot(&memory(), &[0; 4096], None, ""), Err(Error::LoadKernel(_))));
    assert!(matches!(boot(&memory(), &elf(true)[..100], None, ""), Err(Error::LoadKernel(_))));
}

#[test]
fn command_lines_and_disks_that_do_not_fit_are_refused() {
    for line in ["x".repeat(2048), "a\nb".to_owned(), "\u{e4}".to_owned()] {
        assert!(matches!(boot(&memory(), &elf(true), None, &line), Err(Error::CommandLine(_))));
    }
    let large = vec![0; 64 << 20];
    assert!(matches!(boot(&memory(), &elf(true), Some(&large), ""), Err(Error::NoRoom(_))));
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

#[test]
fn damaged_kernels_are_refused_or_loaded_and_nothing_else_happens() {
    let memory = memory();
    let mut numbers = Numbers(7);
    let interesting = [0, 1, 0x7F, 0x80, 0xFF];
    for round in 0..if std::env::var("FLUXVM_TEST_FULL").is_ok_and(|value| value == "1") { 200_000 } else { 2_000 } {
        let mut kernel = if round % 2 == 0 { elf(true) } else { bz_image(0x20F, 1) };
        for _ in 0..=numbers.below(8) {
            let index = numbers.below(kernel.len().min(0x280));
            kernel[index] = interesting[numbers.below(interesting.len())];
        }
        kernel.truncate(kernel.len().saturating_sub(numbers.below(4) * numbers.below(200)));
        let _ = boot(&memory, &kernel, None, "");
    }
}
