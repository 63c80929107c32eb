//! A machine with all that it is controlled by: how it is made of what is prepared, and what can be done with it as a whole.

use crate::checkpoint::{Checkpoint, CheckpointError, Held};
use crate::config::{BootConfig, ConfigError, opening};
use crate::devices::{self, Backends, Live};
use crate::disk::RootDisk;
use crate::memory::Memory;
use crate::paths::Paths;
use crate::prepared::{Prepared, device};
use crate::protocol::Metrics;
use crate::serial::{Client, Output, SerialSocket};
use crate::service::Status;
use crate::snapshot::{SnapshotError, Subject};
use crate::snapshot_files::SnapshotFiles;
use crate::socket::PlacedSocket;
use fluxvm_engine::arch::layout::DEFAULT_COMMAND_LINE;
use fluxvm_engine::machine::{Ends, Machine, MachineConfig};
use fluxvm_engine::memory::{GuestRam, Mapping};
use fluxvm_engine::virtio::balloon::BalloonControl;
use fluxvm_engine::virtio::block::BlockControl;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// The snapshot in the directory of a migration.
pub(crate) const BUNDLED: &str = "machine";

/// See the head of this file. The sockets go first, so that nobody types into what ends.
pub(crate) struct Running {
    _serial: Option<SerialSocket>,
    _console: Option<PlacedSocket>,
    pub(crate) machine: Machine,
    memory: Memory,
    root: Option<RootDisk>,
    pub(crate) root_control: Option<BlockControl>,
    pub(crate) live: Live,
    pub(crate) balloon: BalloonControl,
    checkpoint: Option<Checkpoint>,
    /// vCPUs that the guest was given.
    pub(crate) vcpus: u32,
    writes_elsewhere: bool,
    is_jailed: bool,
    paths: Paths,
}

impl Running {
    /// Makes a machine that has not run yet, with all its threads.
    ///
    /// # Errors
    /// [`ConfigError`]; nothing of it is left then.
    pub(crate) fn make(prepared: Prepared, ends: Ends) -> Result<Self, ConfigError> {
        let Prepared { config, paths, is_jailed, .. } = &prepared;
        let (config, paths, is_jailed) = (config.clone(), paths.clone(), *is_jailed);
        let memory = Memory::new(prepared.ram.try_clone().map_err(ConfigError::Memory)?, prepared.page_map);
        let mut ram = GuestRam::new(prepared.ram, config.memory_mib * MIB, Mapping::Shared)?;
        ram.add_images(&prepared.pmem)?;
        let root = prepared.root.map(|root| RootDisk::open(root, &config, &paths)).transpose()?;
        let backends = Backends {
            root: root.as_ref().map(RootDisk::shared),
            config_disk: prepared.config_disk,
            data_disks: prepared.data_disks,
            taps: prepared.taps,
            vhost: prepared.vhost,
        };
        let devices = devices::make(backends, &config, &paths, &ram)?;
        let client = Client::default();
        let socket = config.serial_uds.as_deref().map(|path| serial_socket(path, &paths)).transpose()?;
        let description = MachineConfig {
            kvm: Some(prepared.kvm),
            ram,
            vcpus: config.vcpus_made(),
            kernel: prepared.kernel,
            initrd: prepared.initrd,
            command_line: command_line(&config),
            serial: Box::new(Output { log: prepared.console, client: client.clone() }),
            devices: devices.all,
        };
        let machine = Machine::new(description, ends)?;
        let serial = socket.map(|socket| SerialSocket::start(socket, client, Arc::clone(machine.serial())));
        Ok(Self {
            _serial: serial.transpose().map_err(device("serial_uds"))?,
            _console: devices.console,
            machine,
            memory,
            root,
            root_control: devices.root,
            live: devices.live,
            balloon: devices.balloon,
            checkpoint: None,
            vcpus: config.vcpus,
            writes_elsewhere: config.data_disks.iter().any(|disk| !disk.read_only),
            is_jailed,
            paths,
        })
    }

    /// The machine runs: what was made for it stays.
    pub(crate) fn keep(&mut self) {
        self.root.iter_mut().for_each(RootDisk::keep);
    }

    fn subject<'a>(&'a mut self, status: &'a Status) -> Subject<'a> {
        let Self { machine, memory, root, balloon, vcpus, writes_elsewhere, .. } = self;
        let (root, writes_elsewhere) = (root.as_ref(), *writes_elsewhere);
        Subject { machine, memory, root, balloon, vcpus, writes_elsewhere, status }
    }

    pub(crate) fn save(&mut self, files: &SnapshotFiles, status: &Status) -> Result<(), SnapshotError> {
        self.without_checkpoint()?;
        self.subject(status).save(files)
    }

    fn held<'a>(&'a mut self, status: &'a Status) -> Held<'a> {
        let Self { machine, memory, root, balloon, vcpus, .. } = self;
        Held { machine, memory, root: root.as_ref(), balloon, vcpus, status }
    }

    pub(crate) fn checkpoint(&mut self, status: &Status) -> Result<(), CheckpointError> {
        if self.checkpoint.is_some() {
            return Err(CheckpointError::Exists);
        }
        if self.writes_elsewhere {
            return Err(CheckpointError::DataDisks);
        }
        self.checkpoint = Some(self.held(status).take()?);
        Ok(())
    }

    pub(crate) fn revert(&mut self, status: &Status) -> Result<(), CheckpointError> {
        let checkpoint = self.checkpoint.take().ok_or(CheckpointError::None)?;
        let reverted = self.held(status).revert(&checkpoint);
        self.checkpoint = reverted.is_err().then_some(checkpoint);
        reverted
    }

    pub(crate) fn commit(&mut self, status: &Status) -> Result<(), CheckpointError> {
        let mut checkpoint = self.checkpoint.take().ok_or(CheckpointError::None)?;
        let committed = self.held(status).commit(&mut checkpoint);
        self.checkpoint = committed.is_err().then_some(checkpoint);
        committed
    }

    /// Saves into a directory of its own.
    pub(crate) fn export(&mut self, directory: &Path, status: &Status) -> Result<(), SnapshotError> {
        let failed = |error| SnapshotError::File(directory.to_owned(), error);
        DirBuilder::new().mode(0o700).create(directory).map_err(failed)?;
        let saved = self.save(&SnapshotFiles::At(directory.join(BUNDLED)), status);
        if saved.is_err() {
            let _ = std::fs::remove_dir(directory);
        }
        saved
    }

    pub(crate) fn restore(&mut self, files: &SnapshotFiles, status: &Status) -> Result<(), SnapshotError> {
        self.without_checkpoint()?;
        self.subject(status).restore(files)
    }

    /// A snapshot is of what lasts, and a checkpoint of what was before it.
    fn without_checkpoint(&self) -> Result<(), SnapshotError> {
        if self.checkpoint.is_some() { Err(SnapshotError::Checkpoint) } else { Ok(()) }
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let mut metrics = Metrics {
            memory_mib: self.machine.ram().bytes() / MIB,
            vcpus: u64::from(self.vcpus),
            lifecycle: self.machine.lifecycle().word(),
            max_vcpus: self.machine.vcpus() as u64,
            jailed: self.is_jailed,
            ..Metrics::NONE
        };
        self.live.tell(&mut metrics);
        metrics
    }

    /// Where the path of a request is.
    ///
    /// # Errors
    /// [`ConfigError::Outside`].
    pub(crate) fn find(&self, path: &Path) -> Result<PathBuf, ConfigError> {
        self.paths.find("path", path)
    }
}

fn serial_socket(path: &Path, paths: &Paths) -> Result<PlacedSocket, ConfigError> {
    PlacedSocket::bind(&paths.find("serial_uds", path)?).map_err(opening("serial_uds", path))
}

/// A guest that may get more vCPUs is told to begin with fewer than it finds.
fn command_line(config: &BootConfig) -> String {
    let line = config.kernel_args.as_deref().unwrap_or(DEFAULT_COMMAND_LINE);
    if config.vcpus_made() > config.vcpus { format!("{line} maxcpus={}", config.vcpus) } else { line.to_owned() }
}
