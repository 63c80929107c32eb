//! The zero page of the Linux boot protocol, and the page tables that its 64-bit entry wants: the first 4 GiB, one to one.

use super::{Initrd, ram_bytes};
use crate::arch::layout::{ACPI_RSDP, COMMAND_LINE, COMMAND_LINE_BYTES, PAGE_TABLES, ZERO_PAGE, memory_map};
use crate::error::{Error, Result};
use linux_loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The 64-bit entry from the start of the loaded image.
pub(super) const ENTRY_OFFSET: u64 = 0x200;
/// The protocol that has `xloadflags` and `init_size`.
const PROTOCOL_MIN: u16 = 0x020C;
const HAS_64_BIT_ENTRY: u16 = 1;
/// A boot loader without a number of its own.
const LOADER_UNDEFINED: u8 = 0xFF;

const PAGE_BYTES: u64 = 4096;
const LARGE_PAGE_BYTES: u64 = 2 << 20;
const ENTRIES: u64 = 512;
const GIB_MAPPED: u64 = 4;
const PRESENT_WRITABLE: u64 = 3;
const LARGE: u64 = 1 << 7;

/// Whether a kernel with this header can be started in 64-bit mode.
pub(super) fn check(header: &setup_header) -> Result<()> {
    if header.version < PROTOCOL_MIN || header.xloadflags & HAS_64_BIT_ENTRY == 0 {
        return Err(Error::Kernel("it is older than Linux 3.8 or has no 64-bit entry"));
    }
    Ok(())
}

/// The first address that the kernel does not need to unpack itself. It moves to its preferred address first.
pub(super) fn kernel_end(header: &setup_header, image_end: u64) -> u64 {
    image_end.max(header.pref_address.saturating_add(u64::from(header.init_size)))
}

/// Writes zero page and page tables.
pub(super) fn write(memory: &GuestMemoryMmap, mut header: setup_header, initrd: Option<Initrd>) -> Result<()> {
    header.type_of_loader = LOADER_UNDEFINED;
    header.cmd_line_ptr = COMMAND_LINE.0 as u32;
    header.cmdline_size = COMMAND_LINE_BYTES as u32;
    if let Some(initrd) = initrd {
        header.ramdisk_image = initrd.address as u32;
        header.ramdisk_size = initrd.bytes as u32;
    }
    let map = memory_map(ram_bytes(memory))?;
    let mut zero_page = boot_params { hdr: header, acpi_rsdp_addr: ACPI_RSDP.0, ..boot_params::default() };
    zero_page.e820_entries = map.len() as u8;
    for (entry, range) in zero_page.e820_table.iter_mut().zip(map) {
        *entry = boot_e820_entry { addr: range.start, size: range.bytes, r#type: range.kind as u32 };
    }
    memory.write_obj(zero_page, ZERO_PAGE).map_err(no_room)?;
    write_page_tables(memory)
}

fn write_page_tables(memory: &GuestMemoryMmap) -> Result<()> {
    let (top, pointers) = (PAGE_TABLES.0, PAGE_TABLES.0 + PAGE_BYTES);
    let directories = pointers + PAGE_BYTES;
    let write = |value: u64, address: u64| memory.write_obj(value, GuestAddress(address)).map_err(no_room);
    write(pointers | PRESENT_WRITABLE, top)?;
    for gib in 0..GIB_MAPPED {
        write((directories + gib * PAGE_BYTES) | PRESENT_WRITABLE, pointers + gib * 8)?;
    }
    for page in 0..GIB_MAPPED * ENTRIES {
        write((page * LARGE_PAGE_BYTES) | PRESENT_WRITABLE | LARGE, directories + page * 8)?;
    }
    Ok(())
}

fn no_room(_: vm_memory::GuestMemoryError) -> Error {
    Error::NoRoom("the zero page")
}
