//! The start information of the PVH boot protocol.

use super::{Initrd, ram_bytes};
use crate::arch::layout::{ACPI_RSDP, COMMAND_LINE, PVH_MEMORY_MAP, PVH_MODULES, PVH_START_INFO, memory_map};
use crate::error::{Error, Result};
use linux_loader::loader::elf::start_info::{
    XEN_HVM_START_MAGIC_VALUE, hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The version with a memory map.
const VERSION: u32 = 1;

/// Writes start information, module list and memory map.
pub(super) fn write(memory: &GuestMemoryMmap, initrd: Option<Initrd>) -> Result<()> {
    let map = memory_map(ram_bytes(memory))?;
    let mut start = hvm_start_info {
        magic: XEN_HVM_START_MAGIC_VALUE,
        version: VERSION,
        cmdline_paddr: COMMAND_LINE.0,
        rsdp_paddr: ACPI_RSDP.0,
        memmap_paddr: PVH_MEMORY_MAP.0,
        memmap_entries: map.len() as u32,
        ..hvm_start_info::default()
    };
    if let Some(initrd) = initrd {
        (start.nr_modules, start.modlist_paddr) = (1, PVH_MODULES.0);
        let module = hvm_modlist_entry { paddr: initrd.address, size: initrd.bytes, ..hvm_modlist_entry::default() };
        memory.write_obj(module, PVH_MODULES).map_err(no_room)?;
    }
    memory.write_obj(start, PVH_START_INFO).map_err(no_room)?;
    let mut address = PVH_MEMORY_MAP.0;
    for range in map {
        let entry =
            hvm_memmap_table_entry { addr: range.start, size: range.bytes, type_: range.kind as u32, reserved: 0 };
        memory.write_obj(entry, GuestAddress(address)).map_err(no_room)?;
        address += size_of::<hvm_memmap_table_entry>() as u64;
    }
    Ok(())
}

fn no_room(_: vm_memory::GuestMemoryError) -> Error {
    Error::NoRoom("the start information")
}
