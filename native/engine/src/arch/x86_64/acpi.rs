//! ACPI tables: processors and interrupt controllers (MADT), power registers (FADT), and a DSDT that names every virtio
//! device, which is how distribution kernels find them, and the generation of the machine.

use super::devices::power::SLEEP_TYPE_OFF;
use super::layout::{
    ACPI_END, ACPI_PORT, ACPI_RSDP, EVENT_GSI, GENERATION, IOAPIC, KEYBOARD_PORT, KEYBOARD_RESET, LAPIC, SCI_GSI,
    SERIAL_GSI, SERIAL_PORT, VIRTIO_MMIO_BYTES, VirtioSlot,
};
use crate::error::{Error, Result};
use acpi_tables::aml::{
    Device, EISAName, IO, Interrupt, Memory32Fixed, Method, Name, Notify, ONE, Package, Path, ResourceTemplate, Scope,
    ZERO,
};
use acpi_tables::facs::FACS;
use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const OEM: [u8; 6] = *b"FLUXVM";
const OEM_TABLE: [u8; 8] = *b"FLUXVM  ";
const OEM_REVISION: u32 = 1;
/// Tables start at such addresses; the FACS needs 64.
const ALIGNMENT: u64 = 64;

/// Writes all tables, the root pointer at its fixed place.
///
/// # Errors
/// [`Error::NoRoom`] when they are larger than their room.
pub fn write(memory: &GuestMemoryMmap, vcpus: u8, devices: &[VirtioSlot]) -> Result<()> {
    let mut writer = Writer { memory, next: ACPI_RSDP.0 + ALIGNMENT };
    let facs = writer.write(&FACS::new())?;
    let dsdt = writer.write(&dsdt(devices))?;
    let fadt = writer.write(&fadt(facs, dsdt))?;
    let madt = writer.write(&madt(vcpus))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = writer.write(&xsdt)?;
    let mut root = Bytecode::default();
    Rsdp::new(OEM, xsdt).to_aml_bytes(&mut root);
    memory.write_slice(&root.0, ACPI_RSDP).map_err(|_| Error::NoRoom("the ACPI root pointer"))
}

struct Writer<'a> {
    memory: &'a GuestMemoryMmap,
    next: u64,
}

impl Writer<'_> {
    fn write(&mut self, table: &dyn Aml) -> Result<u64> {
        let mut bytes = Bytecode::default();
        table.to_aml_bytes(&mut bytes);
        let (address, end) = (self.next, self.next + bytes.0.len() as u64);
        if end > ACPI_END {
            return Err(Error::NoRoom("the ACPI description of the machine"));
        }
        let written = self.memory.write_slice(&bytes.0, GuestAddress(address));
        written.map_err(|_| Error::NoRoom("the ACPI description of the machine"))?;
        self.next = end.next_multiple_of(ALIGNMENT);
        Ok(address)
    }
}

#[derive(Default)]
struct Bytecode(Vec<u8>);

impl AmlSink for Bytecode {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }
}

/// Multiple APIC description table, version 5: the vCPUs, and the controller for devices beside two of the old kind.
fn madt(vcpus: u8) -> Sdt {
    const REVISION: u8 = 5;
    const BYTES: u32 = 44;
    const OLD_CONTROLLERS: u32 = 1;
    let mut structures = Bytecode::default();
    for id in 0..vcpus {
        ProcessorLocalApic::new(id, id, EnabledStatus::Enabled).to_aml_bytes(&mut structures);
    }
    IoApic::new(0, IOAPIC, 0).to_aml_bytes(&mut structures);
    structures.vec(&sci_override());
    let mut madt = Sdt::new(*b"APIC", BYTES, REVISION, OEM, OEM_TABLE, OEM_REVISION);
    madt.write_u32(36, LAPIC);
    madt.write_u32(40, OLD_CONTROLLERS);
    madt.append_slice(&structures.0);
    madt
}

/// Interrupt source override: the ACPI interrupt is a level, active high, unlike what ISA interrupts are by default.
fn sci_override() -> [u8; 10] {
    const TYPE: u8 = 2;
    const LENGTH: u8 = 10;
    const ISA_BUS: u8 = 0;
    const LEVEL_ACTIVE_HIGH: u8 = 0b1101;
    [TYPE, LENGTH, ISA_BUS, SCI_GSI as u8, SCI_GSI as u8, 0, 0, 0, LEVEL_ACTIVE_HIGH, 0]
}

/// Fixed ACPI description table, revision 6. Offsets are those of the specification.
fn fadt(facs: u64, dsdt: u64) -> Sdt {
    const REVISION: u8 = 6;
    const BYTES: u32 = 276;
    const SERVER: u8 = 4;
    /// Where the clock keeps the century.
    const RTC_CENTURY: u8 = 0x32;
    /// Too slow to be used: there are no such states.
    const NO_C2_LATENCY: u16 = 101;
    const NO_C3_LATENCY: u16 = 1001;
    /// There are devices on an ISA bus; a keyboard controller, VGA, and ASPM are not to be touched.
    const BOOT_ARCHITECTURE: u16 = 1 | 1 << 2 | 1 << 4;
    /// WBINVD works, sleep button and real-time clock are no fixed events, reset register, 32-bit timer would be.
    const FLAGS: u32 = 1 | 1 << 5 | 1 << 6 | 1 << 10;
    const EVENT_BYTES: u64 = 4;
    const CONTROL_BYTES: u64 = 2;

    let mut fadt = Sdt::new(*b"FACP", BYTES, REVISION, OEM, OEM_TABLE, OEM_REVISION);
    let (event, control) = (ACPI_PORT, ACPI_PORT + EVENT_BYTES);
    fadt.write_u32(36, facs as u32);
    fadt.write_u32(40, dsdt as u32);
    fadt.write_u8(45, SERVER);
    fadt.write_u16(46, SCI_GSI as u16);
    fadt.write_u32(56, event as u32);
    fadt.write_u32(64, control as u32);
    fadt.write_u8(88, EVENT_BYTES as u8);
    fadt.write_u8(89, CONTROL_BYTES as u8);
    fadt.write_u16(96, NO_C2_LATENCY);
    fadt.write_u16(98, NO_C3_LATENCY);
    fadt.write_u8(108, RTC_CENTURY);
    fadt.write_u16(109, BOOT_ARCHITECTURE);
    fadt.write_u32(112, FLAGS);
    fadt.write_bytes(116, &port(KEYBOARD_PORT + 4, 1));
    fadt.write_u8(128, KEYBOARD_RESET);
    fadt.write_u64(140, dsdt);
    fadt.write_bytes(148, &port(event, EVENT_BYTES));
    fadt.write_bytes(172, &port(control, CONTROL_BYTES));
    fadt
}

/// Generic address of ports.
fn port(number: u64, bytes: u64) -> [u8; 12] {
    const SYSTEM_IO: u8 = 1;
    let mut address = [0; 12];
    address[0] = SYSTEM_IO;
    address[1] = 8 * bytes as u8;
    address[3] = bytes as u8;
    address[4..].copy_from_slice(&number.to_le_bytes());
    address
}

fn dsdt(devices: &[VirtioSlot]) -> Sdt {
    const REVISION: u8 = 2;
    const HEADER_BYTES: u32 = 36;
    let mut bytes = Bytecode::default();
    off_state(&mut bytes);
    serial(&mut bytes);
    generation(&mut bytes);
    for (number, slot) in devices.iter().enumerate() {
        virtio(&mut bytes, number, slot);
    }
    let mut dsdt = Sdt::new(*b"DSDT", HEADER_BYTES, REVISION, OEM, OEM_TABLE, OEM_REVISION);
    dsdt.append_slice(&bytes.0);
    dsdt
}

/// What to write to turn the machine off.
fn off_state(sink: &mut dyn AmlSink) {
    let kind = SLEEP_TYPE_OFF as u8;
    let values = Package::new(vec![&kind, &kind, &ZERO, &ZERO]);
    Name::new(Path::new("_S5_"), &values).to_aml_bytes(sink);
}

fn serial(sink: &mut dyn AmlSink) {
    const PORTS: u8 = 8;
    let name = EISAName::new("PNP0501");
    let ports = IO::new(SERIAL_PORT as u16, SERIAL_PORT as u16, 1, PORTS);
    let line = Interrupt::new(true, true, false, false, SERIAL_GSI);
    let resources = ResourceTemplate::new(vec![&ports, &line]);
    let (hardware_id, unique_id) = (Name::new("_HID".into(), &name), Name::new("_UID".into(), &ZERO));
    let settings = Name::new("_CRS".into(), &resources);
    let device = Device::new("COM1".into(), vec![&hardware_id, &unique_id, &settings]);
    Scope::new("_SB_".into(), vec![&device]).to_aml_bytes(sink);
}

/// Where the generation is, and a device for general events whose only one says that it is another. The names by which
/// drivers know the first are those of the document that invented it; Linux knows the short one.
fn generation(sink: &mut dyn AmlSink) {
    const CHANGED: u8 = 0x80;
    let (low, high) = (GENERATION.0 as u32, (GENERATION.0 >> 32) as u32);
    let address = Package::new(vec![&low, &high]);
    let (hardware_id, compatible) =
        (Name::new("_HID".into(), &"VMGENCTR"), Name::new("_CID".into(), &"VM_Gen_Counter"));
    let (description, place) = (Name::new("_DDN".into(), &"VM_Gen_Counter"), Name::new("ADDR".into(), &address));
    let generation = Device::new("VGEN".into(), vec![&hardware_id, &compatible, &description, &place]);

    let line = Interrupt::new(true, true, false, false, EVENT_GSI);
    let resources = ResourceTemplate::new(vec![&line]);
    let (hardware_id, unique_id) = (Name::new("_HID".into(), &"ACPI0013"), Name::new("_UID".into(), &ZERO));
    let settings = Name::new("_CRS".into(), &resources);
    let target = Path::new("\\_SB_.VGEN");
    let notify = Notify::new(&target, &CHANGED);
    let handler = Method::new("_EVT".into(), 1, true, vec![&notify]);
    let events = Device::new("EVNT".into(), vec![&hardware_id, &unique_id, &settings, &handler]);
    Scope::new("_SB_".into(), vec![&generation, &events]).to_aml_bytes(sink);
}

fn virtio(sink: &mut dyn AmlSink, number: usize, slot: &VirtioSlot) {
    let number = number as u8;
    let registers = Memory32Fixed::new(true, slot.address as u32, VIRTIO_MMIO_BYTES as u32);
    let line = Interrupt::new(true, true, false, false, slot.gsi);
    let resources = ResourceTemplate::new(vec![&registers, &line]);
    let (hardware_id, unique_id) = (Name::new("_HID".into(), &"LNRO0005"), Name::new("_UID".into(), &number));
    // Device memory and main memory are one to the guest: no bounce buffers.
    let coherent = Name::new("_CCA".into(), &ONE);
    let settings = Name::new("_CRS".into(), &resources);
    let path = format!("V{number:03}");
    let device = Device::new(path.as_str().into(), vec![&hardware_id, &unique_id, &coherent, &settings]);
    Scope::new("_SB_".into(), vec![&device]).to_aml_bytes(sink);
}

#[cfg(test)]
mod tests {
    use super::super::layout::{VIRTIO_SLOTS, virtio_slot};
    use super::*;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 2 << 20)]).unwrap()
    }

    fn bytes(memory: &GuestMemoryMmap, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
        bytes
    }

    fn table(memory: &GuestMemoryMmap, address: u64) -> Vec<u8> {
        let length: u32 = memory.read_obj(GuestAddress(address + 4)).unwrap();
        bytes(memory, address, length as usize)
    }

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    fn word(table: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(table[offset..offset + 8].try_into().unwrap())
    }

    #[test]
    fn every_table_is_found_from_the_root_and_has_a_right_checksum() {
        let memory = memory();
        let slots: Vec<_> = (0..VIRTIO_SLOTS).map(|index| virtio_slot(index).unwrap()).collect();
        write(&memory, 32, &slots).unwrap();
        let root = bytes(&memory, ACPI_RSDP.0, 36);
        assert_eq!(&root[..8], b"RSD PTR ");
        assert_eq!((sum(&root[..20]), sum(&root)), (0, 0));
        let xsdt = table(&memory, word(&root, 24));
        assert_eq!((&xsdt[..4], sum(&xsdt), xsdt.len()), (&b"XSDT"[..], 0, 36 + 16));
        let (fadt, madt) = (table(&memory, word(&xsdt, 36)), table(&memory, word(&xsdt, 44)));
        assert_eq!((&fadt[..4], sum(&fadt), fadt.len()), (&b"FACP"[..], 0, 276));
        assert_eq!((&madt[..4], sum(&madt), madt.len()), (&b"APIC"[..], 0, 44 + 32 * 8 + 12 + 10));
        let dsdt = table(&memory, word(&fadt, 140));
        assert_eq!((&dsdt[..4], sum(&dsdt)), (&b"DSDT"[..], 0));
        for name in [&b"VMGENCTR"[..], b"ACPI0013", b"_EVT"] {
            assert!(dsdt.windows(name.len()).any(|bytes| bytes == name), "{}", String::from_utf8_lossy(name));
        }
        assert_eq!(dsdt.windows(8).filter(|bytes| bytes == b"LNRO0005").count(), VIRTIO_SLOTS);
        assert_eq!(&bytes(&memory, u64::from(u32::from_le_bytes(fadt[36..40].try_into().unwrap())), 4), b"FACS");
    }
}
