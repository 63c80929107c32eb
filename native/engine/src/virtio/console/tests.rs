//! The console as its driver and its clients see it.

use super::{Console, ConsoleOptions, LogFile};
use crate::virtio::testing::{TestGuest, rounds, torment};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

struct Setup {
    guest: TestGuest,
    log: File,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

fn setup() -> Setup {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("console.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let log = tempfile::tempfile().expect("a file");
    let twin = LogFile::new(log.try_clone().expect("its twin"), 8192).expect("a log");
    let console = Console::new(ConsoleOptions { log: Some(twin), listener: Some(listener) }).expect("a device");
    Setup { guest: TestGuest::running(Box::new(console)), log, path, _directory: directory }
}

impl Setup {
    fn print(&mut self, text: &[u8]) {
        self.guest.rewind();
        let text = self.guest.give(text);
        assert_eq!(self.guest.request(1, &[text]), 0);
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream
    }

    fn logged(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.log.metadata().expect("its size").len() as usize];
        self.log.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }
}

fn read(stream: &mut UnixStream, bytes: usize) -> Vec<u8> {
    let mut text = vec![0; bytes];
    stream.read_exact(&mut text).expect("as much as was written");
    text
}

#[test]
fn what_the_guest_writes_is_logged_and_shown_also_to_who_comes_later() {
    let mut setup = setup();
    setup.print(b"booting\n");
    let mut client = setup.connect();
    assert_eq!(read(&mut client, 8), b"booting\n");
    setup.print(b"login: ");
    assert_eq!(read(&mut client, 7), b"login: ");
    assert_eq!(setup.logged(), b"booting\nlogin: ");
}

#[test]
fn what_is_typed_reaches_the_guest_when_it_has_room() {
    let mut setup = setup();
    let mut client = setup.connect();
    client.write_all(b"root\n").expect("typed");
    std::thread::sleep(Duration::from_millis(20));
    let (first, second) = (setup.guest.room(3), setup.guest.room(100));
    setup.guest.push(0, &[first]);
    setup.guest.push(0, &[second]);
    setup.guest.kick(0);
    assert_eq!(setup.guest.wait_used(0).1, 3);
    assert_eq!(setup.guest.wait_used(0).1, 2);
    assert_eq!(setup.guest.bytes(first), b"roo");
    assert_eq!(setup.guest.bytes(second)[..2], *b"t\n");
    let third = setup.guest.room(10);
    setup.guest.push(0, &[third]);
    setup.guest.kick(0);
    client.write_all(b"x").expect("typed");
    assert_eq!(setup.guest.wait_used(0).1, 1);
}

#[test]
fn a_client_that_does_not_read_does_not_hold_the_guest_up() {
    let mut setup = setup();
    let mut client = setup.connect();
    setup.print(b"first");
    assert_eq!(read(&mut client, 5), b"first");
    for number in 0..1000_u32 {
        setup.print(&[number as u8; 4096]);
    }
    let mut last = 0;
    // What comes is the end of what was written, after what fitted into the socket.
    client.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let mut buffer = vec![0; 1 << 20];
    while let Ok(bytes) = client.read(&mut buffer) {
        last = buffer[bytes - 1];
    }
    assert_eq!(last, 999_u32 as u8);
    assert!(setup.logged().len() <= 8192);
}

#[test]
fn one_client_at_a_time_and_another_after_it() {
    let mut setup = setup();
    let mut first = setup.connect();
    setup.print(b"a");
    assert_eq!(read(&mut first, 1), b"a");
    assert_eq!(setup.connect().read(&mut [0]).expect("an end"), 0, "the line is taken");
    drop(first);
    let mut second = loop {
        let mut stream = UnixStream::connect(&setup.path).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let mut text = [0];
        if stream.read(&mut text).expect("an answer") == 1 {
            break stream;
        }
    };
    setup.print(b"b");
    assert_eq!(read(&mut second, 1), b"b");
}

#[test]
fn a_client_that_types_no_more_still_reads() {
    let mut setup = setup();
    let mut client = setup.connect();
    let room = setup.guest.room(10);
    setup.guest.push(0, &[room]);
    setup.guest.kick(0);
    client.write_all(b"q").expect("typed");
    client.shutdown(std::net::Shutdown::Write).expect("ended");
    assert_eq!(setup.guest.wait_used(0).1, 1);
    let second = setup.guest.allocate(4096);
    setup.guest.push(0, &[crate::virtio::testing::Piece { address: second, bytes: 10, writable: true }]);
    setup.guest.kick(0);
    let text = setup.guest.give(b"bye");
    setup.guest.request(1, &[text]);
    assert_eq!(read(&mut client, 3), b"bye");
}

#[test]
fn a_client_stays_through_a_reset_and_a_restore_needs_none() {
    let mut setup = setup();
    let mut client = setup.connect();
    setup.print(b"a");
    assert_eq!(read(&mut client, 1), b"a");
    setup.guest.start(u64::MAX);
    setup.print(b"b");
    assert_eq!(read(&mut client, 1), b"b");
    let Setup { guest, .. } = setup;
    let plain = Console::new(ConsoleOptions::default()).expect("a device");
    let mut guest = guest.restored(Box::new(plain));
    let text = guest.give(b"nobody hears this");
    assert_eq!(guest.request(1, &[text]), 0);
}

#[test]
fn a_hostile_driver_gets_nowhere() {
    let mut setup = setup();
    let mut client = setup.connect();
    client.write_all(&[b'x'; 4096]).expect("typed");
    torment(&mut setup.guest, 41, rounds(1500));
    setup.print(b"honest");
    assert!(setup.logged().ends_with(b"honest"));
}
