//! A guest that breaks rules, and programs of the host that do: nothing grows, nothing waits for ever, others go on.

use super::super::credit::HOST_BUFFER_BYTES;
use super::super::muxer::{CONNECTIONS_MAX, HELD_BYTES_MAX};
use super::super::packet::{HOST_CID, Header, Operation};
use super::guest::{FROM_GUEST, GUEST_CID, Guest, RECEIVE_BUFFERS, TO_GUEST};
use super::{connected, dial};
use crate::virtio::testing::{rounds, torment};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

#[test]
fn packets_of_no_connection_are_answered_by_a_reset_but_resets_never_are() {
    let mut guest = Guest::new();
    for operation in [Operation::Response, Operation::Data, Operation::Shutdown, Operation::CreditRequest] {
        guest.send((5, 6), operation, &[]);
        guest.expect(Operation::Reset);
    }
    guest.send((5, 6), Operation::Reset, &[]);
    assert!(guest.packet_now().is_none());
}

#[test]
fn headers_that_lie_harm_nobody() {
    let mut guest = Guest::new();
    let (mut stream, ports) = connected(&mut guest, 80);
    let good = guest.header(ports, Operation::Data, b"abc");
    let silent =
        [Header { source_cid: 7, ..good }, Header { source_cid: HOST_CID, destination_cid: GUEST_CID, ..good }];
    for header in silent {
        assert!(guest.send_raw(&header, b"abc"));
    }
    assert!(guest.packet_now().is_none());
    let refused = [
        Header { destination_cid: 9, ..good },
        Header { socket_type: 2, ..good },
        Header { payload_bytes: 4, ..good },
        Header { payload_bytes: u32::MAX, ..good },
    ];
    for header in refused {
        assert!(guest.send_raw(&header, b"abc"));
        let (reset, _) = guest.packet();
        assert_eq!(reset.operation, Operation::Reset.number());
    }
    assert!(guest.send_raw(&good, b"abc"));
    let mut bytes = [0; 3];
    stream.read_exact(&mut bytes).expect("the connection is as it was");
    assert!(guest.send_raw(&Header { operation: 99, ..good }, b"abc"));
    guest.expect(Operation::Reset);
    assert_eq!(stream.read(&mut bytes).expect("the end"), 0);
}

#[test]
fn a_packet_shorter_than_its_header_is_dropped() {
    let mut guest = Guest::new();
    let short = guest.machine.give(&[0; 43]);
    assert_eq!(guest.machine.request(FROM_GUEST, &[short]), 0);
    assert_eq!(guest.machine.mmio.fault(), None);
}

#[test]
fn a_buffer_without_room_stops_the_device_until_a_reset() {
    let mut guest = Guest::new();
    for _ in 0..RECEIVE_BUFFERS {
        guest.send((5, 6), Operation::Data, &[]);
        guest.machine.wait_used(TO_GUEST);
    }
    let small = guest.machine.room(20);
    guest.machine.push(TO_GUEST, &[small]);
    guest.machine.kick(TO_GUEST);
    guest.offer_packet(&guest.header((5, 6), Operation::Data, &[]), &[]);
    guest.machine.kick(FROM_GUEST);
    guest.machine.wait_broken();
}

#[test]
fn nonsense_of_all_kinds_breaks_nothing_for_an_honest_driver() {
    let mut guest = Guest::new();
    torment(&mut guest.machine, 3, rounds(3000));
}

#[test]
fn a_guest_that_sends_more_than_its_credit_loses_the_connection() {
    let mut guest = Guest::new();
    let (_stream, ports) = connected(&mut guest, 80);
    let block = vec![1; 64 * 1024];
    // What the socket itself takes is free again; after that the credit is all there is.
    let mut sent = 0;
    loop {
        guest.send(ports, Operation::Data, &block);
        sent += block.len();
        if guest.packet_now().is_some_and(|(header, _)| header.operation == Operation::Reset.number()) {
            break;
        }
        assert!(sent < 8 << 20, "a reader that reads nothing must stop the guest");
    }
    assert!(sent > HOST_BUFFER_BYTES as usize);
}

#[test]
fn a_flood_without_buffers_for_the_answers_is_not_taken() {
    let mut guest = Guest::new();
    // No buffer comes back to the queue from here on, since no packet is read.
    let mut taken = 0;
    for _ in 0..2000 {
        let header = guest.header((5, 6), Operation::Data, &[]);
        if !guest.send_raw(&header, &[]) {
            break;
        }
        taken += 1;
    }
    assert!(taken < 1000, "{taken} packets taken");
    let mut resets = 0;
    while guest.packet_now().is_some() {
        resets += 1;
    }
    assert_eq!(resets, taken + 1, "each gets its answer, also the one that waited");
}

#[test]
fn more_connections_than_allowed_are_closed_and_fewer_work_again() {
    let mut guest = Guest::new();
    let mut streams: Vec<UnixStream> = Vec::new();
    let mut closed = 0;
    for _ in 0..CONNECTIONS_MAX + 20 {
        let mut stream = dial(&guest);
        if stream.write_all(b"CONN").is_err() {
            closed += 1;
        }
        streams.push(stream);
    }
    for stream in &mut streams {
        stream.set_nonblocking(true).expect("a socket");
    }
    let ended = |streams: &mut [UnixStream]| streams.iter_mut().map(waits).filter(|waits| !waits).count();
    guest.machine.until("those that are too many to be closed", |_| ended(&mut streams) >= 20);
    assert_eq!(ended(&mut streams), 20, "{closed} noticed while writing");
    let listener = UnixListener::bind(guest.path_of_port(1)).expect("a socket");
    guest.send((1, 1), Operation::Request, &[]);
    guest.expect(Operation::Reset);
    drop(listener);
    drop(streams);
    let (_stream, _) = connected(&mut guest, 80);
}

fn waits(stream: &mut UnixStream) -> bool {
    stream.read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_line_that_is_no_greeting_closes_the_socket() {
    let guest = Guest::new();
    let mut stream = dial(&guest);
    stream.write_all(b"GET / HTTP/1.1\r\n").expect("room");
    let ended = stream.read(&mut [0; 1]);
    assert!(matches!(ended, Ok(0)) || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
}

#[test]
fn credit_that_the_guest_claims_without_sense_stops_only_its_own_connection() {
    let mut guest = Guest::new();
    let (mut liar, ports) = connected(&mut guest, 80);
    let (mut honest, _) = connected(&mut guest, 81);
    let header = Header { forwarded_bytes: 12_345, ..guest.header(ports, Operation::CreditUpdate, &[]) };
    assert!(guest.send_raw(&header, &[]));
    liar.write_all(b"never").expect("room");
    honest.write_all(b"comes").expect("room");
    let mut seen = Vec::new();
    while let Some((header, payload)) = guest.packet_now() {
        seen.push((header.operation, payload));
    }
    seen.sort();
    assert_eq!(seen, [(Operation::Data.number(), b"comes".to_vec()), (Operation::CreditRequest.number(), Vec::new())]);
}

#[test]
fn many_slow_readers_together_hold_no_more_than_a_few() {
    const READERS: u32 = 120;
    let mut guest = Guest::new();
    let listener = UnixListener::bind(guest.path_of_port(1)).expect("a socket");
    let mut readers = Vec::new();
    for port in 0..READERS {
        guest.send((1, port), Operation::Request, &[]);
        guest.expect(Operation::Response);
        readers.push(listener.accept().expect("the guest").0);
    }
    let block = vec![3; 64 * 1024];
    let mut reset = 0;
    for port in 0..READERS {
        // More than the socket takes and less than the credit beyond that.
        for _ in 0..6 {
            guest.send((1, port), Operation::Data, &block);
        }
        while let Some((header, _)) = guest.packet_at_once() {
            reset += u32::from(header.operation == Operation::Reset.number());
        }
    }
    while let Some((header, _)) = guest.packet_now() {
        reset += u32::from(header.operation == Operation::Reset.number());
    }
    assert!(reset > 0, "nothing was held: the sockets took it all");
    let sent = 6 * block.len() * (READERS as usize);
    assert!(sent > HELD_BYTES_MAX, "the test sends too little");
    let mut first = vec![0; 6 * block.len()];
    readers[0].read_exact(&mut first).expect("those that were first lose nothing");
}
