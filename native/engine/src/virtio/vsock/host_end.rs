//! The host's end of one connection: a unix socket that is never waited for, and the bytes of the guest that its reader
//! has not taken. What is held is bounded by the credit that the guest was given.

use fluxvm_sys::{Errno, guest_io};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use vm_memory::VolatileSlice;
use vm_memory::bitmap::BitmapSlice;

/// Bytes that the first read of a burst has room for, and that any has.
const APPETITE_BYTES: (u32, u32) = (4 * 1024, 256 * 1024);

/// What reading from the host's end gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now; the next edge tells when there is more.
    Nothing,
    /// No more will come, but the reader may still be there.
    Finished,
    /// Nobody is there any more.
    Gone,
}

/// A socket, what is known about it, and what is held for its reader.
pub struct HostEnd {
    stream: UnixStream,
    held: VecDeque<u8>,
    /// Whether a read may find something; cleared when one found nothing.
    pub readable: bool,
    writable: bool,
    /// The other side has ended at least its sending, so that a read will find the end.
    pub ending: bool,
    /// The other side has closed the socket altogether.
    pub hung_up: bool,
    /// Room to write is watched for.
    pub room_watched: bool,
    appetite_bytes: u32,
    /// The guest sends no more: the reader learns that once nothing is held.
    finish_after_held: bool,
}

impl HostEnd {
    /// Takes over a socket that does not block.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            held: VecDeque::new(),
            readable: true,
            writable: true,
            ending: false,
            hung_up: false,
            room_watched: false,
            appetite_bytes: APPETITE_BYTES.0,
            finish_after_held: false,
        }
    }

    /// Bytes for which the next read should have room: it grows while reads are filled.
    pub fn appetite_bytes(&self) -> u32 {
        self.appetite_bytes
    }

    /// Bytes held for the reader.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Reads straight into guest memory.
    pub fn read<B: BitmapSlice>(&mut self, slices: &[VolatileSlice<'_, B>]) -> Read {
        match guest_io::receive(self.stream.as_fd(), slices) {
            Ok(0) => self.ended(),
            Ok(bytes) => {
                self.learn(bytes, slices.iter().map(VolatileSlice::len).sum());
                Read::Bytes(bytes)
            }
            Err(Errno::AGAIN) => self.nothing(),
            Err(_) => Read::Gone,
        }
    }

    /// A read that is not filled has emptied the socket: what comes later brings an edge of its own.
    fn learn(&mut self, bytes: usize, room: usize) {
        if bytes < room {
            self.readable = self.ending;
            self.appetite_bytes = APPETITE_BYTES.0;
        } else {
            self.appetite_bytes = (self.appetite_bytes * 4).min(APPETITE_BYTES.1);
        }
    }

    /// Finds out, without taking a byte, whether there is anything to read.
    pub fn peek(&mut self) -> Read {
        match recv(&self.stream, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.ended(),
            Ok(_) => Read::Bytes(1),
            Err(Errno::AGAIN | Errno::INTR) => self.nothing(),
            Err(_) => Read::Gone,
        }
    }

    fn nothing(&mut self) -> Read {
        self.readable = false;
        Read::Nothing
    }

    fn ended(&mut self) -> Read {
        self.readable = false;
        if self.hung_up { Read::Gone } else { Read::Finished }
    }

    /// Writes a payload that lies in guest memory and holds what the reader does not take at once. Returns the bytes
    /// that the reader took.
    ///
    /// # Errors
    /// `PIPE` or another errno: nobody reads any more.
    pub fn write<B: BitmapSlice>(&mut self, payload: &[VolatileSlice<'_, B>]) -> Result<usize, Errno> {
        let written = if self.writable && self.held.is_empty() { self.send(payload)? } else { 0 };
        self.hold(payload, written);
        // A short write need not mean that the socket is full, and only a full one tells when it has room again.
        let flushed = if self.writable { self.flush()? } else { 0 };
        Ok(written + flushed)
    }

    fn send<B: BitmapSlice>(&mut self, payload: &[VolatileSlice<'_, B>]) -> Result<usize, Errno> {
        match guest_io::send(self.stream.as_fd(), payload) {
            Ok(bytes) => Ok(bytes),
            Err(Errno::AGAIN) => {
                self.writable = false;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    fn hold<B: BitmapSlice>(&mut self, payload: &[VolatileSlice<'_, B>], written: usize) {
        let mut skip = written;
        for slice in payload {
            let from = skip.min(slice.len());
            skip -= from;
            let Ok(rest) = slice.offset(from) else { continue };
            let mut bytes = vec![0; rest.len()];
            rest.copy_to(&mut bytes[..]);
            self.held.extend(bytes);
        }
    }

    /// Writes bytes of the device itself, before any of the guest.
    ///
    /// # Errors
    /// Any errno: the reader is gone or takes not even these few bytes.
    pub fn greet(&mut self, answer: &str) -> Result<(), Errno> {
        let sent = send(&self.stream, answer.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        if sent == answer.len() { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// The reader may have room again: writes what is held. Returns the bytes that it took.
    ///
    /// # Errors
    /// `PIPE` or another errno: nobody reads any more.
    pub fn flush(&mut self) -> Result<usize, Errno> {
        self.writable = true;
        let mut flushed = 0;
        while !self.held.is_empty() && self.writable {
            match send(&self.stream, self.held.as_slices().0, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(bytes) => {
                    self.held.drain(..bytes);
                    flushed += bytes;
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if flushed > 0 && self.held.is_empty() {
            self.held = VecDeque::new();
            self.finish_if_due();
        }
        Ok(flushed)
    }

    /// The guest sends no more: the reader sees the end after what is held.
    pub fn finish_writing(&mut self) {
        self.finish_after_held = true;
        self.finish_if_due();
    }

    fn finish_if_due(&mut self) {
        if self.finish_after_held && self.held.is_empty() {
            // A socket whose other side is gone needs no end.
            let _ = shutdown(&self.stream, Shutdown::Write);
        }
    }

    /// The guest reads no more: a writer on the host learns that by its next write.
    pub fn finish_reading(&mut self) {
        self.readable = false;
        // A socket whose other side is gone needs no end.
        let _ = shutdown(&self.stream, Shutdown::Read);
    }
}

impl AsFd for HostEnd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
