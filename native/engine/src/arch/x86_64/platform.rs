//! The devices of a PC on their ports and interrupt lines, and their state. The rest of the engine knows them as what a
//! platform has: a serial port, a power button, a clock, and a way to tell that the machine was put back.

use super::devices::{keyboard, power, rtc};
use super::layout;
use crate::bus::SharedDevice;
use crate::devices::generation::Generation;
use crate::devices::serial::{self, SerialPort};
use crate::error::{Error, Result};
use crate::vcpu::{Buses, End};
use crate::virtio::{StateError, StateReader, StateWriter};
use fluxvm_sys::guest_vm::GuestVm;
use kvm_ioctls::Cap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vm_memory::GuestMemoryMmap;
use vm_superio::serial::SerialState;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// What the engine cannot do without here beside what it needs everywhere, and its name in messages.
pub const EXTENSIONS: [(Cap, &str); 2] = [(Cap::SetTssAddr, "task state segment"), (Cap::Pit2, "interval timer")];

/// See the head of this file.
pub struct Platform {
    serial: Arc<Mutex<SerialPort>>,
    power: Arc<Mutex<power::Power>>,
    clock: Arc<Mutex<rtc::Rtc>>,
    generation: Generation,
}

/// The state of a platform, read and not yet put back.
pub struct PlatformState {
    serial: SerialState,
    power: [u16; 2],
    clock: u8,
}

/// An event that is an edge on an interrupt line.
///
/// # Errors
/// [`Error::Kvm`].
pub fn line(vm: &GuestVm, gsi: u32) -> Result<EventFd> {
    let event = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(|error| Error::Kvm("an event", error))?;
    vm.fd().register_irqfd(&event, gsi).map_err(Error::kvm("an interrupt by an event"))?;
    Ok(event)
}

impl Platform {
    /// Puts all devices on the buses. The serial port prints to `output`; `ended` is called from the thread of the vCPU that
    /// turns the machine off or resets it.
    ///
    /// # Errors
    /// [`Error::Kvm`], or [`Error::NoRoom`] without RAM where they need some.
    pub fn new(
        vm: &Arc<GuestVm>,
        ram: &GuestMemoryMmap,
        buses: &mut Buses,
        output: Box<dyn Write + Send>,
        ended: &Arc<dyn Fn(End) + Send + Sync>,
    ) -> Result<Self> {
        let ending = |end: End| {
            let ended = Arc::clone(ended);
            move || ended(end.clone())
        };
        let serial = Arc::new(Mutex::new(SerialPort::new(line(vm, layout::SERIAL_GSI)?, output)));
        buses.ports.insert(layout::SERIAL_PORT, serial::PORTS, Arc::clone(&serial) as SharedDevice)?;

        let machine = Arc::clone(vm);
        let interrupt = move |level| {
            // Refused only without interrupt controllers, and there are some.
            let _ = machine.fd().set_irq_line(layout::SCI_GSI, level);
        };
        let power = Arc::new(Mutex::new(power::Power::new(interrupt, ending(End::PowerOff))));
        buses.ports.insert(layout::ACPI_PORT, power::PORTS, Arc::clone(&power) as SharedDevice)?;
        let keyboard = keyboard::Keyboard::new(ending(End::Reset));
        buses.ports.insert(layout::KEYBOARD_PORT, keyboard::PORTS, Arc::new(Mutex::new(keyboard)))?;

        let clock = Arc::new(Mutex::new(rtc::Rtc::default()));
        buses.ports.insert(layout::RTC_PORT, rtc::PORTS, Arc::clone(&clock) as SharedDevice)?;
        let generation = Generation::new(ram.clone(), line(vm, layout::EVENT_GSI)?)?;
        Ok(Self { serial, power, clock, generation })
    }

    /// The serial port, for input.
    #[must_use]
    pub fn serial(&self) -> &Arc<Mutex<SerialPort>> {
        &self.serial
    }

    /// Presses the power button.
    pub fn press_power(&self) {
        lock(&self.power).press();
    }

    /// Adds the state as bytes.
    pub fn save(&self, state: &mut StateWriter) {
        serial::save(&lock(&self.serial).state(), state);
        lock(&self.power).registers().into_iter().for_each(|register| state.u16(register));
        state.u8(lock(&self.clock).index());
    }

    /// Puts a state back.
    ///
    /// # Errors
    /// [`Error::Device`] when an interrupt cannot be signalled.
    pub fn set_state(&self, state: &PlatformState) -> Result<()> {
        let serial = lock(&self.serial).set_state(&state.serial);
        serial.map_err(|error| Error::Device("serial port", error.into()))?;
        lock(&self.power).set_registers(state.power);
        lock(&self.clock).set_index(state.clock);
        Ok(())
    }

    /// Tells the guest that it was put back. Comes last: the interrupt controllers and RAM have their state by then.
    ///
    /// # Errors
    /// As [`Generation::renew`].
    pub fn renew_generation(&self) -> Result<()> {
        self.generation.renew()
    }
}

impl PlatformState {
    /// Reads what [`Platform::save`] wrote.
    ///
    /// # Errors
    /// [`StateError`] when the bytes cannot be such a state.
    pub fn load(state: &mut StateReader<'_>) -> std::result::Result<Self, StateError> {
        Ok(Self { serial: serial::load(state)?, power: [state.u16()?, state.u16()?], clock: state.u8()? })
    }
}

fn lock<T>(device: &Mutex<T>) -> MutexGuard<'_, T> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}
