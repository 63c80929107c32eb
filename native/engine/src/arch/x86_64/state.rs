//! The state of a machine that lies in KVM: each vCPU, and what all share. Read from a machine at rest, written into one, and
//! as bytes in between, which are trusted no more than a guest is.

use crate::error::{Error, Result};
use crate::virtio::{StateError, StateReader, StateWriter};
use fluxvm_sys::guest_vm::GuestVcpu;
use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_MP_STATE_HALTED, Msrs, kvm_clock_data,
    kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_pit_state2, kvm_regs, kvm_sregs,
    kvm_vcpu_events, kvm_xcrs,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const TSC_DEADLINE: u32 = 0x6E0;
/// KVM takes that many at once.
const MSRS_AT_ONCE: usize = 256;
const MSRS_MAX: u32 = 4096;
const XSAVE_WORDS_MAX: u32 = 1 << 16;
const CONTROLLERS: [u32; 3] = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_IRQCHIP_IOAPIC];

/// Which model-specific registers belong to the state of a vCPU on this host.
pub struct RegisterList(Vec<u32>);

/// Asks KVM which registers those are.
///
/// # Errors
/// [`Error::Kvm`].
pub fn register_list(kvm: &Kvm) -> Result<RegisterList> {
    let list = kvm.get_msr_index_list().map_err(Error::kvm("to list model-specific registers"))?;
    let (last, mut indices): (Vec<_>, Vec<_>) = list.as_slice().iter().partition(|index| **index == TSC_DEADLINE);
    // The deadline makes sense only once the counter and the local interrupt controller are there.
    indices.extend(last);
    Ok(RegisterList(indices))
}

/// The state of one vCPU.
pub struct VcpuState {
    registers: kvm_regs,
    special: kvm_sregs,
    extended_control: kvm_xcrs,
    debug: kvm_debugregs,
    lapic: kvm_lapic_state,
    events: kvm_vcpu_events,
    run_state: u32,
    tsc_khz: u32,
    xsave: Vec<u32>,
    msrs: Vec<(u32, u64)>,
}

impl VcpuState {
    /// Reads the state of a vCPU whose thread rests.
    ///
    /// # Errors
    /// [`Error::Kvm`].
    pub fn read(vcpu: &GuestVcpu, list: &RegisterList) -> Result<Self> {
        let fd = vcpu.fd();
        // First: asking for it makes KVM take in what has come for a vCPU that waits.
        let run_state = fd.get_mp_state().map_err(Error::kvm("to read the run state"))?.mp_state;
        Ok(Self {
            run_state,
            registers: fd.get_regs().map_err(Error::kvm("to read registers"))?,
            special: fd.get_sregs().map_err(Error::kvm("to read special registers"))?,
            extended_control: fd.get_xcrs().map_err(Error::kvm("to read extended control registers"))?,
            debug: fd.get_debug_regs().map_err(Error::kvm("to read debug registers"))?,
            lapic: fd.get_lapic().map_err(Error::kvm("to read the local interrupt controller"))?,
            events: fd.get_vcpu_events().map_err(Error::kvm("to read pending events"))?,
            // Some KVMs cannot tell; the guest then keeps the frequency of the host.
            tsc_khz: fd.get_tsc_khz().unwrap_or(0),
            xsave: vcpu.xsave().map_err(Error::errno("to read processor extensions"))?,
            msrs: read_msrs(fd, &list.0)?,
        })
    }

    /// Writes the state into a vCPU whose thread rests. The state of the whole machine comes before.
    ///
    /// # Errors
    /// [`Error::Kvm`]; the vCPU must not run then.
    pub fn write(&self, vcpu: &GuestVcpu) -> Result<()> {
        let fd = vcpu.fd();
        fd.set_mp_state(kvm_mp_state { mp_state: self.run_state }).map_err(Error::kvm("the run state"))?;
        fd.set_sregs(&self.special).map_err(Error::kvm("special registers"))?;
        fd.set_regs(&self.registers).map_err(Error::kvm("registers"))?;
        vcpu.set_xsave(&self.xsave).map_err(Error::errno("processor extensions"))?;
        fd.set_xcrs(&self.extended_control).map_err(Error::kvm("extended control registers"))?;
        fd.set_debug_regs(&self.debug).map_err(Error::kvm("debug registers"))?;
        fd.set_lapic(&self.lapic).map_err(Error::kvm("the local interrupt controller"))?;
        if self.tsc_khz != 0 && fd.get_tsc_khz().is_ok_and(|khz| khz != self.tsc_khz) {
            fd.set_tsc_khz(self.tsc_khz).map_err(Error::kvm("the frequency of the time stamp counter"))?;
        }
        write_msrs(fd, &self.msrs)?;
        fd.set_vcpu_events(&self.events).map_err(Error::kvm("pending events"))
    }

    /// Adds the state as bytes.
    pub fn save(&self, state: &mut StateWriter) {
        state.u32(self.run_state);
        state.u32(self.tsc_khz);
        for bytes in [
            self.registers.as_bytes(),
            self.special.as_bytes(),
            self.extended_control.as_bytes(),
            self.debug.as_bytes(),
            self.lapic.as_bytes(),
            self.events.as_bytes(),
        ] {
            state.blob(bytes);
        }
        state.u32(self.xsave.len() as u32);
        self.xsave.iter().for_each(|word| state.u32(*word));
        state.u32(self.msrs.len() as u32);
        for (index, value) in &self.msrs {
            state.u32(*index);
            state.u64(*value);
        }
    }

    /// Reads what [`VcpuState::save`] wrote.
    ///
    /// # Errors
    /// [`StateError`] when the bytes cannot be such a state.
    pub fn load(state: &mut StateReader<'_>) -> std::result::Result<Self, StateError> {
        let run_state = state.u32()?;
        // Beyond these are states of other architectures.
        if run_state > KVM_MP_STATE_HALTED + 1 {
            return Err(StateError::Value("run state of a vCPU"));
        }
        let tsc_khz = state.u32()?;
        let (registers, special, extended_control) = (object(state)?, object(state)?, object(state)?);
        let (debug, lapic, events) = (object(state)?, object(state)?, object(state)?);
        let words = count(state, XSAVE_WORDS_MAX)?;
        let xsave = (0..words).map(|_| state.u32()).collect::<std::result::Result<_, _>>()?;
        let entries = count(state, MSRS_MAX)?;
        let msrs =
            (0..entries).map(|_| Ok((state.u32()?, state.u64()?))).collect::<std::result::Result<_, StateError>>()?;
        Ok(Self { registers, special, extended_control, debug, lapic, events, run_state, tsc_khz, xsave, msrs })
    }
}

/// Tells a guest that this vCPU was stopped for a while, so that it does not take the gap for a processor that hangs.
pub fn tell_stopped(vcpu: &GuestVcpu) {
    // Refused by a guest without that clock, which cannot be told.
    let _ = vcpu.fd().kvmclock_ctrl();
}

fn read_msrs(vcpu: &VcpuFd, indices: &[u32]) -> Result<Vec<(u32, u64)>> {
    let mut values = Vec::with_capacity(indices.len());
    let mut rest = indices;
    while !rest.is_empty() {
        let some = &rest[..rest.len().min(MSRS_AT_ONCE)];
        let mut list = msr_list(some.iter().map(|index| (*index, 0)))?;
        let read = vcpu.get_msrs(&mut list).map_err(Error::kvm("to read model-specific registers"))?;
        values.extend(list.as_slice()[..read].iter().map(|entry| (entry.index, entry.data)));
        // The one that KVM stopped at is listed but not there.
        rest = &rest[(read + usize::from(read < some.len())).min(rest.len())..];
    }
    Ok(values)
}

fn write_msrs(vcpu: &VcpuFd, values: &[(u32, u64)]) -> Result<()> {
    let mut rest = values;
    while !rest.is_empty() {
        let some = &rest[..rest.len().min(MSRS_AT_ONCE)];
        let list = msr_list(some.iter().copied())?;
        let written = vcpu.set_msrs(&list).map_err(Error::kvm("model-specific registers"))?;
        // Registers that can be read but not written hold what the processor is, not what the guest did.
        rest = &rest[(written + usize::from(written < some.len())).min(rest.len())..];
    }
    Ok(())
}

fn msr_list(values: impl Iterator<Item = (u32, u64)>) -> Result<Msrs> {
    let entries: Vec<_> = values.map(|(index, data)| kvm_msr_entry { index, data, reserved: 0 }).collect();
    Msrs::from_entries(&entries).map_err(|_| Error::State("too many model-specific registers"))
}

/// What all vCPUs share: clock, interrupt controllers, timer.
pub struct VmState {
    clock: kvm_clock_data,
    controllers: [kvm_irqchip; CONTROLLERS.len()],
    timer: kvm_pit_state2,
}

impl VmState {
    /// Reads the state of a machine at rest.
    ///
    /// # Errors
    /// [`Error::Kvm`].
    pub fn read(vm: &VmFd) -> Result<Self> {
        let mut controllers = CONTROLLERS.map(|chip_id| kvm_irqchip { chip_id, ..kvm_irqchip::default() });
        for controller in &mut controllers {
            vm.get_irqchip(controller).map_err(Error::kvm("to read interrupt controllers"))?;
        }
        Ok(Self {
            clock: vm.get_clock().map_err(Error::kvm("to read the clock"))?,
            controllers,
            timer: vm.get_pit2().map_err(Error::kvm("to read the timer"))?,
        })
    }

    /// Writes the state into a machine at rest. The guest's time goes on from when it was read.
    ///
    /// # Errors
    /// [`Error::Kvm`]; the machine must not run then.
    pub fn write(&self, vm: &VmFd) -> Result<()> {
        vm.set_clock(&kvm_clock_data { clock: self.clock.clock, ..kvm_clock_data::default() })
            .map_err(Error::kvm("the clock"))?;
        for controller in &self.controllers {
            vm.set_irqchip(controller).map_err(Error::kvm("interrupt controllers"))?;
        }
        vm.set_pit2(&self.timer).map_err(Error::kvm("the timer"))
    }

    /// Adds the state as bytes.
    pub fn save(&self, state: &mut StateWriter) {
        state.u64(self.clock.clock);
        self.controllers.iter().for_each(|controller| state.blob(controller.as_bytes()));
        state.blob(self.timer.as_bytes());
    }

    /// Reads what [`VmState::save`] wrote.
    ///
    /// # Errors
    /// [`StateError`] when the bytes cannot be such a state.
    pub fn load(state: &mut StateReader<'_>) -> std::result::Result<Self, StateError> {
        let clock = kvm_clock_data { clock: state.u64()?, ..kvm_clock_data::default() };
        let controllers: [kvm_irqchip; 3] = [object(state)?, object(state)?, object(state)?];
        if controllers.iter().zip(CONTROLLERS).any(|(controller, chip_id)| controller.chip_id != chip_id) {
            return Err(StateError::Value("interrupt controllers"));
        }
        Ok(Self { clock, controllers, timer: object(state)? })
    }
}

fn object<T: FromBytes + IntoBytes + Immutable>(state: &mut StateReader<'_>) -> std::result::Result<T, StateError> {
    T::read_from_bytes(state.blob()?).map_err(|_| StateError::Value("size of a register block"))
}

fn count(state: &mut StateReader<'_>, max: u32) -> std::result::Result<u32, StateError> {
    state.u32().and_then(|count| if count <= max { Ok(count) } else { Err(StateError::Value("length of a list")) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{cpuid::HostCpuid, interrupts};
    use crate::memory::{GuestRam, Mapping};
    use fluxvm_sys::guest_vm::GuestVm;
    use std::sync::Arc;

    const RAM_BYTES: u64 = 16 << 20;
    const KERNEL_GS_BASE: u32 = 0xC000_0102;
    /// Of the area of processor extensions: the first vector register, and which parts are in use.
    const XMM0_WORD: usize = 160 / 4;
    const IN_USE_WORD: usize = 512 / 4;
    const SSE: u32 = 2;
    /// Of a local interrupt controller.
    const TASK_PRIORITY: usize = 0x80;
    /// Of `kvm_irqchip`: the mask of the old controller, and the sixth line of the new one.
    const MASK: usize = 8 + 2;
    const SIXTH_LINE: std::ops::Range<usize> = 8 + 24 + 5 * 8..8 + 24 + 6 * 8;

    /// A machine with a vCPU that has never run; nothing without a KVM.
    fn machine() -> Option<(Arc<GuestVm>, GuestVcpu, RegisterList)> {
        let Ok(kvm) = Kvm::new() else {
            eprintln!("missing capability: /dev/kvm");
            return None;
        };
        let file = tempfile::tempfile().unwrap();
        file.set_len(RAM_BYTES).unwrap();
        let ram = GuestRam::new(file, RAM_BYTES, Mapping::Shared).unwrap();
        let vm = Arc::new(GuestVm::new(kvm.create_vm().unwrap(), ram.whole().clone(), 1).unwrap());
        interrupts::create(vm.fd()).unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        HostCpuid::read(&kvm).unwrap().set(vcpu.fd(), 0, 1).unwrap();
        Some((vm, vcpu, register_list(&kvm).unwrap()))
    }

    #[test]
    fn every_part_of_a_vcpu_is_in_another_machine_as_it_was_saved() {
        let (Some((_vm, vcpu, list)), Some((_other_vm, other, _))) = (machine(), machine()) else { return };
        let mut state = VcpuState::read(&vcpu, &list).unwrap();
        state.run_state = KVM_MP_STATE_HALTED;
        (state.registers.rax, state.registers.r15) = (0x1122_3344_5566_7788, 0x99AA);
        state.special.cr2 = 0x1234_5000;
        // Elsewhere than after a reset, where KVM lets it run.
        (state.special.cs.selector, state.special.cs.base) = (0x1000, 0x1_0000);
        state.debug.db[1] = 0x5678_9000;
        state.lapic.regs[TASK_PRIORITY] = 0x20;
        state.events.nmi.masked = 1;
        state.xsave[XMM0_WORD] = 0xABCD_EF01;
        state.xsave[IN_USE_WORD] |= SSE;
        state.extended_control.xcrs[0].value = 3;
        let gs_base = state.msrs.iter_mut().find(|(index, _)| *index == KERNEL_GS_BASE).unwrap();
        gs_base.1 = 0xFFFF_8000_0000_1000;

        let mut bytes = StateWriter::new();
        state.save(&mut bytes);
        let bytes = bytes.finish();
        let loaded = VcpuState::load(&mut StateReader::new(&bytes)).unwrap();
        loaded.write(&other).unwrap();
        let found = VcpuState::read(&other, &list).unwrap();
        assert_eq!(found.run_state, KVM_MP_STATE_HALTED);
        assert_eq!((found.registers.rax, found.registers.r15), (0x1122_3344_5566_7788, 0x99AA));
        assert_eq!((found.special.cr2, found.debug.db[1]), (0x1234_5000, 0x5678_9000));
        assert_eq!((found.lapic.regs[TASK_PRIORITY], found.events.nmi.masked), (0x20, 1));
        assert_eq!(found.xsave[XMM0_WORD], 0xABCD_EF01);
        assert_eq!(found.extended_control.xcrs[0].value, 3);
        assert!(found.msrs.contains(&(KERNEL_GS_BASE, 0xFFFF_8000_0000_1000)));
        assert_eq!((found.msrs.len(), found.tsc_khz), (state.msrs.len(), state.tsc_khz));
    }

    #[test]
    fn what_all_share_is_in_another_machine_as_it_was_saved() {
        const CLOCK_NS: u64 = 5_000_000_000_000;
        const HOUR_NS: u64 = 3_600_000_000_000;
        let (Some((vm, ..)), Some((other, ..))) = (machine(), machine()) else { return };
        let mut state = VmState::read(vm.fd()).unwrap();
        state.clock.clock = CLOCK_NS;
        state.controllers[0].as_mut_bytes()[MASK] = 0xFB;
        state.controllers[1].as_mut_bytes()[MASK] = 0xEF;
        state.controllers[2].as_mut_bytes()[SIXTH_LINE].copy_from_slice(&0x1_0031_u64.to_le_bytes());
        (state.timer.channels[0].mode, state.timer.channels[0].count) = (2, 0x4321);

        let mut bytes = StateWriter::new();
        state.save(&mut bytes);
        let bytes = bytes.finish();
        VmState::load(&mut StateReader::new(&bytes)).unwrap().write(other.fd()).unwrap();
        let found = VmState::read(other.fd()).unwrap();
        assert!((CLOCK_NS..CLOCK_NS + HOUR_NS).contains(&found.clock.clock), "{}", found.clock.clock);
        assert_eq!(found.controllers[0].as_bytes()[MASK], 0xFB);
        assert_eq!(found.controllers[1].as_bytes()[MASK], 0xEF);
        assert_eq!(found.controllers[2].as_bytes()[SIXTH_LINE], 0x1_0031_u64.to_le_bytes());
        assert_eq!((found.timer.channels[0].mode, found.timer.channels[0].count), (2, 0x4321));
    }
}
