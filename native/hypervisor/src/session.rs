//! The one machine of a service and what is asked of it, one thing at a time.

use crate::checkpoint::CheckpointError;
use crate::config::{BootConfig, ConfigError};
use crate::hotplug::{self, HotplugError};
use crate::limits;
use crate::prepared::Prepared;
use crate::protocol::{Metrics, Reply, Request};
use crate::running::{BUNDLED, Running};
use crate::service::Status;
use crate::snapshot::SnapshotError;
use crate::snapshot_files::{FILES_MAX, Place, SnapshotFiles};
use fluxvm_engine::error::Error as EngineError;
use fluxvm_engine::machine::{Ends, Lifecycle, Machine};
use fluxvm_jail::{JailError, Names, seal};
use std::path::Path;
use std::sync::Arc;

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
    /// A running process cannot enter a jail.
    #[error("jail: only a process that has not begun can enter one; give the configuration at its start")]
    JailTooLate,
    /// The configuration cannot be used.
    #[error("the machine cannot be made")]
    Config(#[from] ConfigError),
    /// A path cannot be used.
    #[error(transparent)]
    Path(ConfigError),
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The process cannot be sealed.
    #[error(transparent)]
    Jail(#[from] JailError),
    /// The snapshot cannot be taken or used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The machine has no disk.
    #[error("the machine has no rootfs")]
    NoDisk,
    /// The checkpoint cannot be taken or used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Nothing can be added.
    #[error(transparent)]
    Hotplug(#[from] HotplugError),
    /// The balloon refuses.
    #[error("the balloon cannot take that much")]
    Balloon(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// See the head of this file.
pub(crate) struct Session {
    running: Option<Running>,
    status: Arc<Status>,
    ends: Ends,
}

impl Session {
    /// A session without a machine, where its state will be seen, and who is told when its guest ends.
    pub(crate) fn new(status: Arc<Status>, ends: Ends) -> Self {
        Self { running: None, status, ends }
    }

    /// Does what is asked.
    pub(crate) fn handle(&mut self, request: Request) -> Reply {
        let reply = self.perform(request).unwrap_or_else(|error| Reply::error(&error));
        self.tell_status();
        reply
    }

    /// Makes the machine, seals the process if it is in a jail, and lets the machine run.
    ///
    /// # Errors
    /// [`SessionError`]; there is no machine then, and nothing of it is left.
    pub(crate) fn boot(&mut self, mut prepared: Prepared) -> Result<(), SessionError> {
        if let Some(running) = &self.running
            && running.machine.lifecycle() != Lifecycle::Stopped
        {
            return Err(SessionError::MachineExists(running.machine.lifecycle().word()));
        }
        let is_jailed = prepared.is_jailed;
        if prepared.config.jail.is_some() && !is_jailed {
            return Err(SessionError::JailTooLate);
        }
        self.running = None;
        let restore = prepared.restore.take();
        let mut running = Running::make(prepared, Arc::clone(&self.ends))?;
        if is_jailed {
            seal(Names::InDirectory)?;
        }
        match restore {
            Some(files) => {
                running.restore(&files, &self.status)?;
                running.machine.resume()?;
            }
            None => running.machine.start()?,
        }
        running.keep();
        self.running = Some(running);
        self.tell_status();
        Ok(())
    }

    /// Gives up the machine with all that its devices made, such as sockets.
    pub(crate) fn close(&mut self) {
        self.running = None;
    }

    fn perform(&mut self, request: Request) -> Result<Reply, SessionError> {
        match request {
            Request::Ping => Ok(Reply::OK),
            Request::Boot(config) => self.boot_late(*config),
            Request::Pause => self.change(Machine::pause),
            Request::Resume => self.change(Machine::resume),
            Request::PowerButton => self.change(Machine::press_power),
            Request::Shutdown => {
                self.close();
                Ok(Reply::OK)
            }
            Request::SnapshotSave(place) => self.snapshot(place, Running::save),
            Request::SnapshotRestore(place) => self.snapshot(place, Running::restore),
            Request::Checkpoint => self.at_checkpoint(Running::checkpoint),
            Request::Revert => self.at_checkpoint(Running::revert),
            Request::Commit => self.at_checkpoint(Running::commit),
            Request::MigrateExport { path } => self.at(&path, |running, path, status| running.export(path, status)),
            Request::MigrateImport { path } => {
                self.snapshot(Place { path: Some(path.join(BUNDLED)), files: Vec::new() }, Running::restore)
            }
            Request::HotplugCpu { add } => self.add_vcpus(add),
            Request::HotplugDisk { path } => {
                hotplug::check_disk(&self.running()?.find(&path).map_err(SessionError::Path)?)?;
                Ok(Reply::Ok { message: Some("the file can be a disk; it was not attached".to_owned()) })
            }
            Request::LimitDisk { blk_mbit_limit, blk_ops_limit } => {
                let disk = self.running()?.root_control.as_ref().ok_or(SessionError::NoDisk)?;
                disk.set_limits(limits::changed(disk.limits(), blk_mbit_limit, blk_ops_limit));
                Ok(Reply::OK)
            }
            Request::Balloon { balloon_mib } => self.balloon(balloon_mib),
            Request::Metrics => Ok(Reply::Metrics(self.metrics())),
        }
    }

    fn boot_late(&mut self, config: BootConfig) -> Result<Reply, SessionError> {
        self.boot(Prepared::open(config)?)?;
        Ok(Reply::OK)
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

    fn add_vcpus(&mut self, add: u32) -> Result<Reply, SessionError> {
        let running = self.running()?;
        let before = running.vcpus;
        // At most 32 can be made.
        running.vcpus = hotplug::add_vcpus(before, running.machine.vcpus() as u32, add)?;
        Ok(Reply::Ok { message: Some(hotplug::online_commands(before..running.vcpus)) })
    }

    /// Does something with a snapshot, which lies at a path of the host or whose files are here.
    fn snapshot(
        &mut self,
        place: Place,
        action: fn(&mut Running, &SnapshotFiles, &Status) -> Result<(), SnapshotError>,
    ) -> Result<Reply, SessionError> {
        let running = self.running.as_mut().ok_or(SessionError::NoMachine)?;
        let files = match (place.path, place.files) {
            (Some(path), files) if files.is_empty() => {
                SnapshotFiles::At(running.find(&path).map_err(SessionError::Path)?)
            }
            (None, files) => SnapshotFiles::Passed(files),
            (Some(_), _) => return Err(SnapshotError::Passed(FILES_MAX).into()),
        };
        action(running, &files, &self.status)?;
        Ok(Reply::OK)
    }

    fn at_checkpoint(
        &mut self,
        action: fn(&mut Running, &Status) -> Result<(), CheckpointError>,
    ) -> Result<Reply, SessionError> {
        action(self.running.as_mut().ok_or(SessionError::NoMachine)?, &self.status)?;
        Ok(Reply::OK)
    }

    /// Does something at a path of the host.
    fn at(
        &mut self,
        path: &Path,
        action: impl FnOnce(&mut Running, &Path, &Status) -> Result<(), SnapshotError>,
    ) -> Result<Reply, SessionError> {
        let running = self.running.as_mut().ok_or(SessionError::NoMachine)?;
        let path = running.find(path).map_err(SessionError::Path)?;
        action(running, &path, &self.status)?;
        Ok(Reply::OK)
    }

    fn tell_status(&self) {
        let live = self.running.as_ref().map(|running| running.live.clone());
        self.status.set(self.metrics(), live.unwrap_or_default());
    }

    fn metrics(&self) -> Metrics {
        self.running.as_ref().map_or(Metrics::NONE, Running::metrics)
    }

    fn running(&mut self) -> Result<&mut Running, SessionError> {
        self.running.as_mut().ok_or(SessionError::NoMachine)
    }
}
