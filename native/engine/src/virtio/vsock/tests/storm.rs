//! Everything at once, at random but the same each time: a guest that sends packets which are nearly right, programs of the
//! host that connect, write, read and go, pauses and restored states. Whatever happens, a new connection works afterwards.

use super::super::packet::{HOST_CID, Header, Operation};
use super::guest::{GUEST_CID, Guest};
use super::{answer, dial};
use crate::virtio::testing::{Dice, rounds};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

const GUEST_PORTS: u64 = 4;
const PROGRAMS_MAX: usize = 40;
const PAYLOAD_BYTES_MAX: u64 = 60_000;

struct Storm {
    guest: Guest,
    dice: Dice,
    programs: Vec<UnixStream>,
    listener: UnixListener,
    /// Connections (host, guest) that packets were seen of.
    known: Vec<(u32, u32)>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let guest = Guest::new();
        let listener = UnixListener::bind(guest.path_of_port(1)).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        Self { guest, dice: Dice::new(seed), programs: Vec::new(), listener, known: vec![(1, 1)] }
    }

    fn step(&mut self) {
        match self.dice.below(12) {
            0 => self.program_comes(),
            1 => self.program_goes(),
            2 | 3 => self.program_writes(),
            4 => self.program_reads(),
            5 if self.dice.one_in(8) => self.pause(),
            _ => self.guest_sends(),
        }
        self.guest_reads();
    }

    fn program_comes(&mut self) {
        if let Ok((stream, _)) = self.listener.accept() {
            self.keep(stream);
        }
        let mut stream = dial(&self.guest);
        let line = match self.dice.below(4) {
            0 => "CONN".to_owned(),
            1 => "nonsense\n".to_owned(),
            _ => format!("CONNECT {}\n", self.dice.below(GUEST_PORTS)),
        };
        // A device that has closed already is one of the cases.
        let _ = stream.write_all(line.as_bytes());
        self.keep(stream);
    }

    fn keep(&mut self, stream: UnixStream) {
        stream.set_nonblocking(true).expect("a socket");
        if self.programs.len() >= PROGRAMS_MAX {
            self.program_goes();
        }
        self.programs.push(stream);
    }

    fn any_program(&mut self) -> Option<&mut UnixStream> {
        let count = self.programs.len() as u64;
        if count == 0 { None } else { self.programs.get_mut(self.dice.below(count) as usize) }
    }

    fn program_goes(&mut self) {
        if self.programs.is_empty() {
            return;
        }
        let place = self.dice.below(self.programs.len() as u64) as usize;
        match self.dice.below(3) {
            0 => drop(self.programs[place].shutdown(std::net::Shutdown::Write)),
            1 => drop(self.programs[place].shutdown(std::net::Shutdown::Read)),
            _ => drop(self.programs.swap_remove(place)),
        }
    }

    fn program_writes(&mut self) {
        let bytes = vec![7; self.dice.below(PAYLOAD_BYTES_MAX) as usize];
        if let Some(program) = self.any_program() {
            let _ = program.write(&bytes);
        }
    }

    fn program_reads(&mut self) {
        let mut bytes = vec![0; self.dice.below(PAYLOAD_BYTES_MAX) as usize];
        if let Some(program) = self.any_program() {
            let _ = program.read(&mut bytes);
        }
    }

    fn pause(&mut self) {
        self.guest.machine.quiesce();
        if self.dice.one_in(4) {
            let state = self.guest.machine.mmio.save();
            self.guest.machine.mmio.load(&state).expect("its own state");
        }
        self.guest.machine.reactor.resume();
    }

    fn guest_sends(&mut self) {
        let place = self.dice.below(self.known.len() as u64) as usize;
        let mut ports = self.known[place];
        if self.dice.one_in(8) {
            ports = (self.dice.below(3) as u32, self.dice.below(GUEST_PORTS) as u32);
        }
        let operations = [
            Operation::Request,
            Operation::Response,
            Operation::Response,
            Operation::Data,
            Operation::Data,
            Operation::CreditUpdate,
            Operation::CreditRequest,
            Operation::Shutdown,
            Operation::Reset,
        ];
        let operation = operations[self.dice.below(operations.len() as u64) as usize];
        let bytes = if operation == Operation::Data { self.dice.below(PAYLOAD_BYTES_MAX) } else { 0 };
        let payload = vec![9; bytes as usize];
        let mut header = self.guest.header(ports, operation, &payload);
        header.flags = self.dice.below(4) as u32;
        header.forwarded_bytes = if self.dice.one_in(4) { self.dice.next() as u32 } else { 0 };
        if self.dice.one_in(10) {
            self.distort(&mut header);
        }
        self.guest.send_raw(&header, &payload);
    }

    fn distort(&mut self, header: &mut Header) {
        let number = self.dice.next();
        match self.dice.below(6) {
            0 => header.operation = number as u16,
            1 => header.payload_bytes = number as u32,
            2 => header.socket_type = number as u16,
            3 => header.buffer_bytes = number as u32,
            4 => header.source_cid = [GUEST_CID + 1, HOST_CID, number][(number % 3) as usize],
            _ => header.destination_cid = number,
        }
    }

    fn guest_reads(&mut self) {
        // A guest that does not always read is one of the cases.
        while !self.dice.one_in(4) {
            let Some((header, _)) = self.guest.packet_at_once() else { return };
            let ports = (header.source_port, header.destination_port);
            if !self.known.contains(&ports) {
                if self.known.len() >= 16 {
                    self.known.remove(1);
                }
                self.known.push(ports);
            }
        }
    }

    /// Lets everyone go and connects once more.
    fn end(mut self) {
        self.programs.clear();
        while self.guest.packet_now().is_some() {}
        let mut stream = dial(&self.guest);
        stream.write_all(b"CONNECT 77\nhello").expect("the device listens");
        let ports = loop {
            let (header, _) = self.guest.packet();
            if header.destination_port == 77 {
                break (header.source_port, 77);
            }
        };
        self.guest.send(ports, Operation::Response, &[]);
        assert_eq!(answer(&mut stream), format!("OK {}\n", ports.0));
        while self.guest.packet().1 != b"hello" {}
        self.guest.send(ports, Operation::Data, b"world");
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).expect("bytes");
        assert_eq!(self.guest.machine.mmio.fault(), None);
    }
}

#[test]
fn after_any_storm_a_new_connection_works() {
    for seed in 1..=8 {
        let mut storm = Storm::new(seed);
        for _ in 0..rounds(60) {
            storm.step();
        }
        storm.end();
    }
}
