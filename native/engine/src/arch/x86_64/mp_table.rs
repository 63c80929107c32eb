//! The multi-processor table of the MP specification 1.4, for kernels that run with ACPI off.

use super::layout::{ACPI_RSDP, IOAPIC, LAPIC, MP_TABLE};
use crate::error::{Error, Result};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const POINTER_BYTES: u64 = 16;
const HEADER_BYTES: usize = 44;
const REVISION: u8 = 4;
const APIC_VERSION: u8 = 0x14;
const PROCESSOR: u8 = 0;
const BUS: u8 = 1;
const IO_APIC: u8 = 2;
const IO_INTERRUPT: u8 = 3;
const LOCAL_INTERRUPT: u8 = 4;
/// All lines of the interrupt controller, the upper ones as if they were ISA's, too.
const ISA_LINES: u8 = 24;

/// Writes the pointer and the table.
///
/// # Errors
/// [`Error::NoRoom`] when it does not fit.
pub fn write(memory: &GuestMemoryMmap, vcpus: u8) -> Result<()> {
    let table_address = MP_TABLE.0 + POINTER_BYTES;
    let table = table(vcpus);
    if table_address + table.len() as u64 > ACPI_RSDP.0 {
        return Err(Error::NoRoom("the multi-processor table"));
    }
    for (bytes, address) in [(&pointer(table_address as u32)[..], MP_TABLE.0), (&table[..], table_address)] {
        memory.write_slice(bytes, GuestAddress(address)).map_err(|_| Error::NoRoom("the multi-processor table"))?;
    }
    Ok(())
}

fn pointer(table: u32) -> [u8; POINTER_BYTES as usize] {
    let mut pointer = [0; POINTER_BYTES as usize];
    pointer[..4].copy_from_slice(b"_MP_");
    pointer[4..8].copy_from_slice(&table.to_le_bytes());
    pointer[8] = 1;
    pointer[9] = REVISION;
    pointer[10] = complement(&pointer);
    pointer
}

fn table(vcpus: u8) -> Vec<u8> {
    let io_apic = vcpus;
    let mut entries = Vec::new();
    let mut count = 0u16;
    let mut add = |entry: &[u8]| {
        entries.extend_from_slice(entry);
        count += 1;
    };
    for id in 0..vcpus {
        // Enabled, and the first one is the one that boots. Signature and features are left to CPUID.
        let flags = if id == 0 { 3 } else { 1 };
        let mut entry = [0; 20];
        entry[..4].copy_from_slice(&[PROCESSOR, id, APIC_VERSION, flags]);
        add(&entry);
    }
    add(&[BUS, 0, b'I', b'S', b'A', b' ', b' ', b' ']);
    let [a, b, c, d] = IOAPIC.to_le_bytes();
    add(&[IO_APIC, io_apic, APIC_VERSION, 1, a, b, c, d]);
    for line in 0..ISA_LINES {
        add(&[IO_INTERRUPT, 0, 0, 0, 0, line, io_apic, line]);
    }
    // Every vCPU: external interrupts at pin 0 of the first, non-maskable ones at pin 1 of all.
    add(&[LOCAL_INTERRUPT, 3, 0, 0, 0, 0, 0, 0]);
    add(&[LOCAL_INTERRUPT, 1, 0, 0, 0, 0, 0xFF, 1]);

    let mut table = vec![0; HEADER_BYTES];
    let length = (HEADER_BYTES + entries.len()) as u16;
    table[..4].copy_from_slice(b"PCMP");
    table[4..6].copy_from_slice(&length.to_le_bytes());
    table[6] = REVISION;
    table[8..16].copy_from_slice(b"FLUXVM  ");
    table[16..28].copy_from_slice(b"MACHINE     ");
    table[34..36].copy_from_slice(&count.to_le_bytes());
    table[36..40].copy_from_slice(&LAPIC.to_le_bytes());
    table.extend(entries);
    table[7] = complement(&table);
    table
}

/// What makes the sum of all bytes zero.
fn complement(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_counts_and_checksums_agree() {
        for vcpus in [1, 2, 32] {
            let table = table(vcpus);
            assert_eq!(complement(&table), 0);
            assert_eq!(table.len(), usize::from(u16::from_le_bytes([table[4], table[5]])));
            let count = usize::from(u16::from_le_bytes([table[34], table[35]]));
            assert_eq!(count, usize::from(vcpus) + 2 + usize::from(ISA_LINES) + 2);
            assert_eq!(table.len(), HEADER_BYTES + usize::from(vcpus) * 20 + (count - usize::from(vcpus)) * 8);
        }
        assert_eq!(complement(&pointer(0x9_FC10)), 0);
    }
}
