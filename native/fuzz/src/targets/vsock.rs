//! Vsock, both ways: packets that are nearly right, and programs of the host that connect, write, read and go.

use crate::guest::Guest;
use crate::rings::Piece;
use crate::script::Script;
use crate::story::{self, Direction, Subject};
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::vsock::Vsock;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

const GUEST_CID: u64 = 5;
const HEADER_BYTES: usize = 44;
const BUFFER_BYTES: u32 = 4096;
const PROGRAMS_MAX: usize = 12;
/// Where the device begins with the host's ports of connections that the host asks for.
const HOST_PORTS: u32 = 1 << 30;
/// Ports that programs of the host listen on.
const LISTENERS: [u32; 2] = [1, 2];

const REQUEST: u16 = 1;
const RESPONSE: u16 = 2;
const DATA: u16 = 5;
const CREDIT_REQUEST: u16 = 7;

#[derive(Clone, Copy)]
struct Header {
    to: u32,
    from: u32,
    operation: u16,
    flags: u32,
    bytes: u32,
    credit: u32,
    forwarded: u32,
}

impl Header {
    fn encode(self) -> Vec<u8> {
        let mut header = GUEST_CID.to_le_bytes().to_vec();
        header.extend(2_u64.to_le_bytes());
        for word in [self.from, self.to, self.bytes, 1 | u32::from(self.operation) << 16, self.flags] {
            header.extend(word.to_le_bytes());
        }
        for word in [self.credit, self.forwarded] {
            header.extend(word.to_le_bytes());
        }
        header
    }
}

struct Switchboard {
    folder: tempfile::TempDir,
    listeners: Vec<UnixListener>,
    programs: Vec<UnixStream>,
}

impl Switchboard {
    fn path(&self) -> PathBuf {
        self.folder.path().join("vsock")
    }

    fn dial(&mut self) {
        if self.programs.len() < PROGRAMS_MAX {
            // Refused when too many wait, which is not the guest's doing.
            if let Ok(program) = UnixStream::connect(self.path()) {
                self.keep(program);
            }
        }
    }

    fn keep(&mut self, program: UnixStream) {
        program.set_nonblocking(true).expect("a socket");
        self.programs.push(program);
    }

    fn greet(&mut self, script: &mut Script<'_>) {
        self.dial();
        let Some(program) = self.programs.last_mut() else { return };
        let line = match script.u8() % 8 {
            0 => script.bytes(40),
            1 => b"CONN".to_vec(),
            _ => format!("CONNECT {}\n", script.below(4)).into_bytes(),
        };
        // A device that has closed already is one of the cases.
        let _ = program.write(&line);
    }
}

impl Subject for Switchboard {
    fn device(&mut self) -> Box<dyn VirtioDevice> {
        Box::new(Vsock::new(GUEST_CID, &self.path()).expect("a device"))
    }

    fn direction(&self, queue: usize) -> Direction {
        if queue == 1 { Direction::FromGuest } else { Direction::ToGuest }
    }

    fn request(&mut self, _: usize, script: &mut Script<'_>) -> Vec<u8> {
        let operation =
            script.choose(&[REQUEST, REQUEST, RESPONSE, RESPONSE, DATA, DATA, DATA, 3, 4, 6, CREDIT_REQUEST]);
        let to = match script.u8() {
            few @ 0..=0x7F => LISTENERS[usize::from(few & 1)],
            few @ 0x80..=0xF7 => HOST_PORTS + u32::from(few % 4),
            _ => script.number() as u32,
        };
        let payload = if operation != DATA {
            Vec::new()
        } else if script.one_in(2) {
            vec![9; script.below(0x2000) as usize]
        } else {
            script.bytes(40)
        };
        let bytes = if script.one_in(16) { script.number() as u32 } else { payload.len() as u32 };
        let credit = if script.one_in(8) { script.number() as u32 } else { 0x4_0000 };
        let (flags, forwarded) = (script.below(4) as u32, if script.one_in(4) { script.number() as u32 } else { 0 });
        let from = script.below(4) as u32;
        let mut packet = Header { to, from, operation, flags, bytes, credit, forwarded }.encode();
        packet.extend(payload);
        if script.one_in(16) {
            script.edit(&mut packet, 2);
        }
        packet
    }

    fn host(&mut self, script: &mut Script<'_>, guest: &mut Guest) {
        match script.below(10) {
            0..=2 => return self.greet(script),
            3 => {
                // Room for packets to the guest.
                for _ in 0..if guest.queues() > 0 { script.below(12) } else { 0 } {
                    let room = guest.room(BUFFER_BYTES);
                    guest.push(0, &[room], false);
                }
                return guest.kick(0);
            }
            4 => {
                let streams: Vec<_> = self.listeners.iter().filter_map(|listener| listener.accept().ok()).collect();
                return streams.into_iter().for_each(|(program, _)| self.keep(program));
            }
            _ => (),
        }
        if self.programs.is_empty() {
            return;
        }
        let place = script.below(self.programs.len() as u64) as usize;
        let program = &mut self.programs[place];
        match script.below(8) {
            0 => drop(self.programs.swap_remove(place)),
            1 => drop(program.shutdown(std::net::Shutdown::Write)),
            2 => drop(program.shutdown(std::net::Shutdown::Read)),
            3 | 4 => drop(program.read(&mut vec![0; script.below(0x1_0000) as usize])),
            5 => drop(program.write(&vec![7; script.below(0x8000) as usize])),
            _ => drop(program.write(&script.bytes(40))),
        }
    }

    fn check(&mut self, guest: &mut Guest) {
        self.programs.clear();
        guest.settle();
        let packets = Packets { buffers: (0..64).map(|_| guest.room(BUFFER_BYTES)).collect() };
        for buffer in &packets.buffers {
            guest.push(0, &[*buffer], false);
        }
        guest.kick(0);
        self.dial();
        self.programs[0].write_all(b"CONNECT 77\nhello").expect("the device listens");
        let request = packets.until(guest, |packet| packet[20..24] == 77_u32.to_le_bytes());
        assert_eq!(request[30..32], REQUEST.to_le_bytes());
        let to = u32::from_le_bytes([request[16], request[17], request[18], request[19]]);
        let header = Header { to, from: 77, operation: RESPONSE, flags: 0, bytes: 0, credit: 0x1_0000, forwarded: 0 };
        let answer = guest.give(&header.encode());
        assert_eq!(guest.request(1, &[answer]), 0);
        packets.until(guest, |packet| packet[HEADER_BYTES..] == *b"hello");
        let mut data = Header { operation: DATA, bytes: 5, ..header }.encode();
        data.extend(b"world");
        let data = guest.give(&data);
        assert_eq!(guest.request(1, &[data]), 0);
        let wanted = format!("OK {to}\nworld");
        let mut said = vec![0; wanted.len()];
        self.programs[0].read_exact(&mut said).expect("what the guest said");
        assert_eq!(String::from_utf8_lossy(&said), wanted);
    }
}

/// The packets that come to the guest, in buffers that were offered in this order by a driver that just started.
struct Packets {
    buffers: Vec<Piece>,
}

impl Packets {
    fn until(&self, guest: &mut Guest, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        guest.until("a packet", |guest| {
            let (head, bytes) = guest.used(0)?;
            let packet = guest.bytes(Piece { bytes, ..self.buffers[usize::from(head)] });
            wanted(&packet).then_some(packet)
        })
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = |port: u32| {
        let listener = UnixListener::bind(folder.path().join(format!("vsock_{port}"))).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        listener
    };
    let listeners = LISTENERS.map(listener).into();
    story::tell(input, &mut Switchboard { folder, listeners, programs: Vec::new() });
}
