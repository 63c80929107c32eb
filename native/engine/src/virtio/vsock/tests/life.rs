//! How connections begin and end, from both sides, and what survives a pause and a restored state.

use super::super::packet::{Operation, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};
use super::guest::{GUEST_CID, Guest};
use super::{answer, connected, dial};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

#[test]
fn the_configuration_is_the_context_id() {
    let guest = Guest::new();
    let mut bytes = [0; 8];
    guest.machine.mmio.read(0x100, &mut bytes);
    assert_eq!(u64::from_le_bytes(bytes), GUEST_CID);
    guest.machine.mmio.read(0x104, &mut bytes);
    assert_eq!(bytes, [0; 8]);
}

#[test]
fn the_host_connects_and_what_follows_its_line_reaches_the_guest() {
    let mut guest = Guest::new();
    let mut stream = dial(&guest);
    stream.write_all(b"CONNECT 1024\nhello").expect("room");
    let request = guest.expect(Operation::Request);
    assert_eq!(request.destination_port, 1024);
    assert!(guest.packet_now().is_none(), "nothing before the guest has accepted");
    let ports = (request.source_port, 1024);
    guest.send(ports, Operation::Response, &[]);
    assert_eq!(answer(&mut stream), format!("OK {}\n", ports.0));
    assert_eq!(guest.packet().1, b"hello");
    guest.send(ports, Operation::Data, b"world");
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes).expect("bytes");
    assert_eq!(&bytes, b"world");
}

#[test]
fn a_guest_that_refuses_closes_the_socket_without_a_word() {
    let mut guest = Guest::new();
    let mut stream = dial(&guest);
    stream.write_all(b"CONNECT 7\n").expect("room");
    let request = guest.expect(Operation::Request);
    guest.send((request.source_port, 7), Operation::Reset, &[]);
    assert_eq!(stream.read(&mut [0; 9]).expect("the end"), 0);
    assert!(guest.packet_now().is_none());
}

#[test]
fn a_host_that_goes_before_the_guest_answers_is_told_to_the_guest() {
    let mut guest = Guest::new();
    let mut stream = dial(&guest);
    stream.write_all(b"CONNECT 7\n").expect("room");
    guest.expect(Operation::Request);
    drop(stream);
    guest.expect(Operation::Reset);
}

#[test]
fn the_guest_connects_to_what_listens_on_the_host() {
    let mut guest = Guest::new();
    let listener = UnixListener::bind(guest.path_of_port(9000)).expect("a socket");
    let ports = (9000, 555);
    guest.send(ports, Operation::Request, &[]);
    let response = guest.expect(Operation::Response);
    assert_eq!((response.source_port, response.destination_port), ports);
    let (mut stream, _) = listener.accept().expect("the guest");
    guest.send(ports, Operation::Data, b"ping");
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).expect("bytes");
    assert_eq!(&bytes, b"ping");
    stream.write_all(b"pong").expect("room");
    assert_eq!(guest.packet().1, b"pong");
}

#[test]
fn a_port_on_which_nobody_listens_is_refused() {
    let mut guest = Guest::new();
    guest.send((9001, 555), Operation::Request, &[]);
    let reset = guest.expect(Operation::Reset);
    assert_eq!((reset.source_port, reset.destination_port), (9001, 555));
}

#[test]
fn a_host_that_ends_its_sending_may_still_read() {
    let mut guest = Guest::new();
    let (mut stream, ports) = connected(&mut guest, 80);
    stream.write_all(b"last").expect("room");
    stream.shutdown(std::net::Shutdown::Write).expect("a socket");
    assert_eq!(guest.packet().1, b"last");
    assert_eq!(guest.expect(Operation::Shutdown).flags, SHUTDOWN_SEND);
    guest.send(ports, Operation::Data, b"answer");
    let mut bytes = [0; 6];
    stream.read_exact(&mut bytes).expect("bytes");
    assert_eq!(&bytes, b"answer");
    drop(stream);
    assert_eq!(guest.expect(Operation::Shutdown).flags, SHUTDOWN_BOTH);
    guest.send(ports, Operation::Reset, &[]);
    guest.send(ports, Operation::Data, b"late");
    guest.expect(Operation::Reset);
}

#[test]
fn a_guest_that_ends_its_sending_may_still_read() {
    let mut guest = Guest::new();
    let (mut stream, ports) = connected(&mut guest, 80);
    guest.send(ports, Operation::Data, b"last");
    guest.send_shutdown(ports, SHUTDOWN_SEND);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the end");
    assert_eq!(bytes, b"last");
    stream.write_all(b"answer").expect("room");
    assert_eq!(guest.packet().1, b"answer");
    guest.send_shutdown(ports, SHUTDOWN_RECEIVE);
    guest.expect(Operation::Reset);
}

#[test]
fn a_guest_that_reads_no_more_fails_the_writer_and_may_still_send() {
    let mut guest = Guest::new();
    let (mut stream, ports) = connected(&mut guest, 80);
    guest.send_shutdown(ports, SHUTDOWN_RECEIVE);
    guest.send(ports, Operation::Data, b"still here");
    let mut bytes = [0; 10];
    stream.read_exact(&mut bytes).expect("bytes");
    assert_eq!(stream.write(b"x").expect_err("nobody reads").kind(), std::io::ErrorKind::BrokenPipe);
    drop(stream);
    let mut flags = 0;
    while flags != SHUTDOWN_BOTH {
        flags = guest.expect(Operation::Shutdown).flags;
    }
}

#[test]
fn a_closed_guest_is_free_at_once_and_a_slow_reader_loses_nothing() {
    let mut guest = Guest::new();
    let (mut stream, ports) = connected(&mut guest, 80);
    let block = vec![7; 64 * 1024];
    let mut sent = 0;
    while sent < 4 * block.len() {
        guest.send(ports, Operation::Data, &block);
        sent += block.len();
    }
    guest.send_shutdown(ports, SHUTDOWN_BOTH);
    while guest.packet().0.operation != Operation::Reset.number() {}
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the end");
    assert_eq!(bytes.len(), sent);
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn a_host_that_closes_with_bytes_on_the_way_loses_none() {
    let mut guest = Guest::new();
    let (mut stream, _) = connected(&mut guest, 80);
    stream.write_all(&[9; 50_000]).expect("room");
    drop(stream);
    let mut bytes = 0;
    loop {
        let (header, payload) = guest.packet();
        if header.operation == Operation::Shutdown.number() {
            assert_eq!(header.flags, SHUTDOWN_BOTH);
            break;
        }
        bytes += payload.len();
    }
    assert_eq!(bytes, 50_000);
}

#[test]
fn nothing_moves_during_a_pause_and_everything_after_it() {
    let mut guest = Guest::new();
    let (mut stream, ports) = connected(&mut guest, 80);
    guest.machine.quiesce();
    stream.write_all(b"while paused").expect("room");
    let mut other = dial(&guest);
    other.write_all(b"CONNECT 81\n").expect("room");
    assert!(guest.packet_now().is_none());
    guest.machine.reactor.resume();
    let mut operations = Vec::new();
    for _ in 0..2 {
        let (header, payload) = guest.packet();
        operations.push((header.operation, payload));
    }
    assert!(operations.contains(&(Operation::Data.number(), b"while paused".to_vec())));
    assert!(operations.contains(&(Operation::Request.number(), Vec::new())));
    guest.send(ports, Operation::Data, b"back");
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).expect("the connection has survived");
}

#[test]
fn a_restored_state_ends_connections_tells_the_guest_and_keeps_listening() {
    let mut guest = Guest::new();
    let (mut before, ports) = connected(&mut guest, 80);
    guest.machine.quiesce();
    let state = guest.machine.mmio.save();
    guest.machine.mmio.load(&state).expect("its own state");
    guest.machine.reactor.resume();
    assert_eq!(before.read(&mut [0; 1]).expect("the end"), 0);
    assert_eq!(guest.event(), 0);
    guest.offer_event();
    guest.send(ports, Operation::Data, b"lost");
    guest.expect(Operation::Reset);
    let (mut after, ports) = connected(&mut guest, 80);
    after.write_all(b"again").expect("room");
    assert_eq!(guest.packet().1, b"again");
    guest.send(ports, Operation::Data, b"yes");
    let mut bytes = [0; 3];
    after.read_exact(&mut bytes).expect("bytes");
    assert_eq!(guest.machine.mmio.fault(), None);
}

#[test]
fn a_wrong_state_is_refused() {
    let guest = Guest::new();
    guest.machine.quiesce();
    let state = guest.machine.mmio.save();
    for bytes in 0..state.len() {
        assert!(guest.machine.mmio.load(&state[..bytes]).is_err(), "{bytes} bytes");
    }
    let mut other = state.clone();
    let last = other.len() - 4;
    other[last] = 2;
    assert!(guest.machine.mmio.load(&other).is_err());
    assert!(guest.machine.mmio.load(&state).is_ok());
}

#[test]
fn the_socket_goes_with_the_device_and_a_stale_one_is_replaced() {
    use crate::virtio::vsock::Vsock;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("vsock.sock");
    drop(UnixListener::bind(&path).expect("a stale socket"));
    let device = Vsock::new(3, &path).expect("the stale one is replaced");
    drop(device);
    assert!(!path.exists());
    std::fs::write(&path, "a file").expect("a file");
    assert_eq!(Vsock::new(3, &path).err().and_then(|error| error.raw_os_error()), Some(17));
    assert!(path.exists(), "what is no socket stays");
    for cid in [0, 1, 2, u64::from(u32::MAX), u64::MAX] {
        assert!(Vsock::new(cid, &directory.path().join("other.sock")).is_err());
    }
    assert!(Vsock::new(3, &directory.path().join("x".repeat(100))).is_err());
}
