//! A guest's vsock driver for tests: it keeps buffers for packets in the queue and sends packets of any kind.

use super::super::packet::{HEADER_BYTES, HOST_CID, Header, Operation, TYPE_STREAM};
use crate::virtio::testing::{EVENT_INDEX, Piece, TestGuest};
use crate::virtio::vsock::Vsock;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};

pub const GUEST_CID: u64 = 42;
/// What the guest says that it can hold for each connection.
pub const GUEST_BUFFER_BYTES: u32 = 256 * 1024;
pub const RECEIVE_BUFFERS: u16 = 128;
pub const TO_GUEST: usize = 0;
pub const FROM_GUEST: usize = 1;
pub const EVENTS: usize = 2;

const RECEIVE_BYTES: u32 = 4096;
const SEND_BUFFERS: usize = 8;
const PACKET_BYTES_MAX: usize = 70_000;
/// Long enough for what comes, short enough to wait for what does not.
const MOMENT: Duration = Duration::from_millis(150);

pub struct Guest {
    pub machine: TestGuest,
    pub path: PathBuf,
    receive_buffers: HashMap<u16, Piece>,
    send_buffers: Vec<u64>,
    next_send: usize,
    event_buffer: Piece,
    _directory: tempfile::TempDir,
}

impl Guest {
    /// A started device with buffers for packets and events.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("vsock.sock");
        let device = Vsock::new(GUEST_CID, &path).expect("a device");
        let mut machine = TestGuest::running_with(Box::new(device), EVENT_INDEX);
        let send_buffers = (0..SEND_BUFFERS).map(|_| machine.allocate(PACKET_BYTES_MAX)).collect();
        let event_buffer = machine.room(4);
        let mut receive_buffers = HashMap::new();
        for _ in 0..RECEIVE_BUFFERS {
            let buffer = machine.room(RECEIVE_BYTES);
            receive_buffers.insert(machine.push(TO_GUEST, &[buffer]), buffer);
        }
        machine.kick(TO_GUEST);
        let mut guest =
            Self { machine, path, receive_buffers, send_buffers, next_send: 0, event_buffer, _directory: directory };
        guest.offer_event();
        guest
    }

    /// Where programs of the host listen for a port.
    pub fn path_of_port(&self, port: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        Path::new(&path).to_owned()
    }

    pub fn offer_event(&mut self) {
        self.machine.push(EVENTS, &[self.event_buffer]);
        self.machine.kick(EVENTS);
    }

    /// The id of the next event.
    pub fn event(&mut self) -> u32 {
        assert_eq!(self.machine.wait_used(EVENTS).1, 4);
        u32::from_le_bytes(self.machine.bytes(self.event_buffer).try_into().expect("four bytes"))
    }

    /// The next packet; its buffer is offered again.
    pub fn packet(&mut self) -> (Header, Vec<u8>) {
        let used = self.machine.wait_used(TO_GUEST);
        self.open_packet(used)
    }

    /// The next packet if it is there already or comes in a moment.
    pub fn packet_now(&mut self) -> Option<(Header, Vec<u8>)> {
        let used = self.used_within(TO_GUEST, MOMENT)?;
        Some(self.open_packet(used))
    }

    /// The next packet if it is there already.
    pub fn packet_at_once(&mut self) -> Option<(Header, Vec<u8>)> {
        let used = self.machine.used(TO_GUEST)?;
        Some(self.open_packet(used))
    }

    fn used_within(&mut self, queue: usize, patience: Duration) -> Option<(u16, u32)> {
        let end = Instant::now() + patience;
        loop {
            let used = self.machine.used(queue);
            if used.is_some() || Instant::now() > end {
                return used;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn open_packet(&mut self, (head, bytes): (u16, u32)) -> (Header, Vec<u8>) {
        let buffer = self.receive_buffers.remove(&head).expect("a buffer that was offered");
        let mut packet = self.machine.bytes(Piece { bytes, ..buffer });
        let payload = packet.split_off(HEADER_BYTES);
        let header = Header::decode(&packet.try_into().expect("a header"));
        assert_eq!(header.payload_bytes as usize, payload.len());
        assert_eq!(header.destination_cid, GUEST_CID);
        self.receive_buffers.insert(self.machine.push(TO_GUEST, &[buffer]), buffer);
        self.machine.kick(TO_GUEST);
        (header, payload)
    }

    /// The next packet, which has to be this operation.
    pub fn expect(&mut self, operation: Operation) -> Header {
        let (header, _) = self.packet();
        assert_eq!(Operation::from_number(header.operation), Some(operation));
        header
    }

    /// Sends a packet and waits until the device has given its buffer back. False: it did not in a moment.
    pub fn send_raw(&mut self, header: &Header, payload: &[u8]) -> bool {
        self.offer_packet(header, payload);
        self.machine.kick(FROM_GUEST);
        self.used_within(FROM_GUEST, MOMENT).is_some()
    }

    /// Offers a packet without notifying.
    pub fn offer_packet(&mut self, header: &Header, payload: &[u8]) {
        let address = self.send_buffers[self.next_send % SEND_BUFFERS];
        self.next_send += 1;
        let memory = &self.machine.memory;
        memory.write_slice(&header.encode(), GuestAddress(address)).expect("in memory");
        let body = address + HEADER_BYTES as u64;
        memory.write_slice(payload, GuestAddress(body)).expect("in memory");
        let mut pieces = vec![Piece { address, bytes: HEADER_BYTES as u32, writable: false }];
        if !payload.is_empty() {
            pieces.push(Piece { address: body, bytes: payload.len() as u32, writable: false });
        }
        self.machine.push(FROM_GUEST, &pieces);
    }

    /// A header from this guest.
    pub fn header(&self, ports: (u32, u32), operation: Operation, payload: &[u8]) -> Header {
        Header {
            source_cid: GUEST_CID,
            destination_cid: HOST_CID,
            source_port: ports.1,
            destination_port: ports.0,
            payload_bytes: payload.len() as u32,
            socket_type: TYPE_STREAM,
            operation: operation.number(),
            buffer_bytes: GUEST_BUFFER_BYTES,
            ..Header::default()
        }
    }

    /// Sends a packet of the connection between these ports (host, guest).
    pub fn send(&mut self, ports: (u32, u32), operation: Operation, payload: &[u8]) {
        let header = self.header(ports, operation, payload);
        assert!(self.send_raw(&header, payload), "the device did not take the packet");
    }

    /// Sends a shutdown with these flags.
    pub fn send_shutdown(&mut self, ports: (u32, u32), flags: u32) {
        let header = Header { flags, ..self.header(ports, Operation::Shutdown, &[]) };
        assert!(self.send_raw(&header, &[]), "the device did not take the packet");
    }
}
