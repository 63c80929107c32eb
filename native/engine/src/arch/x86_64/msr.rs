//! The model-specific registers that a vCPU starts with, and the list of those that belong to its state.

use crate::error::{Error, Result};
use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

const TSC: u32 = 0x10;
const SYSENTER_CS: u32 = 0x174;
const SYSENTER_ESP: u32 = 0x175;
const SYSENTER_EIP: u32 = 0x176;
const MISC_ENABLE: u32 = 0x1A0;
const MTRR_DEFAULT_TYPE: u32 = 0x2FF;
const STAR: u32 = 0xC000_0081;
const LSTAR: u32 = 0xC000_0082;
const CSTAR: u32 = 0xC000_0083;
const SYSCALL_MASK: u32 = 0xC000_0084;
const KERNEL_GS_BASE: u32 = 0xC000_0102;

const FAST_STRINGS: u64 = 1;
const MTRR_ENABLED: u64 = 1 << 11;
const WRITE_BACK: u64 = 6;

/// Sets the registers that a kernel expects from firmware.
///
/// # Errors
/// [`Error::Kvm`], also when KVM took only some.
pub fn set_boot(vcpu: &VcpuFd) -> Result<()> {
    let zero = [SYSENTER_CS, SYSENTER_ESP, SYSENTER_EIP, STAR, CSTAR, KERNEL_GS_BASE, SYSCALL_MASK, LSTAR, TSC];
    let zero = zero.map(|index| (index, 0));
    let set = [(MISC_ENABLE, FAST_STRINGS), (MTRR_DEFAULT_TYPE, MTRR_ENABLED | WRITE_BACK)];
    let entries: Vec<_> =
        zero.into_iter().chain(set).map(|(index, data)| kvm_msr_entry { index, data, reserved: 0 }).collect();
    let list = Msrs::from_entries(&entries).map_err(|_| Error::State("too many model-specific registers"))?;
    let written = vcpu.set_msrs(&list).map_err(Error::kvm("model-specific registers"))?;
    if written != entries.len() {
        return Err(Error::KvmExtension("way to set the model-specific registers for the boot"));
    }
    Ok(())
}
