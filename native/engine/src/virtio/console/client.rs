//! Whoever is connected to a console: a stream that is written as far as it takes bytes.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// What waits for a client that does not read; older bytes go first.
const WAITING_BYTES_MAX: usize = 64 << 10;

pub(super) struct Client {
    stream: UnixStream,
    waiting: VecDeque<u8>,
    /// It said that it will type no more; it may still read.
    pub(super) ended: bool,
}

impl Client {
    /// Takes over a connection, for which these bytes wait.
    pub(super) fn new(stream: UnixStream, latest: &Tail) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, waiting: latest.bytes.clone(), ended: false })
    }

    /// Whether something waits to be written.
    pub(super) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Hands text over, as far as the client takes it now.
    pub(super) fn send(&mut self, text: &[u8]) -> io::Result<()> {
        keep(&mut self.waiting, text);
        self.catch_up()
    }

    /// Writes what waits, as far as the client takes it now.
    pub(super) fn catch_up(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let (first, _) = self.waiting.as_slices();
            match self.stream.write(first) {
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What it typed, into `buffer`; nothing when there is nothing now, or it has ended.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.stream.read(buffer) {
            Ok(0) => {
                self.ended = true;
                Ok(0)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            result => result,
        }
    }
}

impl AsRawFd for Client {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// The latest bytes of the console, for who connects later.
#[derive(Default)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
}

impl Tail {
    pub(super) fn add(&mut self, text: &[u8]) {
        keep(&mut self.bytes, text);
    }
}

/// Adds to a queue that keeps the latest bytes only.
fn keep(queue: &mut VecDeque<u8>, text: &[u8]) {
    let text = &text[text.len().saturating_sub(WAITING_BYTES_MAX)..];
    let excess = (queue.len() + text.len()).saturating_sub(WAITING_BYTES_MAX);
    queue.drain(..excess);
    queue.extend(text);
}
