//! Bytes in bulk: both directions at once, many buffers in one read, credit, readers that are slow.

use super::super::packet::{Header, Operation};
use super::connected;
use super::guest::{GUEST_BUFFER_BYTES, Guest};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

/// The byte at a place of a stream, so that lost, doubled and swapped bytes show.
fn pattern(stream: u32, place: usize) -> u8 {
    (place.wrapping_mul(31) ^ (place >> 8) ^ stream as usize) as u8
}

fn patterned(stream: u32, from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(|place| pattern(stream, place)).collect()
}

/// Writes and reads so many patterned bytes at once.
fn exchange(stream: UnixStream, seed: u32, bytes: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut writer = stream.try_clone().expect("its twin");
        let writing = thread::spawn(move || {
            writer.write_all(&patterned(seed, 0, bytes)).expect("the guest reads");
        });
        let mut reader = stream;
        let mut received = vec![0; bytes];
        reader.read_exact(&mut received).expect("the guest writes");
        assert!(received == patterned(!seed, 0, bytes), "bytes to the host differ");
        writing.join().expect("all written");
    })
}

/// The guest's end of one stream that sends as much as it gets.
struct GuestEnd {
    seed: u32,
    received: usize,
    sent: usize,
    forwarded_by_host: u32,
    host_buffer: u32,
}

impl GuestEnd {
    fn learn(&mut self, header: &Header) {
        self.host_buffer = header.buffer_bytes;
        self.forwarded_by_host = header.forwarded_bytes;
    }

    fn may_send(&self) -> usize {
        (self.host_buffer - (self.sent as u32 - self.forwarded_by_host)) as usize
    }
}

#[test]
fn two_connections_carry_bulk_both_ways_at_once_and_every_byte_arrives() {
    const BYTES: usize = 3 << 20;
    let mut guest = Guest::new();
    let mut ends = HashMap::new();
    let mut programs = Vec::new();
    for seed in [80, 81] {
        let (stream, ports) = connected(&mut guest, seed);
        programs.push(exchange(stream, seed, BYTES));
        let end = GuestEnd { seed, received: 0, sent: 0, forwarded_by_host: 0, host_buffer: 256 * 1024 };
        ends.insert(ports, end);
    }
    while ends.values().any(|end| end.received < BYTES || end.sent < BYTES) {
        send_what_is_allowed(&mut guest, &mut ends, BYTES);
        while let Some((header, payload)) = guest.packet_at_once() {
            let end = ends.get_mut(&(header.source_port, header.destination_port)).expect("a known connection");
            end.learn(&header);
            assert!(payload == patterned(end.seed, end.received, payload.len()), "bytes to the guest differ");
            end.received += payload.len();
        }
        tell_credit(&mut guest, &ends);
    }
    for program in programs {
        program.join().expect("every byte arrived");
    }
}

fn send_what_is_allowed(guest: &mut Guest, ends: &mut HashMap<(u32, u32), GuestEnd>, bytes: usize) {
    for (ports, end) in ends {
        let amount = end.may_send().min(48 * 1024).min(bytes - end.sent);
        if amount > 0 {
            let payload = patterned(!end.seed, end.sent, amount);
            let header =
                Header { forwarded_bytes: end.received as u32, ..guest.header(*ports, Operation::Data, &payload) };
            assert!(guest.send_raw(&header, &payload));
            end.sent += amount;
        }
    }
}

fn tell_credit(guest: &mut Guest, ends: &HashMap<(u32, u32), GuestEnd>) {
    for (ports, end) in ends {
        let update = guest.header(*ports, Operation::CreditUpdate, &[]);
        assert!(guest.send_raw(&Header { forwarded_bytes: end.received as u32, ..update }, &[]));
    }
}

#[test]
fn the_host_sends_no_more_than_the_guest_can_hold_and_asks_once() {
    let mut guest = Guest::new();
    let (mut stream, ports) = connected(&mut guest, 80);
    let bytes = patterned(1, 0, 1 << 20);
    let writing = thread::spawn(move || {
        stream.write_all(&bytes).expect("the guest reads in the end");
        stream
    });
    let mut received = 0;
    let mut requests = 0;
    while let Some((header, payload)) = guest.packet_now() {
        received += payload.len();
        requests += usize::from(header.operation == Operation::CreditRequest.number());
    }
    assert_eq!((received, requests), (GUEST_BUFFER_BYTES as usize, 1));
    // An answer without space is not asked again and again.
    guest.send(ports, Operation::CreditUpdate, &[]);
    assert!(guest.packet_now().is_none());
    while received < 1 << 20 {
        let update = guest.header(ports, Operation::CreditUpdate, &[]);
        assert!(guest.send_raw(&Header { forwarded_bytes: received as u32, ..update }, &[]));
        while let Some((_, payload)) = guest.packet_now() {
            assert!(payload == patterned(1, received, payload.len()));
            received += payload.len();
        }
    }
    drop(writing.join().expect("all written"));
}

#[test]
fn a_slow_reader_gets_every_byte_and_the_guest_is_told_when_there_is_space() {
    let mut guest = Guest::new();
    let (mut stream, ports) = connected(&mut guest, 80);
    let mut end = GuestEnd { seed: 5, received: 0, sent: 0, forwarded_by_host: 0, host_buffer: 256 * 1024 };
    loop {
        let amount = end.may_send().min(60_000);
        if amount == 0 {
            break;
        }
        guest.send(ports, Operation::Data, &patterned(5, end.sent, amount));
        end.sent += amount;
        while let Some((header, _)) = guest.packet_now() {
            assert_eq!(header.operation, Operation::CreditUpdate.number());
            end.learn(&header);
        }
    }
    let mut bytes = vec![0; end.sent];
    stream.read_exact(&mut bytes).expect("all of it");
    assert!(bytes == patterned(5, 0, end.sent));
    while end.may_send() < 128 * 1024 {
        let (header, _) = guest.packet();
        end.learn(&header);
    }
}

#[test]
fn one_read_of_the_host_fills_many_buffers() {
    let mut guest = Guest::new();
    let (mut stream, _) = connected(&mut guest, 80);
    guest.machine.quiesce();
    stream.write_all(&patterned(3, 0, 100_000)).expect("room");
    guest.machine.reactor.resume();
    let mut received = 0;
    let mut longest = 0;
    while received < 100_000 {
        let (_, payload) = guest.packet();
        assert!(payload == patterned(3, received, payload.len()));
        longest = longest.max(payload.len());
        received += payload.len();
    }
    assert_eq!(longest, 4096 - 44, "buffers are filled to their end");
    assert!(guest.packet_now().is_none(), "buffers that were not filled went back");
}
