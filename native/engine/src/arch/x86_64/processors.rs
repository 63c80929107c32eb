//! The vCPUs of a new machine: made, told what they are, and the first one ready for its first instruction.

use super::boot::Entry;
use super::cpuid::HostCpuid;
use super::{interrupts, msr, registers};
use crate::error::{Error, Result};
use fluxvm_sys::guest_vm::{GuestVcpu, GuestVm};
use kvm_ioctls::Kvm;
use std::sync::Arc;

/// Makes so many vCPUs, of which the first enters the kernel and starts the others.
///
/// # Errors
/// [`Error::Kvm`], or [`Error::NoRoom`] without RAM for what the first needs.
pub fn make(kvm: &Kvm, vm: &Arc<GuestVm>, count: u8, entry: Entry) -> Result<Vec<GuestVcpu>> {
    let cpuid = HostCpuid::read(kvm)?;
    let make = |id| {
        let vcpu = vm.create_vcpu(id).map_err(Error::errno("a vCPU"))?;
        cpuid.set(vcpu.fd(), id, count)?;
        msr::set_boot(vcpu.fd())?;
        registers::set_fpu(vcpu.fd())?;
        interrupts::set_local_pins(vcpu.fd())?;
        if id == 0 {
            registers::set_entry(vm, vcpu.fd(), entry)?;
        }
        Ok(vcpu)
    };
    (0..count).map(make).collect()
}
