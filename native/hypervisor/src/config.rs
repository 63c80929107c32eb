//! The boot configuration: what a caller may say about a machine, with its limits, and the machine made of it.

use crate::devices;
use fluxvm_engine::error::Error as EngineError;
use fluxvm_engine::machine::MachineConfig;
use fluxvm_engine::memory::{GuestRam, Mapping};
use fluxvm_engine::virtio::balloon::BalloonControl;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Deserialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A configuration is a few paths and numbers; more is no configuration.
pub const CONFIG_BYTES_MAX: u64 = 64 << 10;

const MIB: u64 = 1 << 20;
const DEFAULT_COMMAND_LINE: &str = "console=ttyS0 reboot=k panic=1 root=/dev/vda rw";

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that the configuration names cannot be used.
    #[error("{what} {path} cannot be opened")]
    Open {
        /// What the file is.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A value that makes no sense.
    #[error("{0}")]
    Value(&'static str),
    /// Memory for the guest cannot be had.
    #[error("memory for the guest cannot be made")]
    Memory(#[source] io::Error),
    /// A device cannot be made.
    #[error("the {0} cannot be made")]
    Device(&'static str, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What a machine is made of.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootConfig {
    /// An ELF kernel with a PVH entry, or a bzImage.
    pub kernel: PathBuf,
    /// The disk, raw.
    pub rootfs: Option<PathBuf>,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// RAM in MiB.
    pub memory_mib: u64,
    /// vCPUs.
    pub vcpus: u32,
    /// The whole command line of the kernel.
    pub kernel_args: Option<String>,
    /// Where the first serial port prints; otherwise to the standard output.
    pub console: Option<PathBuf>,
    /// The tap device of the network card.
    pub tap: Option<String>,
    /// The address of the network card.
    pub mac: Option<String>,
    /// The context id of the guest, 3 where nothing else is said.
    pub vsock_cid: Option<u32>,
    /// The unix socket by which programs of the host reach the guest, and with `_PORT` the other way.
    pub vsock_uds: Option<PathBuf>,
    /// Bandwidth of the network each way, in Mbit a second.
    pub net_mbit_limit: Option<u32>,
    /// Packets each way a second.
    pub net_pps_limit: Option<u32>,
    /// Bandwidth of the disk, in Mbit a second.
    pub blk_mbit_limit: Option<u32>,
    /// Operations of the disk a second.
    pub blk_ops_limit: Option<u32>,
    /// Which engine to use; here only to be checked.
    #[serde(default, rename = "engine")]
    _engine: Engine,
}

/// Engines by name.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The one of this program.
    #[default]
    Kvm,
}

impl BootConfig {
    /// Opens all that the configuration names and describes the machine; also returns what the balloon is controlled by.
    ///
    /// # Errors
    /// [`ConfigError`] of the first thing that is wrong.
    pub fn open(&self) -> Result<(MachineConfig, BalloonControl), ConfigError> {
        let kernel = open("the kernel", &self.kernel, OpenOptions::new().read(true))?;
        let initrd =
            self.initrd.as_deref().map(|path| open("the initial RAM disk", path, OpenOptions::new().read(true)));
        let bytes = self.memory_mib.checked_mul(MIB).ok_or(ConfigError::Value("memory_mib is too large"))?;
        let ram = GuestRam::new(anonymous_memory(bytes)?, bytes, Mapping::Shared)?;
        let devices = devices::make(self, bytes)?;
        let config = MachineConfig {
            kvm: None,
            ram,
            vcpus: self.vcpus,
            kernel,
            initrd: initrd.transpose()?,
            command_line: self.kernel_args.clone().unwrap_or_else(|| DEFAULT_COMMAND_LINE.to_owned()),
            serial: self.serial()?,
            devices: devices.all,
        };
        Ok((config, devices.balloon))
    }

    fn serial(&self) -> Result<Box<dyn Write + Send>, ConfigError> {
        match &self.console {
            Some(path) => Ok(Box::new(open("the console log", path, OpenOptions::new().append(true).create(true))?)),
            None => Ok(Box::new(io::stdout())),
        }
    }
}

/// Opens a file and says which one it was when that fails.
pub fn open(what: &'static str, path: &Path, options: &OpenOptions) -> Result<File, ConfigError> {
    options.open(path).map_err(|source| ConfigError::Open { what, path: path.to_owned(), source })
}

fn anonymous_memory(bytes: u64) -> Result<File, ConfigError> {
    let memory =
        memfd_create("guest-memory", MemfdFlags::CLOEXEC).map_err(|errno| ConfigError::Memory(errno.into()))?;
    let memory = File::from(memory);
    memory.set_len(bytes).map_err(ConfigError::Memory)?;
    Ok(memory)
}
