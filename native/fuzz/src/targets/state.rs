//! The saved state of a whole machine, damaged in a few places, loaded into one that was made alike.

use super::memory_file;
use crate::script::Script;
use fluxvm_engine::error::Error;
use fluxvm_engine::machine::{Machine, MachineConfig};
use fluxvm_engine::memory::{GuestRam, Mapping};
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::balloon::Balloon;
use fluxvm_engine::virtio::block::{Block, BlockOptions, IoMode};
use fluxvm_engine::virtio::disk::Disk;
use fluxvm_engine::virtio::limiter::Limits;
use fluxvm_engine::virtio::rng::Rng;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const RAM_BYTES: u64 = 16 << 20;
const VCPUS: u32 = 2;

thread_local! {
    static MACHINE: RefCell<Option<Paused>> = const { RefCell::new(None) };
}

/// A machine at rest, and its state.
struct Paused {
    machine: Machine,
    state: Vec<u8>,
}

impl Paused {
    fn new() -> Self {
        let block = BlockOptions { mode: IoMode::Direct, ..BlockOptions::default() };
        let disk = Disk::open(memory_file(8192), false).expect("a disk").shared();
        let devices: Vec<Box<dyn VirtioDevice>> = vec![
            Box::new(Block::new(disk, &block).expect("a device")),
            Box::new(Rng::new(Limits::default()).expect("a device")),
            Box::new(Balloon::new(256 << 20, Mapping::Shared).expect("a device")),
        ];
        let config = MachineConfig {
            kvm: None,
            ram: GuestRam::new(memory_file(RAM_BYTES), RAM_BYTES, Mapping::Shared).expect("memory"),
            vcpus: VCPUS,
            kernel: kernel(),
            initrd: None,
            command_line: String::new(),
            serial: Box::new(std::io::sink()),
            devices,
        };
        let mut machine = Machine::new(config, Arc::new(drop)).expect("a machine");
        machine.start().expect("started");
        machine.pause().expect("paused");
        let state = machine.save().expect("a state");
        Self { machine, state }
    }
}

/// A bzImage that halts at once.
fn kernel() -> File {
    let mut image = vec![0; 2 * 512 + 1024];
    image[0x1F1] = 1;
    image[0x202..0x208].copy_from_slice(b"HdrS\x0F\x02");
    image[0x211] = 1;
    image[0x214..0x218].copy_from_slice(&0x10_0000_u32.to_le_bytes());
    image[0x236] = 1;
    image[2 * 512 + 0x200..2 * 512 + 0x203].copy_from_slice(&[0xF4, 0xEB, 0xFD]);
    let file = memory_file(0);
    file.write_all_at(&image, 0).expect("memory");
    file
}

/// Machines need a KVM.
pub fn missing() -> Option<&'static str> {
    File::options().read(true).write(true).open("/dev/kvm").is_err().then_some("a KVM that may be used (/dev/kvm)")
}

/// Runs one input.
pub fn run(input: &[u8]) {
    MACHINE.with_borrow_mut(|kept| {
        let mut paused = kept.take().unwrap_or_else(Paused::new);
        let mut state = paused.state.clone();
        let mut script = Script::new(input);
        let goes_on = script.u8() == 0xFF;
        script.edit(&mut state, 8);
        let form = paused.machine.check(&state);
        let loaded = paused.machine.load(&state);
        match (form, loaded) {
            (Err(_), Ok(())) => panic!("a state of the wrong form was loaded"),
            (Ok(()), Err(Error::SavedState(error))) => panic!("the check of a state does not see {error}"),
            // Nothing was changed, or all of it: the machine can be used again.
            (Err(_), Err(Error::SavedState(_))) => (),
            (Ok(()), Ok(())) => {
                let again = paused.machine.save().expect("the state of a paused machine");
                paused.machine.check(&again).expect("a state that was just saved");
                if goes_on {
                    paused.machine.resume().expect("a paused machine goes on");
                    return;
                }
            }
            // Half of it is there: such a machine may only be stopped.
            (_, Err(_)) => return,
        }
        let state = paused.state.clone();
        if paused.machine.load(&state).is_ok() {
            *kept = Some(paused);
        }
    });
}
