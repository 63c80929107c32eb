//! Devices that lead out of the machine, on this host's KVM: a tap, sockets, and a file as memory. A guest of our own does what
//! its host tells it.

#[allow(dead_code, reason = "each test uses a part of the harness")]
mod guest;

use fluxvm_engine::virtio::limiter::Limits;
use fluxvm_engine::virtio::net::{Net, NetConfig};
use fluxvm_engine::virtio::pmem::Pmem;
use fluxvm_engine::virtio::vsock::Vsock;
use fluxvm_sys::namespaces::own_network;
use fluxvm_sys::tap::Tap;
use guest::driver::{BUFFERS, Driver, PATIENCE};
use guest::{can_run, guest_ram, ram_file};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const ROOM: u64 = BUFFERS + 0x1_0000;
const NET_HEADER_BYTES: usize = 12;
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

/// Who has 10.9.0.1? Tell 10.9.0.2.
fn arp_question() -> Vec<u8> {
    let broadcast = [0xFF; 6];
    let kind = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    [&[0; NET_HEADER_BYTES][..], &broadcast, &GUEST_MAC, &kind, &GUEST_MAC, &[10, 9, 0, 2], &[0; 6], &[10, 9, 0, 1]]
        .concat()
}

#[test]
fn a_frame_leaves_by_a_tap_and_its_answer_comes_back() {
    if !can_run() {
        return;
    }
    let test = || {
        if own_network().is_err() {
            return eprintln!("missing host capability: network namespaces");
        }
        let Ok(tap) = Tap::attach("tap0", false) else {
            return eprintln!("missing host capability: tap devices (/dev/net/tun)");
        };
        ip("link set tap0 addrgenmode none");
        ip("link set tap0 up");
        ip("addr add 10.9.0.1/24 dev tap0");
        let limits = Limits::default();
        let config = NetConfig {
            taps: vec![tap],
            mac: GUEST_MAC,
            mtu_bytes: None,
            receive_limits: limits,
            transmit_limits: limits,
        };
        let mut driver = Driver::new(Box::new(Net::new(config).unwrap()), 2, ram_file());
        // As large as the longest frame that a driver with these features must take.
        driver.offer(RECEIVE, &[(ROOM, 70_000, true)]);
        driver.set(0x50, RECEIVE as u32);
        let question = arp_question();
        driver.put(BUFFERS, &question);
        driver.request(TRANSMIT, &[(BUFFERS, question.len() as u32, false)]);
        let bytes = driver.take(RECEIVE) as usize;
        let answer = driver.bytes(ROOM, bytes);
        let frame = &answer[NET_HEADER_BYTES..];
        assert_eq!(
            (&frame[..6], &frame[12..22], &frame[28..32]),
            (&GUEST_MAC[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2][..], &[10, 9, 0, 1][..])
        );
        driver.turn_off();
    };
    if let Err(panic) = std::thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

/// The header of a packet between host and guest.
struct Packet {
    from_cid: u64,
    to_cid: u64,
    from_port: u32,
    to_port: u32,
    bytes: u32,
    operation: u16,
}

impl Packet {
    const BYTES: usize = 44;
    const STREAM: u16 = 1;
    const BUFFER_BYTES: u32 = 1 << 16;

    fn encode(&self) -> Vec<u8> {
        let mut header = [self.from_cid.to_le_bytes(), self.to_cid.to_le_bytes()].concat();
        for word in [self.from_port, self.to_port, self.bytes] {
            header.extend(word.to_le_bytes());
        }
        header.extend(Self::STREAM.to_le_bytes());
        header.extend(self.operation.to_le_bytes());
        for word in [0, Self::BUFFER_BYTES, 0] {
            header.extend(u32::to_le_bytes(word));
        }
        header
    }

    fn decode(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        Self {
            from_cid: long(0),
            to_cid: long(8),
            from_port: word(16),
            to_port: word(20),
            bytes: word(24),
            operation: u16::from_le_bytes([bytes[30], bytes[31]]),
        }
    }

    /// What goes back over the same connection.
    fn answer(&self, operation: u16, bytes: u32) -> Self {
        Self {
            from_cid: self.to_cid,
            to_cid: self.from_cid,
            from_port: self.to_port,
            to_port: self.from_port,
            bytes,
            operation,
        }
    }
}

#[test]
fn a_program_of_the_host_talks_with_the_guest_over_a_socket() {
    const REQUEST: u16 = 1;
    const RESPONSE: u16 = 2;
    const DATA: u16 = 5;
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vsock");
    let mut driver = Driver::new(Box::new(Vsock::new(3, &path).unwrap()), 3, ram_file());
    let receive = |driver: &mut Driver| {
        let bytes = driver.take(RECEIVE) as usize;
        let packet = driver.bytes(ROOM, bytes);
        (Packet::decode(&packet), packet[Packet::BYTES..].to_vec())
    };
    let offer = |driver: &mut Driver| {
        driver.offer(RECEIVE, &[(ROOM, 4096, true)]);
        driver.set(0x50, RECEIVE as u32);
    };
    let send = |driver: &mut Driver, packet: &Packet, payload: &[u8]| {
        let bytes = [&packet.encode(), payload].concat();
        driver.put(BUFFERS, &bytes);
        driver.request(TRANSMIT, &[(BUFFERS, bytes.len() as u32, false)]);
    };
    let mut client = UnixStream::connect(&path).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"CONNECT 5000\n").unwrap();
    offer(&mut driver);
    let (request, _) = receive(&mut driver);
    assert_eq!((request.operation, request.from_cid, request.to_cid, request.to_port), (REQUEST, 2, 3, 5000));
    send(&mut driver, &request.answer(RESPONSE, 0), &[]);
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut greeting = String::new();
    reader.read_line(&mut greeting).unwrap();
    assert!(greeting.starts_with("OK "), "{greeting}");
    client.write_all(b"to the guest").unwrap();
    offer(&mut driver);
    let (data, payload) = receive(&mut driver);
    assert_eq!((data.operation, data.bytes, &payload[..]), (DATA, 12, &b"to the guest"[..]));
    send(&mut driver, &request.answer(DATA, 11), b"to the host");
    let mut bytes = [0; 11];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"to the host");
    driver.turn_off();
}

#[test]
fn an_image_is_read_by_devices_and_never_written() {
    if !can_run() {
        return;
    }
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    file.write_all_at(&[0xEE; 4], 4).unwrap();
    let mut ram = guest_ram(ram_file());
    ram.add_images(&[file.try_clone().unwrap()]).unwrap();
    let start = ram.images()[0].start();
    let device = Box::new(Pmem::new(&ram.images()[0]));
    let mut driver = Driver::in_memory(device, 1, ram);
    let address = u64::from(driver.get(0x100)) | u64::from(driver.get(0x104)) << 32;
    assert_eq!((address, driver.get(0x108)), (start, 2 << 20));
    // The image begins with zeros, which read as a request to flush; the answer goes to RAM and then into the image.
    assert_eq!(driver.request(0, &[(start, 4, false), (BUFFERS, 4, true)]), 4);
    assert_eq!(driver.bytes(BUFFERS, 4), [0; 4]);
    assert_eq!(driver.request(0, &[(start, 4, false), (start + 4, 4, true)]), 4);
    assert_eq!(driver.guest.machine.devices()[0].fault(), None);
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 4).unwrap();
    assert_eq!(bytes, [0xEE; 4]);
    driver.turn_off();
}
