//! The device as a guest and programs of the host see it: real queues in memory, real sockets, the real thread.

mod guest;
mod hostile;
mod life;
mod storm;
mod traffic;

use super::packet::Operation;
use guest::Guest;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A program of the host that has connected to the device but said nothing.
fn dial(guest: &Guest) -> UnixStream {
    let stream = UnixStream::connect(&guest.path).expect("the device listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.set_write_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream
}

/// A connection that the host asked for; its ports are (host, guest).
fn connected(guest: &mut Guest, port: u32) -> (UnixStream, (u32, u32)) {
    let mut stream = dial(guest);
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).expect("room");
    let request = guest.expect(Operation::Request);
    assert_eq!(request.destination_port, port);
    let ports = (request.source_port, port);
    guest.send(ports, Operation::Response, &[]);
    assert_eq!(answer(&mut stream), format!("OK {}\n", ports.0));
    (stream, ports)
}

/// The line that the device answers with, taken off the socket to the byte.
fn answer(stream: &mut UnixStream) -> String {
    let mut line = String::new();
    // A buffer of one byte takes nothing that follows the line.
    BufReader::with_capacity(1, stream).read_line(&mut line).expect("a line");
    line
}
