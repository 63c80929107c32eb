//! A network for tests: a namespace with interfaces of its own, and a guest's network driver.

use super::super::receive::HEADER_BYTES;
use super::super::{Datapath, Net, NetConfig};
use crate::virtio::limiter::Limits;
use crate::virtio::testing::{Piece, TestGuest};
use crate::virtio::{FEATURE_VERSION_1, GuestRam};
use fluxvm_sys::namespaces::own_network;
use fluxvm_sys::tap::Tap;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};

pub const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const HOST_ADDRESS: [u8; 4] = [10, 9, 0, 1];
pub const GUEST_ADDRESS: [u8; 4] = [10, 9, 0, 2];

const MOMENT: Duration = Duration::from_millis(300);

/// Runs a test in a network namespace that ends with it; says so and does nothing where the host cannot.
pub fn in_lab(test: impl FnOnce() + Send + 'static) {
    let ended = std::thread::spawn(move || {
        if own_network().is_err() || Tap::attach("probe", false).is_err() {
            return eprintln!("missing host capability: tap devices (/dev/net/tun) in a network namespace");
        }
        test();
    });
    if let Err(panic) = ended.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` in the namespace of this thread.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A tap device that is up, with an address of the host and the guest as neighbour. Without IPv6, in whose name the kernel
/// sends frames by itself.
pub fn tap(name: &str) -> Tap {
    let tap = Tap::attach(name, false).expect("a tap device");
    ip(&format!("link set {name} addrgenmode none"));
    ip(&format!("link set {name} address 02:00:00:00:00:01"));
    ip(&format!("link set {name} up"));
    ip(&format!("addr add 10.9.0.1/24 dev {name}"));
    ip(&format!("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev {name}"));
    tap
}

pub fn config(taps: Vec<Tap>) -> NetConfig {
    NetConfig {
        taps,
        mac: GUEST_MAC,
        mtu_bytes: None,
        receive_limits: Limits::default(),
        transmit_limits: Limits::default(),
    }
}

/// What a device with one tap gets.
pub fn vhost_descriptors() -> io::Result<Vec<File>> {
    File::options().read(true).write(true).open("/dev/vhost-net").map(|device| vec![device])
}

/// Memory of a guest, and a device for it whose frames the host's kernel is to move.
pub fn vhost_device(config: NetConfig) -> (Arc<GuestRam>, Net) {
    let memory = Arc::new(TestGuest::fresh_memory());
    let mut device = Net::new(config).expect("a device");
    device.use_vhost(vhost_descriptors(), &memory);
    (memory, device)
}

/// The header in front of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    pub flags: u8,
    pub segmentation: u8,
    pub header_bytes: u16,
    pub segment_bytes: u16,
    pub checksum_start: u16,
    pub checksum_offset: u16,
    pub buffers: u16,
}

impl FrameHeader {
    fn encode(self) -> Vec<u8> {
        let numbers = [self.header_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset, self.buffers];
        let mut bytes = vec![self.flags, self.segmentation];
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            segmentation: bytes[1],
            header_bytes: number(2),
            segment_bytes: number(4),
            checksum_start: number(6),
            checksum_offset: number(8),
            buffers: number(10),
        }
    }
}

/// A guest's network driver with one pair of queues.
pub struct Driver {
    pub machine: TestGuest,
    buffers: HashMap<u16, Piece>,
    send_buffer: u64,
}

impl Driver {
    /// A running driver with these features and so many buffers for frames.
    pub fn new(config: NetConfig, features: u64, buffers: usize, buffer_bytes: u32) -> Self {
        let device = Net::new(config).expect("a device");
        Self::start(TestGuest::new(Box::new(device)), features, buffers, buffer_bytes)
    }

    /// The same, over the host's kernel where it can.
    pub fn over_vhost(config: NetConfig, features: u64, buffers: usize, buffer_bytes: u32) -> (Self, Datapath) {
        let (memory, device) = vhost_device(config);
        let datapath = device.datapath();
        let machine = TestGuest::with_memory(memory, Box::new(device));
        (Self::start(machine, features, buffers, buffer_bytes), datapath)
    }

    fn start(mut machine: TestGuest, features: u64, buffers: usize, buffer_bytes: u32) -> Self {
        machine.start(features | FEATURE_VERSION_1);
        let send_buffer = machine.allocate(80_000);
        let mut driver = Self { machine, buffers: HashMap::new(), send_buffer };
        for _ in 0..buffers {
            let buffer = driver.machine.room(buffer_bytes);
            driver.offer(buffer);
        }
        driver.machine.kick(0);
        driver
    }

    pub fn offer(&mut self, buffer: Piece) {
        let head = self.machine.push(0, &[buffer]);
        self.buffers.insert(head, buffer);
    }

    /// The next frame that comes in a moment, whoever sent it; its buffers are offered again.
    pub fn any_frame(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        let end = Instant::now() + MOMENT;
        let first = loop {
            match self.machine.used(0) {
                Some(used) => break used,
                None if Instant::now() > end => return None,
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        };
        let mut bytes = self.open(first);
        let header = FrameHeader::decode(&bytes);
        for _ in 1..header.buffers {
            let used = self.machine.used(0).expect("all buffers of a frame come together");
            bytes.extend(self.open(used));
        }
        self.machine.kick(0);
        Some((header, bytes.split_off(HEADER_BYTES as usize)))
    }

    /// The next frame to the guest; others, which the kernel sends by itself, are passed over.
    pub fn frame(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        loop {
            let frame = self.any_frame()?;
            if frame.1[..6] == GUEST_MAC {
                return Some(frame);
            }
        }
    }

    fn open(&mut self, (head, bytes): (u16, u32)) -> Vec<u8> {
        let buffer = self.buffers.remove(&head).expect("a buffer that was offered");
        let content = self.machine.bytes(Piece { bytes, ..buffer });
        self.offer(buffer);
        content
    }

    /// Sends a frame in two pieces and waits until its buffers are back.
    pub fn send(&mut self, header: FrameHeader, frame: &[u8]) {
        self.offer_frame(header, frame);
        self.machine.kick(1);
        self.machine.wait_used(1);
    }

    /// Offers a frame without notifying.
    pub fn offer_frame(&mut self, header: FrameHeader, frame: &[u8]) {
        let bytes = header.encode();
        self.machine.memory.write_slice(&bytes, GuestAddress(self.send_buffer)).expect("in memory");
        let body = self.send_buffer + 64;
        self.machine.memory.write_slice(frame, GuestAddress(body)).expect("in memory");
        let head = Piece { address: self.send_buffer, bytes: bytes.len() as u32, writable: false };
        let body = Piece { address: body, bytes: frame.len() as u32, writable: false };
        self.machine.push(1, &[head, body]);
    }
}

/// Builds and checks frames.
pub mod frames {
    use super::{FrameHeader, GUEST_ADDRESS, GUEST_MAC, HOST_ADDRESS, HOST_MAC};

    pub const LINK_BYTES: usize = 14;
    const IP_BYTES: usize = 20;
    const UDP: u8 = 17;
    const TCP: u8 = 6;
    const NEEDS_CHECKSUM: u8 = 1;
    const SEGMENTS_TCP4: u8 = 1;

    /// A datagram from the guest whose checksum the device finishes.
    pub fn datagram(port: u16, payload: &[u8]) -> (FrameHeader, Vec<u8>) {
        let mut datagram = [&5000u16.to_be_bytes()[..], &port.to_be_bytes()].concat();
        datagram.extend((8 + payload.len() as u16).to_be_bytes());
        datagram.extend([0; 2]);
        datagram.extend(payload);
        (partial(6), packet(HOST_MAC, UDP, datagram, 6))
    }

    /// A long segment from one guest to another, to be cut by someone on the way.
    pub fn segment(payload: &[u8]) -> (FrameHeader, Vec<u8>) {
        let mut segment = [&5000u16.to_be_bytes()[..], &6000u16.to_be_bytes()].concat();
        segment.extend(1000u32.to_be_bytes());
        segment.extend([0, 0, 0, 0, 0x50, 0x18, 0x10, 0, 0, 0, 0, 0]);
        segment.extend(payload);
        let header_bytes = (LINK_BYTES + IP_BYTES + 20) as u16;
        let header = FrameHeader { segmentation: SEGMENTS_TCP4, header_bytes, segment_bytes: 1448, ..partial(16) };
        (header, packet(GUEST_MAC, TCP, segment, 16))
    }

    fn partial(checksum_offset: u16) -> FrameHeader {
        let checksum_start = (LINK_BYTES + IP_BYTES) as u16;
        FrameHeader { flags: NEEDS_CHECKSUM, checksum_start, checksum_offset, ..FrameHeader::default() }
    }

    /// An IPv4 packet whose transport checksum covers only the addresses, as a sender leaves it that has it finished.
    fn packet(to: [u8; 6], protocol: u8, mut content: Vec<u8>, checksum_offset: usize) -> Vec<u8> {
        let pseudo = pseudo_header(&GUEST_ADDRESS, &HOST_ADDRESS, protocol, content.len());
        content[checksum_offset..checksum_offset + 2].copy_from_slice(&(!sum(&pseudo)).to_be_bytes());
        let mut ip = vec![0x45, 0];
        ip.extend(((IP_BYTES + content.len()) as u16).to_be_bytes());
        ip.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
        ip.extend(GUEST_ADDRESS);
        ip.extend(HOST_ADDRESS);
        let checksum = sum(&ip).to_be_bytes();
        ip[10..12].copy_from_slice(&checksum);
        let from = [2, 0, 0, 0, 0, 9];
        [&to[..], &from[..], &[8, 0][..], &ip[..], &content[..]].concat()
    }

    fn pseudo_header(from: &[u8], to: &[u8], protocol: u8, bytes: usize) -> Vec<u8> {
        [from, to, &[0, protocol][..], &(bytes as u16).to_be_bytes()[..]].concat()
    }

    /// The checksum of the internet protocols over these bytes.
    fn sum(bytes: &[u8]) -> u16 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        let mut total: u32 = bytes.chunks(2).map(word).sum();
        while total > 0xFFFF {
            total = (total >> 16) + (total & 0xFFFF);
        }
        !(total as u16)
    }

    /// Whether the transport checksum of an IPv4 frame is finished and right.
    pub fn checksum_is_right(frame: &[u8]) -> bool {
        let ip = &frame[LINK_BYTES..];
        let content = transport(frame);
        let pseudo = pseudo_header(&ip[12..16], &ip[16..20], ip[9], content.len());
        sum(&[&pseudo, content].concat()) == 0
    }

    fn transport(frame: &[u8]) -> &[u8] {
        let ip = &frame[LINK_BYTES..];
        let bytes = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        &ip[IP_BYTES..bytes]
    }

    /// What a datagram carries.
    pub fn datagram_payload(frame: &[u8]) -> &[u8] {
        &transport(frame)[8..]
    }

    /// The sequence number and what a segment carries.
    pub fn segment_payload(frame: &[u8]) -> (u32, &[u8]) {
        let segment = transport(frame);
        let header_bytes = usize::from(segment[12] >> 4) * 4;
        (u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]), &segment[header_bytes..])
    }
}
