//! The devices of a PC on their ports: serial port, power, clock and keyboard controller, on a KVM machine that never runs.

use super::state;
use crate::script::Script;
use fluxvm_engine::arch::interrupts;
use fluxvm_engine::arch::layout::{ACPI_PORT, KEYBOARD_PORT, RTC_PORT, SERIAL_PORT};
use fluxvm_engine::arch::platform::{Platform, PlatformState};
use fluxvm_engine::vcpu::{Buses, End};
use fluxvm_engine::virtio::{StateReader, StateWriter};
use fluxvm_sys::guest_vm::GuestVm;
use kvm_ioctls::Kvm;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use vm_memory::{GuestAddress, GuestMemoryMmap};

const RAM_BYTES: usize = 2 << 20;
const STEPS_MAX: u32 = 500;

thread_local! {
    static MACHINE: Arc<GuestVm> = {
        let vm = Kvm::new().and_then(|kvm| kvm.create_vm()).expect("a machine");
        let ram = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM_BYTES)]).expect("memory");
        let vm = Arc::new(GuestVm::new(vm, ram, 1).expect("a machine"));
        interrupts::create(vm.fd()).expect("interrupt controllers");
        vm
    };
}

/// What the guest printed.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics with it").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Interrupts go through KVM.
pub fn missing() -> Option<&'static str> {
    state::missing()
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let vm = MACHINE.with(Arc::clone);
    let (mut buses, printed) = (Buses::default(), Printed::default());
    let ended: Arc<dyn Fn(End) + Send + Sync> = Arc::new(drop);
    let platform = Platform::new(&vm, vm.memory(), &mut buses, Box::new(printed.clone()), &ended).expect("a platform");
    let mut script = Script::new(input);
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        take_step(step, &mut script, &buses, &platform);
    }
    // The modem and the line as they are after a reset.
    for (register, value) in [(3, 0), (4, 8), (1, 0), (0, b'!')] {
        buses.ports.write(SERIAL_PORT + register, &[value]);
    }
    assert_eq!(printed.0.lock().expect("nobody panics with it").last(), Some(&b'!'), "nothing is printed any more");
    load(&platform, &save(&platform)).expect("a state that was just saved");
}

fn take_step(step: u8, script: &mut Script<'_>, buses: &Buses, platform: &Platform) {
    match step % 16 {
        0 => drop(platform.serial().lock().expect("nobody panics with it").enqueue(&script.bytes(100))),
        1 => platform.press_power(),
        2 => platform.renew_generation().expect("an interrupt"),
        3 => {
            let mut state = save(platform);
            script.edit(&mut state, 3);
            let _ = load(platform, &state);
        }
        _ => {
            let (port, count) = match step >> 4 {
                0..=5 => (SERIAL_PORT, 8),
                6..=8 => (ACPI_PORT, 8),
                9 | 10 => (KEYBOARD_PORT, 8),
                11 | 12 => (RTC_PORT, 2),
                _ => (0, 0x1_0000),
            };
            let port = port + script.below(count);
            let bytes = if script.one_in(4) { 1 << script.below(4) } else { 1 };
            if step & 4 == 0 {
                buses.ports.read(port, &mut vec![0; bytes]);
            } else {
                buses.ports.write(port, &script.u64().to_le_bytes()[..bytes]);
            }
        }
    }
}

fn save(platform: &Platform) -> Vec<u8> {
    let mut state = StateWriter::new();
    platform.save(&mut state);
    state.finish()
}

fn load(platform: &Platform, bytes: &[u8]) -> Result<(), String> {
    let mut reader = StateReader::new(bytes);
    let state = PlatformState::load(&mut reader).map_err(|error| error.to_string())?;
    reader.end().map_err(|error| error.to_string())?;
    platform.set_state(&state).map_err(|error| error.to_string())
}
