//! The one machine of this process and what is asked of it. Requests come one at a time; a ping does not wait for them.

use crate::config::{BootConfig, ConfigError};
use crate::protocol::{Reply, Request};
use crate::snapshot::{self, SnapshotError};
use fluxvm_engine::error::Error as EngineError;
use fluxvm_engine::machine::{Lifecycle, Machine};
use fluxvm_engine::memory::Mapping;
use fluxvm_engine::vcpu::End;
use fluxvm_engine::virtio::balloon::BalloonControl;
use std::sync::mpsc::{Receiver, Sender, channel};

const MIB: u64 = 1 << 20;

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no machine.
    #[error("there is no machine yet")]
    NoMachine,
    /// There is one already.
    #[error("there is a machine already, and it is {0}")]
    MachineExists(&'static str),
    /// The configuration cannot be used.
    #[error("the machine cannot be made")]
    Config(#[from] ConfigError),
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The snapshot cannot be taken or used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The balloon refuses.
    #[error("the balloon cannot take that much")]
    Balloon(#[source] Box<dyn std::error::Error + Send + Sync>),
}

struct Running {
    machine: Machine,
    config: BootConfig,
    balloon: BalloonControl,
}

/// See the head of this file.
pub struct Session {
    running: Option<Running>,
    ends: Sender<End>,
}

impl Session {
    /// A session without a machine, and where the end of its machine will be told.
    pub fn new() -> (Self, Receiver<End>) {
        let (ends, ended) = channel();
        (Self { running: None, ends }, ended)
    }

    /// Does what is asked.
    pub fn handle(&mut self, request: Request) -> Reply {
        self.perform(request).unwrap_or_else(|error| Reply::error(&error))
    }

    /// Makes the machine and lets it run.
    ///
    /// # Errors
    /// [`SessionError`]; there is no machine then.
    pub fn boot(&mut self, config: BootConfig) -> Result<(), SessionError> {
        if let Some(running) = &self.running
            && running.machine.lifecycle() != Lifecycle::Stopped
        {
            return Err(SessionError::MachineExists(running.machine.lifecycle().word()));
        }
        self.running = None;
        let (description, balloon) = config.open()?;
        let mut machine = Machine::new(description, self.ends.clone())?;
        machine.start()?;
        self.running = Some(Running { machine, config, balloon });
        Ok(())
    }

    /// Gives up the machine with all that its devices made, such as sockets.
    pub fn close(&mut self) {
        self.running = None;
    }

    fn perform(&mut self, request: Request) -> Result<Reply, SessionError> {
        match request {
            Request::Ping => Ok(Reply::OK),
            Request::Boot(config) => self.boot(*config).map(|()| Reply::OK),
            Request::Pause => self.change(Machine::pause),
            Request::Resume => self.change(Machine::resume),
            Request::PowerButton => self.change(Machine::press_power),
            Request::Shutdown => {
                if let Some(running) = &mut self.running {
                    running.machine.stop();
                }
                Ok(Reply::OK)
            }
            Request::SnapshotSave { path } => {
                let running = self.running()?;
                snapshot::save(&mut running.machine, &running.config, &path)?;
                Ok(Reply::OK)
            }
            Request::SnapshotRestore { path } => {
                let running = self.running()?;
                snapshot::restore(&mut running.machine, &running.config, &path)?;
                // Pages given back are pages of this process now, not of a file.
                running.balloon.set_mapping(Mapping::Private);
                Ok(Reply::OK)
            }
            Request::Balloon { balloon_mib } => self.balloon(balloon_mib),
            Request::Metrics => Ok(self.metrics()),
        }
    }

    fn change(&mut self, action: impl FnOnce(&mut Machine) -> Result<(), EngineError>) -> Result<Reply, SessionError> {
        let machine = &mut self.running()?.machine;
        action(machine)?;
        Ok(Reply::State { lifecycle: machine.lifecycle().word().to_owned() })
    }

    fn balloon(&mut self, target_mib: Option<u64>) -> Result<Reply, SessionError> {
        let running = self.running()?;
        if let Some(mib) = target_mib {
            let bytes = mib.saturating_mul(MIB);
            running.balloon.set_target(bytes).map_err(|error| SessionError::Balloon(error.into()))?;
        }
        let message = serde_json::json!({
            "memory_mib": running.machine.ram().bytes() / MIB,
            "target_mib": running.balloon.target_bytes() / MIB,
            "actual_mib": running.balloon.actual_bytes() / MIB,
        });
        Ok(Reply::Ok { message: Some(message.to_string()) })
    }

    fn metrics(&self) -> Reply {
        let machine = self.running.as_ref().map(|running| &running.machine);
        Reply::Metrics {
            memory_mib: machine.map_or(0, |machine| machine.ram().bytes() / MIB),
            vcpus: self.running.as_ref().map_or(0, |running| u64::from(running.config.vcpus)),
            lifecycle: machine.map_or("created", |machine| machine.lifecycle().word()).to_owned(),
        }
    }

    fn running(&mut self) -> Result<&mut Running, SessionError> {
        self.running.as_mut().ok_or(SessionError::NoMachine)
    }
}
