//! The state of a whole machine as bytes, without its RAM and disks: read at rest, and checked as far as its form goes before
//! anything of it is written into a machine.

use super::machine::Parts;
use crate::arch::platform::PlatformState;
use crate::arch::state::{VcpuState, VmState};
use crate::error::{Error, Result};
use crate::virtio::{StateError, StateReader, StateWriter};

/// "FLUX", little endian.
const MAGIC: u32 = 0x5855_4C46;
const VERSION: u32 = 1;

/// Reads the state of a machine at rest.
pub(super) fn save(parts: &Parts) -> Result<Vec<u8>> {
    let mut state = StateWriter::new();
    state.u32(MAGIC);
    state.u32(VERSION);
    state.u64(parts.ram.bytes());
    state.u32(parts.vcpus.len() as u32);
    state.u32(parts.virtio.len() as u32);
    for vcpu in &parts.vcpus {
        VcpuState::read(&vcpu.lock(), &parts.registers)?.save(&mut state);
    }
    VmState::read(parts.vm.fd())?.save(&mut state);
    parts.platform.save(&mut state);
    for device in &parts.virtio {
        state.blob(&device.save());
    }
    Ok(state.finish())
}

/// Writes a state into a machine at rest that was made alike. Bytes of another form or for another machine change nothing;
/// after an error of KVM or of a device the machine must not run.
pub(super) fn load(parts: &Parts, bytes: &[u8]) -> Result<()> {
    let state = MachineState::parse(parts, bytes)?;
    state.vm.write(parts.vm.fd())?;
    for (vcpu, state) in parts.vcpus.iter().zip(&state.vcpus) {
        state.write(&vcpu.lock())?;
    }
    parts.platform.set_state(&state.platform)?;
    for (device, bytes) in parts.virtio.iter().zip(state.devices) {
        device.load(bytes).map_err(|error| Error::Device("virtio", error.into()))?;
    }
    // Last: the controllers, which the edge goes to, have their state by now.
    parts.platform.renew_generation()
}

/// Whether the bytes have the right form and are for a machine like this one.
pub(super) fn check(parts: &Parts, bytes: &[u8]) -> Result<()> {
    MachineState::parse(parts, bytes).map(drop)
}

struct MachineState<'a> {
    vcpus: Vec<VcpuState>,
    vm: VmState,
    platform: PlatformState,
    devices: Vec<&'a [u8]>,
}

impl<'a> MachineState<'a> {
    fn parse(parts: &Parts, bytes: &'a [u8]) -> Result<Self> {
        let mut reader = StateReader::new(bytes);
        let reader = &mut reader;
        if reader.u32()? != MAGIC {
            return Err(StateError::Value("no state of a machine").into());
        }
        reader.version(VERSION)?;
        if reader.u64()? != parts.ram.bytes() {
            return Err(StateError::Value("another size of memory").into());
        }
        if reader.u32()? as usize != parts.vcpus.len() || reader.u32()? as usize != parts.virtio.len() {
            return Err(StateError::Value("other numbers of vCPUs or devices").into());
        }
        let state = Self {
            vcpus: parts.vcpus.iter().map(|_| VcpuState::load(reader)).collect::<std::result::Result<_, _>>()?,
            vm: VmState::load(reader)?,
            platform: PlatformState::load(reader)?,
            devices: parts.virtio.iter().map(|_| reader.blob()).collect::<std::result::Result<_, _>>()?,
        };
        reader.end()?;
        Ok(state)
    }
}
