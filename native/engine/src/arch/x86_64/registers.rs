//! The registers of a vCPU when it enters the kernel. Only the first vCPU has them set; the others wait for their start-up.

use super::boot::Entry;
use super::layout::{GDT, PAGE_TABLES, PVH_START_INFO, ZERO_PAGE};
use crate::error::{Error, Result};
use fluxvm_sys::guest_vm::GuestVm;
use kvm_bindings::{kvm_fpu, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

const CR0_PROTECTED: u64 = 1;
const CR0_EXTENSION_TYPE: u64 = 1 << 4;
const CR0_PAGING: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LONG: u64 = 1 << 8;
const EFER_LONG_ACTIVE: u64 = 1 << 10;
const FLAGS_RESERVED: u64 = 2;

/// Where both protocols want these selectors: `__BOOT_CS` and `__BOOT_DS` of Linux.
const CODE_SELECTOR: u16 = 0x10;
const DATA_SELECTOR: u16 = 0x18;
const TASK_SELECTOR: u16 = 0x20;
const CODE_READ: u8 = 11;
const DATA_WRITE: u8 = 3;
const TASK_BUSY: u8 = 11;
const TASK_LIMIT: u32 = 0x67;

/// Defaults of the x87 and SSE control words after a reset.
const FPU_CONTROL: u16 = 0x37F;
const SSE_CONTROL: u32 = 0x1F80;

/// Sets the registers of the first vCPU for the entry.
///
/// # Errors
/// [`Error::Kvm`] or [`Error::NoRoom`].
pub fn set_entry(vm: &GuestVm, vcpu: &VcpuFd, entry: Entry) -> Result<()> {
    let long = matches!(entry, Entry::Linux { .. });
    let code = segment(CODE_SELECTOR, CODE_READ, long);
    let data = segment(DATA_SELECTOR, DATA_WRITE, false);
    write_descriptors(vm, &[code, data])?;

    let mut special = vcpu.get_sregs().map_err(Error::kvm("to read special registers"))?;
    special.cr0 = CR0_PROTECTED | CR0_EXTENSION_TYPE;
    special.cs = code;
    for register in [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss] {
        *register = data;
    }
    special.tr = kvm_segment { limit: TASK_LIMIT, g: 0, db: 0, s: 0, ..segment(TASK_SELECTOR, TASK_BUSY, false) };
    special.gdt.base = GDT.0;
    special.gdt.limit = TASK_SELECTOR - 1;
    let mut registers = kvm_regs { rflags: FLAGS_RESERVED, ..kvm_regs::default() };
    match entry {
        Entry::Pvh { address } => (registers.rip, registers.rbx) = (address, PVH_START_INFO.0),
        Entry::Linux { address } => {
            (registers.rip, registers.rsi) = (address, ZERO_PAGE.0);
            special.cr3 = PAGE_TABLES.0;
            special.cr4 |= CR4_PAE;
            special.cr0 |= CR0_PAGING;
            special.efer |= EFER_LONG | EFER_LONG_ACTIVE;
        }
    }
    vcpu.set_sregs(&special).map_err(Error::kvm("special registers"))?;
    vcpu.set_regs(&registers).map_err(Error::kvm("registers"))
}

/// Sets the floating-point unit to what it is after a reset.
///
/// # Errors
/// [`Error::Kvm`].
pub fn set_fpu(vcpu: &VcpuFd) -> Result<()> {
    let fpu = kvm_fpu { fcw: FPU_CONTROL, mxcsr: SSE_CONTROL, ..kvm_fpu::default() };
    vcpu.set_fpu(&fpu).map_err(Error::kvm("floating-point state"))
}

/// A flat segment over all of the address space.
fn segment(selector: u16, kind: u8, long: bool) -> kvm_segment {
    kvm_segment {
        limit: u32::MAX,
        selector,
        type_: kind,
        present: 1,
        db: u8::from(!long),
        l: u8::from(long),
        s: 1,
        g: 1,
        ..kvm_segment::default()
    }
}

/// Writes the descriptors of flat segments at their selectors.
fn write_descriptors(vm: &GuestVm, segments: &[kvm_segment]) -> Result<()> {
    for segment in segments {
        let address = GuestAddress(GDT.0 + u64::from(segment.selector));
        vm.memory().write_obj(descriptor(segment), address).map_err(|_| Error::NoRoom("the descriptor table"))?;
    }
    Ok(())
}

/// The descriptor of a segment with base 0 and the limit of 4 GiB.
fn descriptor(segment: &kvm_segment) -> u64 {
    const FLAT: u64 = 0x000F_0000_0000_FFFF;
    let access = u64::from(segment.type_) | u64::from(segment.s) << 4 | u64::from(segment.present) << 7;
    let flags = u64::from(segment.l) << 1 | u64::from(segment.db) << 2 | u64::from(segment.g) << 3;
    FLAT | access << 40 | flags << 52
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_those_of_the_boot_protocol() {
        assert_eq!(descriptor(&segment(CODE_SELECTOR, CODE_READ, true)), 0x00AF_9B00_0000_FFFF);
        assert_eq!(descriptor(&segment(CODE_SELECTOR, CODE_READ, false)), 0x00CF_9B00_0000_FFFF);
        assert_eq!(descriptor(&segment(DATA_SELECTOR, DATA_WRITE, false)), 0x00CF_9300_0000_FFFF);
    }
}
