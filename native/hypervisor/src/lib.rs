//! One virtual machine and its control protocol, for a process of its own or for threads of another: a [`Service`] boots
//! what a [`BootConfig`] describes and does what is asked on sockets, until the machine ends.

#![deny(unsafe_code)]

mod checkpoint;
mod config;
mod connection;
mod control;
mod devices;
mod disk;
mod files;
mod hotplug;
mod limits;
mod logs;
mod memory;
mod page_map;
mod paths;
mod prepared;
mod protocol;
mod running;
mod serial;
mod service;
mod session;
mod snapshot;
mod snapshot_files;
mod socket;
mod sparse;

pub use config::{BootConfig, CONFIG_BYTES_MAX, ConfigError, DataDisk, DiskFormat, JailConfig, JailLimits};
pub use control::Control;
pub use fluxvm_engine::vcpu::End;
pub use fluxvm_jail::JailError;
pub use prepared::Prepared;
pub use service::{Service, Stopper};
pub use session::SessionError;
pub use socket::PlacedSocket;
