//! The console: output to a log and to whoever is connected, input from there.

use super::memory_file;
use crate::guest::Guest;
use crate::script::Script;
use crate::story::{self, Direction, Subject};
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::console::{Console, ConsoleOptions, LogFile};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

const LOG_BYTES_MAX: u64 = 16 << 10;
const CLIENTS_MAX: usize = 4;

struct Terminal {
    folder: tempfile::TempDir,
    log: Option<File>,
    clients: Vec<UnixStream>,
}

impl Terminal {
    fn path(&self) -> PathBuf {
        self.folder.path().join("console")
    }

    fn connect(&mut self) {
        let client = UnixStream::connect(self.path()).expect("a console listens");
        client.set_nonblocking(true).expect("a socket");
        self.clients.push(client);
    }
}

impl Subject for Terminal {
    fn device(&mut self) -> Box<dyn VirtioDevice> {
        let log = memory_file(0);
        self.log = Some(log.try_clone().expect("a descriptor"));
        let log = LogFile::new(log, LOG_BYTES_MAX).expect("a log");
        let listener = UnixListener::bind(self.path()).expect("a socket");
        let options = ConsoleOptions { log: Some(log), listener: Some(listener) };
        Box::new(Console::new(options).expect("a console"))
    }

    fn direction(&self, queue: usize) -> Direction {
        if queue == 0 { Direction::ToGuest } else { Direction::FromGuest }
    }

    fn request(&mut self, _: usize, script: &mut Script<'_>) -> Vec<u8> {
        script.bytes(40)
    }

    fn host(&mut self, script: &mut Script<'_>, _: &mut Guest) {
        let choice = script.below(8);
        if choice == 0 && self.clients.len() < CLIENTS_MAX {
            return self.connect();
        }
        if self.clients.is_empty() {
            return;
        }
        let place = script.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[place];
        match choice {
            1 => drop(self.clients.swap_remove(place)),
            2 => drop(client.shutdown(std::net::Shutdown::Write)),
            3 => drop(client.shutdown(std::net::Shutdown::Read)),
            4 | 5 => drop(client.read(&mut vec![0; script.below(0x1_0000) as usize])),
            6 => drop(client.write(&vec![7; script.below(0x4000) as usize])),
            _ => drop(client.write(&script.bytes(40))),
        }
    }

    fn check(&mut self, guest: &mut Guest) {
        // Whoever is still connected may have let bytes lie for the guest.
        self.clients.clear();
        guest.settle();
        let text = guest.give(b"the end\n");
        assert_eq!(guest.request(1, &[text]), 0);
        let log = self.log.as_ref().expect("a device was made");
        let end = log.metadata().expect("a log").len();
        let mut last = [0; 8];
        log.read_exact_at(&mut last, end - 8).expect("what was printed");
        assert_eq!(&last, b"the end\n");
        assert!(end <= LOG_BYTES_MAX, "the log has grown to {end} bytes");
        self.connect();
        guest.settle();
        self.clients[0].write_all(b"typed").expect("room");
        let room = guest.room(64);
        assert_eq!(guest.request(0, &[room]), 5);
        assert_eq!(guest.bytes(room)[..5], *b"typed");
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    story::tell(input, &mut Terminal { folder, log: None, clients: Vec::new() });
}
