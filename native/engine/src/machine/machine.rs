//! A machine and its life: starts, pauses and resumes all vCPUs and devices, and ends them.

use super::build::{self, Ends, MachineConfig};
use super::lifecycle::{Action, Lifecycle};
use super::state;
use crate::arch::platform::Platform;
use crate::arch::state::{RegisterList, tell_stopped};
use crate::devices::serial::SerialPort;
use crate::error::{Error, Result};
use crate::memory::GuestRam;
use crate::vcpu::{Gate, Vcpu, Want};
use crate::virtio::{Reactor, VirtioMmio};
use fluxvm_sys::guest_vm::GuestVm;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// All vCPUs must have come to rest by then.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(5);
/// A kick is not lost, so this is only for a host whose kernel loses one.
const KICK_INTERVAL: Duration = Duration::from_millis(100);

/// What the builder made. Fields are dropped in this order.
pub(super) struct Parts {
    pub ram: GuestRam,
    pub vm: Arc<GuestVm>,
    pub gate: Arc<Gate>,
    pub vcpus: Vec<Vcpu>,
    pub reactor: Reactor,
    pub virtio: Vec<Arc<VirtioMmio>>,
    pub platform: Platform,
    /// Registers that belong to the state of a vCPU.
    pub registers: RegisterList,
}

/// A virtual machine. Dropping it ends it.
pub struct Machine {
    parts: Parts,
    lifecycle: Lifecycle,
}

impl Machine {
    /// Makes a machine that has not run yet. Why it ends by itself is told to `ends`.
    ///
    /// # Errors
    /// All that can be wrong with the host's KVM or the description; nothing is left behind then.
    pub fn new(config: MachineConfig, ends: Ends) -> Result<Self> {
        build::build(config, ends)
    }

    pub(super) fn from_parts(parts: Parts) -> Self {
        Self { parts, lifecycle: Lifecycle::Created }
    }

    /// What the machine is.
    #[must_use]
    pub fn lifecycle(&self) -> Lifecycle {
        self.lifecycle
    }

    /// Its RAM.
    #[must_use]
    pub fn ram(&self) -> &GuestRam {
        &self.parts.ram
    }

    /// How many vCPUs it has.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.parts.vcpus.len()
    }

    /// The machine in KVM, for what this crate has no call for.
    #[must_use]
    pub fn vm(&self) -> &GuestVm {
        &self.parts.vm
    }

    /// The first serial port, for input.
    #[must_use]
    pub fn serial(&self) -> &Arc<Mutex<SerialPort>> {
        self.parts.platform.serial()
    }

    /// The virtio devices, in the order of the description.
    #[must_use]
    pub fn devices(&self) -> &[Arc<VirtioMmio>] {
        &self.parts.virtio
    }

    /// Lets the guest run its first instruction.
    ///
    /// # Errors
    /// [`Error::WrongState`].
    pub fn start(&mut self) -> Result<()> {
        self.lifecycle = self.lifecycle.after(Action::Start)?;
        self.parts.gate.set(Want::Run);
        Ok(())
    }

    /// Brings all vCPUs and then all devices to rest; afterwards nothing changes guest memory or a disk.
    ///
    /// # Errors
    /// [`Error::WrongState`]; [`Error::BarrierTimeout`] or [`Error::Device`] when somebody did not come to rest, and then the
    /// machine goes on.
    pub fn pause(&mut self) -> Result<()> {
        let next = self.lifecycle.after(Action::Pause)?;
        if self.lifecycle == next {
            return Ok(());
        }
        self.parts.gate.set(Want::Pause);
        let began = Instant::now();
        let paused = self.wait_resting().and_then(|()| {
            let rest = BARRIER_TIMEOUT.saturating_sub(began.elapsed());
            self.parts.reactor.quiesce(rest).map_err(|error| Error::Device("virtio", Box::new(error)))
        });
        if paused.is_err() {
            self.parts.gate.set(Want::Run);
        }
        paused.map(|()| self.lifecycle = next)
    }

    /// Goes on after a pause.
    ///
    /// # Errors
    /// [`Error::WrongState`].
    pub fn resume(&mut self) -> Result<()> {
        let next = self.lifecycle.after(Action::Resume)?;
        if self.lifecycle == Lifecycle::Paused {
            self.parts.vcpus.iter().for_each(|vcpu| tell_stopped(&vcpu.lock()));
        }
        self.lifecycle = next;
        self.parts.reactor.resume();
        self.parts.gate.set(Want::Run);
        Ok(())
    }

    /// Presses the power button: a guest that listens shuts down, and its end is sent.
    ///
    /// # Errors
    /// [`Error::WrongState`].
    pub fn press_power(&mut self) -> Result<()> {
        self.lifecycle = self.lifecycle.after(Action::PressPower)?;
        self.parts.platform.press_power();
        Ok(())
    }

    /// The state of a paused machine, without its RAM and disks.
    ///
    /// # Errors
    /// [`Error::WrongState`], [`Error::Kvm`].
    pub fn save(&self) -> Result<Vec<u8>> {
        self.lifecycle.after(Action::Save)?;
        state::save(&self.parts)
    }

    /// Whether a saved state has the right form and is for a machine like this one.
    ///
    /// # Errors
    /// [`Error::SavedState`].
    pub fn check(&self, bytes: &[u8]) -> Result<()> {
        state::check(&self.parts, bytes)
    }

    /// Puts a saved state into a machine that was made alike and is paused or has not run; it is paused afterwards. RAM and
    /// disks must be as they were when the state was saved.
    ///
    /// # Errors
    /// [`Error::WrongState`]; [`Error::SavedState`] when the bytes, which anyone may have written, are not for this machine:
    /// then it is as before. After any other error the machine must be stopped.
    pub fn load(&mut self, bytes: &[u8]) -> Result<()> {
        let next = self.lifecycle.after(Action::Load)?;
        if self.lifecycle == Lifecycle::Created {
            let quiesced = self.parts.reactor.quiesce(BARRIER_TIMEOUT);
            quiesced.map_err(|error| Error::Device("virtio", Box::new(error)))?;
        }
        let loaded = state::load(&self.parts, bytes);
        if loaded.is_err() && self.lifecycle == Lifecycle::Created {
            self.parts.reactor.resume();
        }
        loaded.map(|()| self.lifecycle = next)
    }

    /// Ends the machine, whatever its guest does, and waits for its vCPUs. Again does no harm.
    pub fn stop(&mut self) {
        self.lifecycle = Lifecycle::Stopped;
        self.parts.gate.set(Want::Stop);
        for vcpu in std::mem::take(&mut self.parts.vcpus) {
            vcpu.kick();
            vcpu.join();
        }
    }

    fn wait_resting(&self) -> Result<()> {
        let kick = || self.parts.vcpus.iter().for_each(Vcpu::kick);
        let rest = self.parts.gate.wait_resting(self.parts.vcpus.len(), BARRIER_TIMEOUT, KICK_INTERVAL, kick);
        if rest { Ok(()) } else { Err(Error::BarrierTimeout(BARRIER_TIMEOUT.as_millis())) }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}
