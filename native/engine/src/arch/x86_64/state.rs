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

/// Which model-specific registers belong to the state on this host.
///
/// # Errors
/// [`Error::Kvm`].
pub fn msr_indices(kvm: &Kvm) -> Result<Vec<u32>> {
    let list = kvm.get_msr_index_list().map_err(Error::kvm("to list model-specific registers"))?;
    let (last, mut indices): (Vec<_>, Vec<_>) = list.as_slice().iter().partition(|index| **index == TSC_DEADLINE);
    // The deadline makes sense only once the counter and the local interrupt controller are there.
    indices.extend(last);
    Ok(indices)
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
    pub fn read(vcpu: &GuestVcpu, msrs: &[u32]) -> Result<Self> {
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
            msrs: read_msrs(fd, msrs)?,
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
        fd.set_vcpu_events(&self.events).map_err(Error::kvm("pending events"))?;
        // Tells the guest that it was stopped; refused when it does not use that clock.
        let _ = fd.kvmclock_ctrl();
        Ok(())
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
