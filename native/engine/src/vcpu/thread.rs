//! The thread of a vCPU: runs the guest, answers its accesses, rests at the gate, and says why the machine ended.

use super::gate::{Gate, Want};
use crate::bus::Bus;
use crate::error::{Error, Result};
use fluxvm_sys::guest_vm::{GuestVcpu, kick_signal};
use fluxvm_sys::threads::{STACK_BYTES, admit_only, with_signals_blocked};
use kvm_ioctls::VcpuExit;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use vmm_sys_util::signal::Killable;

/// Why a machine ended without being asked by the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest turned itself off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest cannot go on: the text says what happened.
    Crash(String),
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerOff => formatter.write_str("the guest turned itself off"),
            Self::Reset => formatter.write_str("the guest asked for a reset"),
            Self::Crash(why) => write!(formatter, "the guest crashed: {why}"),
        }
    }
}

/// The devices of a machine.
#[derive(Default)]
pub struct Buses {
    /// Devices at ports.
    pub ports: Bus,
    /// Devices in the address space of memory.
    pub memory: Bus,
}

/// A vCPU and its thread, which is at rest at first. Dropping it does not end the thread: the gate does.
pub struct Vcpu {
    vcpu: Arc<Mutex<GuestVcpu>>,
    thread: JoinHandle<()>,
}

impl Vcpu {
    /// Starts the thread, which takes no signal but a kick. `ended` is called on it when the guest cannot go on, before the thread rests for ever.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub fn start(
        id: u8,
        vcpu: GuestVcpu,
        buses: Arc<Buses>,
        gate: Arc<Gate>,
        ended: impl FnOnce(End) + Send + 'static,
    ) -> Result<Self> {
        let vcpu = Arc::new(Mutex::new(vcpu));
        let runner = Runner { vcpu: Arc::clone(&vcpu), buses, gate };
        let body = move || {
            admit_only(kick_signal());
            let run = catch_unwind(AssertUnwindSafe(|| runner.run()));
            if let Some(end) = run.unwrap_or_else(|_| Some(End::Crash("the monitor panicked".to_owned()))) {
                ended(end);
            }
            runner.gate.leave();
        };
        // A program around the engine has handlers of its own, which a vCPU must not run.
        let builder = std::thread::Builder::new().name(format!("vcpu{id}")).stack_size(STACK_BYTES);
        let thread = with_signals_blocked(|| builder.spawn(body)).map_err(Error::Thread)?;
        Ok(Self { vcpu, thread })
    }

    /// The vCPU itself; waits as long as the guest runs.
    pub fn lock(&self) -> MutexGuard<'_, GuestVcpu> {
        self.vcpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the thread out of the guest, to look at the gate.
    pub fn kick(&self) {
        // Fails only when the thread has ended, and then there is nobody to kick.
        let _ = self.thread.kill(kick_signal());
    }

    /// Waits for the end of the thread.
    pub fn join(self) {
        // Panics inside were caught and reported.
        let _ = self.thread.join();
    }
}

struct Runner {
    vcpu: Arc<Mutex<GuestVcpu>>,
    buses: Arc<Buses>,
    gate: Arc<Gate>,
}

impl Runner {
    /// Runs until the machine stops, then nothing, or until the guest cannot go on.
    fn run(&self) -> Option<End> {
        loop {
            match self.gate.rest() {
                Want::Stop => return None,
                Want::Run | Want::Pause => (),
            }
            let mut vcpu = self.vcpu.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(end) = self.run_guest(&mut vcpu) {
                return Some(end);
            }
        }
    }

    /// Runs until the gate wants something else, and then until all that the guest has begun is answered.
    fn run_guest(&self, vcpu: &mut GuestVcpu) -> Option<End> {
        let mut incomplete = false;
        loop {
            let runs = self.gate.runs();
            let exit = match (runs, incomplete) {
                (true, _) => vcpu.run_unless(|| !self.gate.runs()),
                (false, true) => vcpu.complete_exit(),
                (false, false) => return None,
            };
            match exit {
                // Whether the guest ran is not known, so that after a run there may be something to complete still.
                Ok(None) => incomplete &= runs,
                Ok(Some(exit)) => {
                    incomplete = true;
                    if let Some(end) = self.answer(exit) {
                        return Some(end);
                    }
                }
                Err(errno) => return Some(End::Crash(format!("KVM cannot run a vCPU: {errno}"))),
            }
        }
    }

    fn answer(&self, exit: VcpuExit<'_>) -> Option<End> {
        match exit {
            VcpuExit::IoIn(port, data) => self.buses.ports.read(u64::from(port), data),
            VcpuExit::IoOut(port, data) => self.buses.ports.write(u64::from(port), data),
            VcpuExit::MmioRead(address, data) => self.buses.memory.read(address, data),
            VcpuExit::MmioWrite(address, data) => self.buses.memory.write(address, data),
            VcpuExit::Shutdown => return Some(End::Crash("triple fault".to_owned())),
            VcpuExit::SystemEvent(kind, _) => return Some(End::Crash(format!("system event {kind}"))),
            VcpuExit::FailEntry(reason, _) => return Some(End::Crash(format!("entry failed, reason {reason:#x}"))),
            VcpuExit::InternalError => return Some(End::Crash("KVM cannot emulate an instruction".to_owned())),
            other => return Some(End::Crash(format!("exit without a meaning here: {other:?}"))),
        }
        None
    }
}
