//! The virtio devices of a prepared machine, in the order in which the guest finds them.

use crate::config::{BootConfig, ConfigError, opening};
use crate::limits::limits;
use crate::paths::Paths;
use crate::prepared::device;
use crate::protocol::Metrics;
use crate::socket::PlacedSocket;
use fluxvm_engine::memory::{GuestRam, Mapping};
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::balloon::{Balloon, BalloonControl};
use fluxvm_engine::virtio::block::{Block, BlockControl, BlockOptions};
use fluxvm_engine::virtio::console::{Console, ConsoleOptions};
use fluxvm_engine::virtio::disk::{Disk, SharedDisk};
use fluxvm_engine::virtio::limiter::Limits;
use fluxvm_engine::virtio::net::{Datapath, Net, NetConfig};
use fluxvm_engine::virtio::pmem::Pmem;
use fluxvm_engine::virtio::rng::Rng;
use fluxvm_engine::virtio::vsock::Vsock;
use fluxvm_sys::tap::Tap;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// The guest's address where the configuration names none: the reference's.
const DEFAULT_MAC: [u8; 6] = [0x02, 0x00, 0xAC, 0x10, 0x00, 0x02];
const DEFAULT_GUEST_CID: u64 = 3;

/// What devices are made of.
pub(crate) struct Backends {
    /// The disk that the guest boots from.
    pub(crate) root: Option<SharedDisk>,
    /// The disk with the guest agent's configuration.
    pub(crate) config_disk: Option<File>,
    /// Further disks, in the order of the configuration.
    pub(crate) data_disks: Vec<File>,
    /// The network.
    pub(crate) taps: Vec<Tap>,
    /// The kernel's way of moving its frames, or why there is none.
    pub(crate) vhost: io::Result<Vec<File>>,
}

/// What changes of devices with what the guest does.
#[derive(Clone, Default)]
pub(crate) struct Live {
    /// Who moves the frames of the network, if there is one.
    datapath: Option<Datapath>,
    disks: Vec<BlockControl>,
}

impl Live {
    /// Puts what is so now into the metrics.
    pub(crate) fn tell(&self, metrics: &mut Metrics) {
        metrics.blk_waiting_for_room = self.disks.iter().map(|disk| u64::from(disk.waiting_for_room())).sum();
        metrics.net_datapath = self.datapath.as_ref().map(Datapath::word);
        metrics.net_datapath_reason = self.datapath.as_ref().and_then(Datapath::why_not);
    }
}

/// Devices, and what the host controls them by.
pub(crate) struct Devices {
    /// For the machine.
    pub(crate) all: Vec<Box<dyn VirtioDevice>>,
    /// For requests to give memory back.
    pub(crate) balloon: BalloonControl,
    /// For limits of the disk that the guest boots from.
    pub(crate) root: Option<BlockControl>,
    /// What is told of them.
    pub(crate) live: Live,
    /// Where programs reach the console, for as long as this is kept.
    pub(crate) console: Option<PlacedSocket>,
}

/// Makes the devices and the sockets of vsock and console.
///
/// # Errors
/// [`ConfigError`] of the first that cannot be made.
pub(crate) fn make(
    backends: Backends,
    config: &BootConfig,
    paths: &Paths,
    ram: &GuestRam,
) -> Result<Devices, ConfigError> {
    let mut all: Vec<Box<dyn VirtioDevice>> = Vec::new();
    let (mut root_control, mut live, mut console) = (None, Live::default(), None);
    let Backends { root, config_disk, data_disks, taps, vhost } = backends;
    if let Some(disk) = root {
        let limits = limits(config.blk_mbit_limit, config.blk_ops_limit);
        let device = block("rootfs", disk, "root".to_owned(), limits)?;
        root_control = Some(device.control());
        live.disks.push(device.control());
        all.push(Box::new(device));
    }
    if let Some(file) = config_disk {
        all.push(Box::new(raw_disk("config_disk", file, true, "config".to_owned())?));
    }
    for (index, (file, disk)) in data_disks.into_iter().zip(&config.data_disks).enumerate() {
        let device = raw_disk("data_disks", file, disk.read_only, format!("data{index}"))?;
        live.disks.push(device.control());
        all.push(Box::new(device));
    }
    all.extend(ram.images().iter().map(|image| Box::new(Pmem::new(image)) as Box<dyn VirtioDevice>));
    if !taps.is_empty() {
        let mut device = net(config, taps)?;
        device.use_vhost(vhost, &Arc::new(ram.whole().clone()));
        live.datapath = Some(device.datapath());
        all.push(Box::new(device));
    }
    if let Some(path) = &config.vsock_uds {
        let cid = config.vsock_cid.map_or(DEFAULT_GUEST_CID, u64::from);
        let vsock = Vsock::new(cid, &paths.find("vsock_uds", path)?).map_err(device("vsock_uds"))?;
        all.push(Box::new(vsock));
    }
    if let Some(path) = &config.hvc_uds {
        let socket = PlacedSocket::bind(&paths.find("hvc_uds", path)?).map_err(opening("hvc_uds", path))?;
        let listener = Some(socket.listener().map_err(device("hvc_uds"))?);
        all.push(Box::new(Console::new(ConsoleOptions { log: None, listener }).map_err(device("hvc_uds"))?));
        console = Some(socket);
    }
    all.push(Box::new(Rng::new(Limits::default()).map_err(device("source of randomness"))?));
    let balloon = Balloon::new(ram.bytes(), Mapping::Shared).map_err(device("balloon"))?;
    let control = balloon.control();
    all.push(Box::new(balloon));
    Ok(Devices { all, balloon: control, root: root_control, live, console })
}

fn raw_disk(field: &'static str, file: File, read_only: bool, serial: String) -> Result<Block, ConfigError> {
    let disk = Disk::open(file, read_only).map_err(device(field))?;
    block(field, disk.shared(), serial, Limits::default())
}

fn block(field: &'static str, disk: SharedDisk, serial: String, limits: Limits) -> Result<Block, ConfigError> {
    Block::new(disk, &BlockOptions { serial, limits, ..BlockOptions::default() }).map_err(device(field))
}

fn net(config: &BootConfig, taps: Vec<Tap>) -> Result<Net, ConfigError> {
    let mac = config.mac.as_deref().map_or(Ok(DEFAULT_MAC), parse_mac)?;
    let limits = limits(config.net_mbit_limit, config.net_pps_limit);
    let config = NetConfig { taps, mac, mtu_bytes: None, receive_limits: limits, transmit_limits: limits };
    Net::new(config).map_err(device("tap"))
}

/// Six hexadecimal numbers with colons between them.
fn parse_mac(text: &str) -> Result<[u8; 6], ConfigError> {
    let wrong = || ConfigError::Field("mac", "must be six hexadecimal numbers of two digits with colons between them");
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
