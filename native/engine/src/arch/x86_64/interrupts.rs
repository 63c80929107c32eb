//! Interrupt controllers and timer of a PC, all in the kernel, and how a vCPU's local controller takes external interrupts.

use super::layout::{KVM_IDENTITY_MAP, KVM_TSS};
use crate::error::{Error, Result};
use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_lapic_state, kvm_pit_config};
use kvm_ioctls::{VcpuFd, VmFd};

const LVT_LINT0: usize = 0x350;
const LVT_LINT1: usize = 0x360;
const DELIVERY_MASK: u32 = 0x700;
const EXTERNAL: u32 = 0x700;
const NON_MASKABLE: u32 = 0x400;

/// Makes the controllers and the timer. Memory must be registered before and vCPUs made after: the other way round, each
/// memory slot waits for all processors.
///
/// # Errors
/// [`Error::Kvm`].
pub fn create(vm: &VmFd) -> Result<()> {
    vm.set_identity_map_address(KVM_IDENTITY_MAP).map_err(Error::kvm("an identity map page"))?;
    vm.set_tss_address(KVM_TSS).map_err(Error::kvm("a task state segment"))?;
    vm.create_irq_chip().map_err(Error::kvm("interrupt controllers"))?;
    let timer = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..kvm_pit_config::default() };
    vm.create_pit2(timer).map_err(Error::kvm("a timer"))
}

/// Lets a vCPU's first pin take the interrupts of the old controller, and its second one those that cannot be masked.
///
/// # Errors
/// [`Error::Kvm`].
pub fn set_local_pins(vcpu: &VcpuFd) -> Result<()> {
    let mut state = vcpu.get_lapic().map_err(Error::kvm("to read the local interrupt controller"))?;
    set_delivery(&mut state, LVT_LINT0, EXTERNAL);
    set_delivery(&mut state, LVT_LINT1, NON_MASKABLE);
    vcpu.set_lapic(&state).map_err(Error::kvm("the local interrupt controller"))
}

fn set_delivery(state: &mut kvm_lapic_state, register: usize, mode: u32) {
    let bytes = &mut state.regs[register..register + 4];
    let mut value = 0;
    for (shift, byte) in bytes.iter().enumerate() {
        value |= u32::from(*byte as u8) << (8 * shift);
    }
    for (byte, new) in bytes.iter_mut().zip((value & !DELIVERY_MASK | mode).to_le_bytes()) {
        *byte = new as _;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delivery_mode_changes_and_nothing_else() {
        let mut state = kvm_lapic_state::default();
        for (index, byte) in state.regs.iter_mut().enumerate() {
            *byte = index as u8 as _;
        }
        let before = state;
        set_delivery(&mut state, LVT_LINT0, EXTERNAL);
        let changed: Vec<_> = (0..state.regs.len()).filter(|index| state.regs[*index] != before.regs[*index]).collect();
        assert_eq!(changed, [LVT_LINT0 + 1]);
        assert_eq!(state.regs[LVT_LINT0 + 1] as u8, 0x51 | 0x07);
    }
}
