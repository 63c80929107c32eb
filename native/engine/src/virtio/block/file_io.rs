//! How requests reach files: through a ring of the kernel, or one after the other where there is none.

use crate::virtio::{Buffer, GuestRam};
use fluxvm_sys::disk_io;
use fluxvm_sys::uring::{Direction, Ring};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use vm_memory::GuestMemoryBackend;

/// Operations that a ring takes at once.
const OPERATIONS: u32 = 256;

/// Which way to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// A ring where the host has one, else as [`Self::Direct`].
    #[default]
    Ring,
    /// Each operation on the reactor's thread.
    Direct,
}

/// What ended, and how.
pub(super) type Ended = Vec<(u64, Result<(), Errno>)>;

/// The way.
pub(super) struct FileIo {
    ring: Option<Ring>,
    ended: Ended,
}

impl FileIo {
    pub(super) fn new(mode: IoMode) -> Self {
        let ring = if mode == IoMode::Ring { Ring::new(OPERATIONS).ok() } else { None };
        Self { ring, ended: Vec::new() }
    }

    /// What is to be watched for what does not end at once.
    pub(super) fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref()
    }

    /// Moves bytes between a file and buffers. The result comes with [`Self::take_ended`].
    pub(super) fn transfer(
        &mut self,
        tag: u64,
        direction: Direction,
        file: &Arc<File>,
        offset: u64,
        memory: &Arc<GuestRam>,
        buffers: impl Iterator<Item = Buffer>,
    ) -> io::Result<()> {
        let Some(ring) = self.ring.as_mut() else {
            let result = direct(direction, file, offset, memory, buffers);
            self.ended.push((tag, result));
            return Ok(());
        };
        make_room(ring, &mut self.ended)?;
        let buffers = buffers.map(|buffer| (buffer.address, buffer.bytes as usize));
        Ok(ring.transfer(tag, direction, file, offset, memory, buffers)?)
    }

    /// Brings the data of a file to disk.
    pub(super) fn sync(&mut self, tag: u64, file: &Arc<File>) -> io::Result<()> {
        let Some(ring) = self.ring.as_mut() else {
            self.ended.push((tag, rustix::fs::fdatasync(&**file)));
            return Ok(());
        };
        make_room(ring, &mut self.ended)?;
        Ok(ring.sync(tag, file)?)
    }

    /// Starts what was asked for and takes what has ended, into `ended`.
    pub(super) fn take_ended(&mut self, ended: &mut Ended) -> io::Result<()> {
        if let Some(ring) = self.ring.as_mut() {
            ring.submit()?;
            ring.reap(&mut self.ended)?;
        }
        ended.append(&mut self.ended);
        Ok(())
    }

    /// Whether something is in flight or has ended and was not taken.
    pub(super) fn is_busy(&self) -> bool {
        !self.ended.is_empty() || self.ring.as_ref().is_some_and(|ring| ring.in_flight() > 0)
    }

    /// Waits until nothing is in flight, and forgets the results.
    pub(super) fn forget_all(&mut self) -> io::Result<()> {
        while self.is_busy() {
            self.wait()?;
            self.take_ended(&mut Vec::new())?;
        }
        Ok(())
    }

    /// Waits until something has ended; returns at once when nothing is in flight.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        if let Some(ring) = self.ring.as_mut().filter(|_| self.ended.is_empty()) {
            ring.wait()?;
        }
        Ok(())
    }
}

fn make_room(ring: &mut Ring, ended: &mut Ended) -> io::Result<()> {
    while !ring.has_room() {
        ring.wait()?;
        ring.reap(ended)?;
    }
    Ok(())
}

fn direct(
    direction: Direction,
    file: &File,
    offset: u64,
    memory: &GuestRam,
    buffers: impl Iterator<Item = Buffer>,
) -> Result<(), Errno> {
    let slices = buffers
        .map(|buffer| memory.get_slice(buffer.address, buffer.bytes as usize).map_err(|_| Errno::FAULT))
        .collect::<Result<Vec<_>, _>>()?;
    match direction {
        Direction::Read => disk_io::read_at(file.as_fd(), &slices, offset),
        Direction::Write => disk_io::write_at(file.as_fd(), &slices, offset),
    }
}
