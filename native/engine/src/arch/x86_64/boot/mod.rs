//! Loads a Linux kernel straight into guest RAM: an ELF image through its PVH entry, a bzImage through the 64-bit entry of
//! the Linux boot protocol. No firmware runs.

mod linux;
mod pvh;

use super::layout::{COMMAND_LINE, COMMAND_LINE_BYTES, HIGH_RAM, HOLE_START};
use crate::error::{Error, Result};
use linux_loader::loader::elf::{Elf, PvhBootCapability};
use linux_loader::loader::{KernelLoader, bzimage::BzImage};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const PAGE_BYTES: u64 = 4096;

/// What to boot.
#[derive(Debug)]
pub struct BootSource<'a> {
    /// An ELF kernel with a PVH entry, or a bzImage.
    pub kernel: &'a mut File,
    /// The initial RAM disk.
    pub initrd: Option<&'a mut File>,
    /// The command line, as the kernel is to see it.
    pub command_line: &'a str,
}

/// How the first vCPU enters the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// 32-bit protected mode without paging.
    Pvh {
        /// Address of the first instruction.
        address: u64,
    },
    /// 64-bit mode.
    Linux {
        /// Address of the first instruction.
        address: u64,
    },
}

/// Where the initial RAM disk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Initrd {
    address: u64,
    bytes: u64,
}

/// Puts everything that a kernel needs for its start into RAM.
///
/// # Errors
/// [`Error::Kernel`], [`Error::LoadKernel`], [`Error::LoadInitrd`], [`Error::CommandLine`] or [`Error::NoRoom`]; RAM then has
/// something of it and must not be run.
pub fn load(memory: &GuestMemoryMmap, source: BootSource<'_>) -> Result<Entry> {
    let BootSource { kernel, initrd, command_line } = source;
    write_command_line(memory, command_line)?;
    if is_elf(kernel)? {
        let loaded =
            Elf::load(memory, None, kernel, Some(HIGH_RAM)).map_err(|error| Error::LoadKernel(error.into()))?;
        let PvhBootCapability::PvhEntryPresent(entry) = loaded.pvh_boot_cap else {
            return Err(Error::Kernel("it has no PVH entry, which the option CONFIG_PVH gives"));
        };
        let initrd =
            initrd.map(|file| load_initrd(memory, file, loaded.kernel_end, u64::from(u32::MAX))).transpose()?;
        pvh::write(memory, initrd)?;
        return Ok(Entry::Pvh { address: within(memory, entry)? });
    }
    let loaded =
        BzImage::load(memory, None, kernel, Some(HIGH_RAM)).map_err(|error| Error::LoadKernel(error.into()))?;
    let header = loaded.setup_header.ok_or(Error::Kernel("it has no set-up header"))?;
    linux::check(&header)?;
    let room = linux::kernel_end(&header, loaded.kernel_end);
    let limit = u64::from(header.initrd_addr_max);
    let initrd = initrd.map(|file| load_initrd(memory, file, room, limit)).transpose()?;
    linux::write(memory, header, initrd)?;
    let entry = loaded.kernel_load.unchecked_add(linux::ENTRY_OFFSET);
    Ok(Entry::Linux { address: within(memory, entry)? })
}

/// An image may name any entry, and one without code is loaded anywhere.
fn within(memory: &GuestMemoryMmap, entry: GuestAddress) -> Result<u64> {
    let is_there = memory.address_in_range(entry);
    is_there.then_some(entry.0).ok_or(Error::Kernel("its entry does not lie in the memory of the machine"))
}

fn is_elf(kernel: &mut File) -> Result<bool> {
    let mut magic = [0; ELF_MAGIC.len()];
    kernel.rewind().map_err(|error| Error::LoadKernel(error.into()))?;
    match kernel.read_exact(&mut magic) {
        Ok(()) => Ok(magic == ELF_MAGIC),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(Error::Kernel("it is empty")),
        Err(error) => Err(Error::LoadKernel(error.into())),
    }
}

fn write_command_line(memory: &GuestMemoryMmap, text: &str) -> Result<()> {
    if text.len() >= COMMAND_LINE_BYTES {
        return Err(Error::CommandLine("is longer than 2047 bytes"));
    }
    if text.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        return Err(Error::CommandLine("has characters that are not printable ASCII"));
    }
    let bytes = [text.as_bytes(), &[0]].concat();
    memory.write_slice(&bytes, COMMAND_LINE).map_err(|_| Error::NoRoom("the kernel command line"))
}

/// Loads the RAM disk as high as possible, so that the kernel has room to unpack itself: below the hole and below `limit`.
fn load_initrd(memory: &GuestMemoryMmap, file: &mut File, kernel_end: u64, limit: u64) -> Result<Initrd> {
    let bytes = file.seek(SeekFrom::End(0)).map_err(Error::LoadInitrd)?;
    file.rewind().map_err(Error::LoadInitrd)?;
    let low_ram = memory.iter().next().map_or(0, vm_memory::GuestMemoryRegion::len);
    let top = low_ram.min(HOLE_START).min(limit.saturating_add(1));
    let address = top.checked_sub(bytes).map(|address| address & !(PAGE_BYTES - 1));
    let address = address.filter(|address| *address >= kernel_end).ok_or(Error::NoRoom("the initial RAM disk"))?;
    let count = usize::try_from(bytes).map_err(|_| Error::NoRoom("the initial RAM disk"))?;
    memory
        .read_exact_volatile_from(GuestAddress(address), file, count)
        .map_err(|error| Error::LoadInitrd(std::io::Error::other(error)))?;
    Ok(Initrd { address, bytes })
}

/// RAM that the memory map is about.
fn ram_bytes(memory: &GuestMemoryMmap) -> u64 {
    memory.iter().map(vm_memory::GuestMemoryRegion::len).sum()
}

#[cfg(test)]
mod tests;
