//! Where everything lies in the guest: RAM around the hole for devices, what the loader writes below 1 MiB, device registers
//! and interrupt lines.

use crate::error::{Error, Result};
use vm_memory::GuestAddress;

const PAGE_BYTES: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// More than that no machine has.
pub const VCPUS_MAX: u32 = 32;

/// RAM below this is contiguous; device registers follow.
pub const HOLE_START: u64 = 3 * GIB;
/// RAM goes on here.
pub const HOLE_END: u64 = 4 * GIB;

/// With less RAM a kernel does not get as far as to complain.
const RAM_BYTES_MIN: u64 = 16 * MIB;
/// 1 TiB: 40 address bits, which every processor with KVM has.
const RAM_BYTES_MAX: u64 = 1 << 40;

/// Descriptor table for the 64-bit entry.
pub const GDT: GuestAddress = GuestAddress(0x500);
/// PVH start information; the module list and the memory map follow it.
pub const PVH_START_INFO: GuestAddress = GuestAddress(0x6000);
/// PVH list of modules.
pub const PVH_MODULES: GuestAddress = GuestAddress(0x6040);
/// PVH memory map.
pub const PVH_MEMORY_MAP: GuestAddress = GuestAddress(0x6100);
/// Zero page of the Linux boot protocol.
pub const ZERO_PAGE: GuestAddress = GuestAddress(0x7000);
/// Page tables for the 64-bit entry: six pages.
pub const PAGE_TABLES: GuestAddress = GuestAddress(0x9000);
/// Kernel command line.
pub const COMMAND_LINE: GuestAddress = GuestAddress(0x2_0000);
/// Room for the command line with its final zero: the limit of x86 Linux.
pub const COMMAND_LINE_BYTES: usize = 2048;
/// Below this lies ordinary RAM; then the tables for the operating system.
pub const LOW_RAM_END: u64 = 0x9_FC00;
/// Multi-processor table: the first place where a kernel looks.
pub const MP_TABLE: GuestAddress = GuestAddress(LOW_RAM_END);
/// ACPI root pointer: within the range that kernels search.
pub const ACPI_RSDP: GuestAddress = GuestAddress(0xE_0000);
/// End of the room for ACPI tables.
pub const ACPI_END: u64 = GENERATION.0;
/// The generation of the machine, in a page of its own that no kernel uses as RAM.
pub const GENERATION: GuestAddress = GuestAddress(0xF_F000);
/// High memory, where kernels are loaded.
pub const HIGH_RAM: GuestAddress = GuestAddress(MIB);

/// Registers of the first virtio device.
pub const VIRTIO_MMIO: u64 = 0xFEB0_0000;
/// Registers of one virtio device; the next one's follow.
pub const VIRTIO_MMIO_BYTES: u64 = 0x1000;
/// Interrupt controller for devices.
pub const IOAPIC: u32 = 0xFEC0_0000;
/// Interrupt controller of each vCPU.
pub const LAPIC: u32 = 0xFEE0_0000;
/// One page that older Intel processors need for their first instructions.
pub const KVM_IDENTITY_MAP: u64 = 0xFFFB_C000;
/// Three pages that they need for real mode.
pub const KVM_TSS: usize = 0xFFFB_D000;

/// Interrupt line of the first serial port.
pub const SERIAL_GSI: u32 = 4;
/// Interrupt line of general ACPI events: that of a second serial port, which there is not.
pub const EVENT_GSI: u32 = 3;
/// Interrupt line of fixed ACPI events, such as the power button.
pub const SCI_GSI: u32 = 9;
/// Lines for virtio devices: what the ISA devices of a PC leave free.
const VIRTIO_GSIS: [u32; 15] = [5, 6, 7, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23];
/// That many virtio devices fit.
pub const VIRTIO_SLOTS: usize = VIRTIO_GSIS.len();

/// Ports of the first serial port.
pub const SERIAL_PORT: u64 = 0x3F8;
/// Command and status port of the keyboard controller, which can reset the machine.
pub const KEYBOARD_PORT: u64 = 0x60;
/// What a guest writes to port `KEYBOARD_PORT + 4` to reset the machine.
pub const KEYBOARD_RESET: u8 = 0xFE;
/// Index and data port of the real-time clock.
pub const RTC_PORT: u64 = 0x70;
/// ACPI events (status, enable) and after them control.
pub const ACPI_PORT: u64 = 0x600;

/// Where a virtio device lies: registers and interrupt line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioSlot {
    /// Guest address of its registers.
    pub address: u64,
    /// Its interrupt line.
    pub gsi: u32,
}

/// The place of virtio device number `index`.
///
/// # Errors
/// [`Error::TooManyDevices`] when there is none.
pub fn virtio_slot(index: usize) -> Result<VirtioSlot> {
    let gsi = *VIRTIO_GSIS.get(index).ok_or(Error::TooManyDevices)?;
    Ok(VirtioSlot { address: VIRTIO_MMIO + index as u64 * VIRTIO_MMIO_BYTES, gsi })
}

/// What a kernel is told whose caller says nothing: to print to the first serial port, to reset by the keyboard controller,
/// to reset after a panic, and to mount the first disk.
pub const DEFAULT_COMMAND_LINE: &str = "console=ttyS0 reboot=k panic=1 root=/dev/vda rw";

/// The command line, which names the virtio devices only where the kernel will not read the ACPI tables that do.
#[must_use]
pub fn command_line(given: &str, devices: &[VirtioSlot]) -> String {
    let mut line = given.to_owned();
    if given.split(' ').any(|word| word == "acpi=off") {
        for VirtioSlot { address, gsi } in devices {
            line.push_str(&format!(" virtio_mmio.device={VIRTIO_MMIO_BYTES:#x}@{address:#x}:{gsi}"));
        }
    }
    line
}

/// Where RAM of so many bytes lies: start and length of each region.
///
/// # Errors
/// [`Error::MemorySize`] when it is no whole number of pages, too small or too large.
pub fn ram_regions(bytes: u64) -> Result<Vec<(GuestAddress, u64)>> {
    if !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(Error::MemorySize(bytes, "it is no whole number of pages"));
    }
    if !(RAM_BYTES_MIN..=RAM_BYTES_MAX).contains(&bytes) {
        return Err(Error::MemorySize(bytes, "it is less than 16 MiB or more than 1 TiB"));
    }
    let below = bytes.min(HOLE_START);
    let mut regions = vec![(GuestAddress(0), below)];
    if bytes > below {
        regions.push((GuestAddress(HOLE_END), bytes - below));
    }
    Ok(regions)
}

/// Images begin and end at such addresses: the large pages of the processor, which Linux maps them in.
pub const IMAGE_ALIGNMENT_BYTES: u64 = 2 * MIB;
/// What Linux adds to its memory at once.
const IMAGE_PLACE_BYTES: u64 = 128 * MIB;

/// The first place for an image above everything that ends there, RAM or another image.
#[must_use]
pub fn image_start(end: u64) -> u64 {
    end.max(HOLE_END).next_multiple_of(IMAGE_PLACE_BYTES)
}

/// What a range of the memory map is to the guest's kernel; the numbers are those of e820 and of PVH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeKind {
    /// RAM to use as it likes.
    Ram = 1,
    /// Nothing to touch unasked.
    Reserved = 2,
}

/// A range of the memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// First guest address.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What it is.
    pub kind: RangeKind,
}

/// The memory map for RAM of so many bytes.
///
/// # Errors
/// As [`ram_regions`].
pub fn memory_map(bytes: u64) -> Result<Vec<MemoryRange>> {
    let mut map = vec![
        MemoryRange { start: 0, bytes: LOW_RAM_END, kind: RangeKind::Ram },
        MemoryRange { start: LOW_RAM_END, bytes: HIGH_RAM.0 - LOW_RAM_END, kind: RangeKind::Reserved },
    ];
    for (start, length) in ram_regions(bytes)? {
        let start = start.0.max(HIGH_RAM.0);
        let length = if start == HIGH_RAM.0 { length - HIGH_RAM.0 } else { length };
        map.push(MemoryRange { start, bytes: length, kind: RangeKind::Ram });
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_map_covers_all_ram_and_nothing_of_the_hole() {
        for bytes in [128 * MIB, 3 * GIB, 3 * GIB + PAGE_BYTES, 8 * GIB] {
            let map = memory_map(bytes).unwrap();
            let mapped: u64 = map.iter().map(|range| range.bytes).sum();
            assert_eq!(mapped, bytes);
            assert!(map.iter().all(|range| range.start + range.bytes <= HOLE_START || range.start >= HOLE_END));
            assert!(map.windows(2).all(|pair| pair[0].start + pair[0].bytes <= pair[1].start));
        }
    }

    #[test]
    fn the_command_line_names_devices_only_without_acpi() {
        let slots = [virtio_slot(0).unwrap(), virtio_slot(1).unwrap()];
        assert_eq!(command_line("quiet noacpi=off", &slots), "quiet noacpi=off");
        let named = "acpi=off a virtio_mmio.device=0x1000@0xfeb00000:5 virtio_mmio.device=0x1000@0xfeb01000:6";
        assert_eq!(command_line("acpi=off a", &slots), named);
    }

    #[test]
    fn no_two_devices_share_a_line_or_registers() {
        let slots: Vec<_> = (0..VIRTIO_SLOTS).map(|index| virtio_slot(index).unwrap()).collect();
        for (index, slot) in slots.iter().enumerate() {
            assert!(slot.address + VIRTIO_MMIO_BYTES <= u64::from(IOAPIC));
            assert!(![0, 1, 2, EVENT_GSI, SERIAL_GSI, 8, SCI_GSI].contains(&slot.gsi));
            assert!(slots[index + 1..].iter().all(|other| other.gsi != slot.gsi && other.address != slot.address));
        }
        assert!(matches!(virtio_slot(VIRTIO_SLOTS), Err(Error::TooManyDevices)));
    }
}
