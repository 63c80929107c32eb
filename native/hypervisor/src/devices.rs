//! The virtio devices of a configuration, in the order in which the guest finds them.

use crate::config::{BootConfig, ConfigError, open};
use fluxvm_engine::memory::Mapping;
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::balloon::{Balloon, BalloonControl};
use fluxvm_engine::virtio::block::{Block, BlockOptions};
use fluxvm_engine::virtio::disk::Disk;
use fluxvm_engine::virtio::limiter::{Limits, Rate};
use fluxvm_engine::virtio::net::{Net, NetConfig};
use fluxvm_engine::virtio::rng::Rng;
use fluxvm_engine::virtio::vsock::Vsock;
use fluxvm_sys::tap::Tap;
use std::fs::OpenOptions;

/// The guest's address where the configuration names none: the reference's.
const DEFAULT_MAC: [u8; 6] = [0x02, 0x00, 0xAC, 0x10, 0x00, 0x02];
const DEFAULT_GUEST_CID: u64 = 3;
const BYTES_PER_MBIT: u64 = 1_000_000 / 8;

/// Devices, and what the host controls them by.
pub struct Devices {
    /// For the machine.
    pub all: Vec<Box<dyn VirtioDevice>>,
    /// For requests to give memory back.
    pub balloon: BalloonControl,
}

/// Makes the devices; sockets and files that they are reached by are made, too.
///
/// # Errors
/// [`ConfigError`] of the first that cannot be made.
pub fn make(config: &BootConfig, memory_bytes: u64) -> Result<Devices, ConfigError> {
    let mut all: Vec<Box<dyn VirtioDevice>> = Vec::new();
    if config.rootfs.is_some() {
        all.push(Box::new(disk(config)?));
    }
    if let Some(tap) = &config.tap {
        all.push(Box::new(net(config, tap)?));
    }
    if let Some(path) = &config.vsock_uds {
        let cid = config.vsock_cid.map_or(DEFAULT_GUEST_CID, u64::from);
        let vsock = Vsock::new(cid, path).map_err(|error| ConfigError::Device("vsock", error.into()))?;
        all.push(Box::new(vsock));
    }
    let source =
        Rng::new(Limits::default()).map_err(|error| ConfigError::Device("source of randomness", error.into()))?;
    all.push(Box::new(source));
    let balloon = Balloon::new(memory_bytes, Mapping::Shared);
    let balloon = balloon.map_err(|error| ConfigError::Device("balloon", error.into()))?;
    let control = balloon.control();
    all.push(Box::new(balloon));
    Ok(Devices { all, balloon: control })
}

fn disk(config: &BootConfig) -> Result<Block, ConfigError> {
    let path = config.rootfs.as_deref().ok_or(ConfigError::Value("there is no disk"))?;
    let file = open("the disk", path, OpenOptions::new().read(true).write(true))?;
    let disk = Disk::open(file, false).map_err(|error| ConfigError::Device("disk", error.into()))?;
    let limits = Limits { bytes: megabits(config.blk_mbit_limit), operations: operations(config.blk_ops_limit) };
    let options = BlockOptions { serial: "root".to_owned(), limits, ..BlockOptions::default() };
    Block::new(disk.shared(), &options).map_err(|error| ConfigError::Device("disk", error.into()))
}

fn net(config: &BootConfig, tap: &str) -> Result<Net, ConfigError> {
    let mac = config.mac.as_deref().map_or(Ok(DEFAULT_MAC), parse_mac)?;
    let tap =
        Tap::attach(tap, false).map_err(|errno| ConfigError::Device("tap", Box::new(std::io::Error::from(errno))))?;
    let limits = Limits { bytes: megabits(config.net_mbit_limit), operations: operations(config.net_pps_limit) };
    let config = NetConfig { taps: vec![tap], mac, mtu_bytes: None, receive_limits: limits, transmit_limits: limits };
    Net::new(config).map_err(|error| ConfigError::Device("network device", error.into()))
}

/// A second's worth may gather.
fn megabits(limit: Option<u32>) -> Option<Rate> {
    limit.map(|megabits| u64::from(megabits) * BYTES_PER_MBIT).map(|bytes| Rate { per_second: bytes, burst: bytes })
}

fn operations(limit: Option<u32>) -> Option<Rate> {
    limit.map(u64::from).map(|operations| Rate { per_second: operations, burst: operations })
}

/// Six hexadecimal numbers with colons between them.
fn parse_mac(text: &str) -> Result<[u8; 6], ConfigError> {
    let wrong = || ConfigError::Value("mac is not six hexadecimal numbers of two digits with colons between them");
    let parts: Vec<_> = text.split(':').collect();
    let bytes = parts.iter().map(|part| match part.len() {
        2 => u8::from_str_radix(part, 16).map_err(|_| wrong()),
        _ => Err(wrong()),
    });
    bytes.collect::<Result<Vec<_>, _>>()?.try_into().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_six_numbers_of_two_digits() {
        assert_eq!(parse_mac("02:00:ac:10:00:FF").unwrap(), [2, 0, 0xAC, 0x10, 0, 0xFF]);
        for wrong in
            ["", "02:00:ac:10:00", "02:00:ac:10:00:02:03", "2:0:ac:10:0:2", "02:00:ac:10:00:g2", "+2:00:ac:10:00:02x"]
        {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
    }
}
