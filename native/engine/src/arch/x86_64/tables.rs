//! What a kernel looks for to learn about processors, interrupt controllers and devices.

use super::layout::VirtioSlot;
use super::{acpi, mp_table};
use crate::error::Result;
use vm_memory::GuestMemoryMmap;

/// Writes ACPI tables and the older multi-processor table.
///
/// # Errors
/// [`crate::error::Error::NoRoom`] when RAM or the room for tables is too small.
pub fn write_tables(memory: &GuestMemoryMmap, vcpus: u8, devices: &[VirtioSlot]) -> Result<()> {
    acpi::write(memory, vcpus, devices)?;
    mp_table::write(memory, vcpus)
}
