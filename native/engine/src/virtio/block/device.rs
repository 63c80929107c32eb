//! The device: takes requests, keeps them while files work, and gives them back.

use super::file_io::{Ended, FileIo, IoMode};
use super::request::{DATA_OFFSET, Range, Request, Status, parse};
use super::space::{FEATURE_FLUSH, QUEUE_SIZE, SPACE_BYTES, features, space};
use crate::virtio::disk::{Disk, Run, SharedDisk, Source};
use crate::virtio::limiter::{Limits, RateLimiter};
use crate::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, GuestRam, Interest, QueueError, Readiness, StateError, StateReader,
    StateWriter, VirtioDevice, read_space,
};
use fluxvm_sys::uring::Direction;
use rustix::io::Errno;
use std::io;
use std::sync::{MutexGuard, PoisonError};
use vm_memory::{Bytes, GuestAddress};

const QUEUE_SIZES: [u16; 1] = [QUEUE_SIZE];
const SERIAL_BYTES: usize = 20;
const STATE_VERSION: u32 = 1;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Tokens of watched descriptors.
const FILES: u32 = 0;
const LIMITER: u32 = 1;

/// How a disk looks to the guest and works on the host.
#[derive(Clone, Debug, Default)]
pub struct BlockOptions {
    /// What the guest reads as the serial number; the first 20 bytes of it.
    pub serial: String,
    /// Limits of bandwidth and operations.
    pub limits: Limits,
    /// How files are reached.
    pub mode: IoMode,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Data(Direction),
    /// The data of the top layer.
    Sync,
    /// Its map, after its data.
    SyncMap,
}

/// A request that was taken and not yet given back.
#[derive(Clone, Copy)]
struct Pending {
    head: u16,
    status: GuestAddress,
    stage: Stage,
    range: Range,
    /// Operations that have not ended.
    operations: u32,
    failed: bool,
}

/// A disk of the guest.
pub struct Block {
    disk: SharedDisk,
    io: FileIo,
    limiter: RateLimiter,
    serial: [u8; SERIAL_BYTES],
    space: [u8; SPACE_BYTES],
    bytes: u64,
    read_only: bool,
    pending: Box<[Option<Pending>]>,
    free: Vec<u16>,
    chain: Chain,
    runs: Vec<Run>,
    ended: Ended,
}

impl Block {
    /// A device for a disk, which whoever made it may change while the device stands still.
    ///
    /// # Errors
    /// When the host has no descriptors left.
    pub fn new(disk: SharedDisk, options: &BlockOptions) -> io::Result<Self> {
        let (bytes, read_only) = {
            let disk = locked(&disk);
            (disk.bytes(), disk.is_read_only())
        };
        let mut serial = [0; SERIAL_BYTES];
        let shown = options.serial.len().min(SERIAL_BYTES);
        serial[..shown].copy_from_slice(&options.serial.as_bytes()[..shown]);
        Ok(Self {
            disk,
            io: FileIo::new(options.mode)?,
            limiter: RateLimiter::new(options.limits)?,
            serial,
            space: space(bytes),
            bytes,
            read_only,
            pending: vec![None; usize::from(QUEUE_SIZE)].into(),
            free: (0..QUEUE_SIZE).collect(),
            chain: Chain::default(),
            runs: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// Whether files are reached through a ring.
    pub fn has_ring(&self) -> bool {
        self.io.has_ring()
    }

    /// Takes and gives back until there is nothing to do without waiting.
    fn serve(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        loop {
            let full = self.take_requests(context)?;
            let before = self.free.len();
            self.give_back(context)?;
            if !full || self.free.len() == before {
                return Ok(());
            }
        }
    }

    /// Takes requests, and tells whether it stopped because as many as fit are in flight.
    fn take_requests(&mut self, context: &mut DeviceContext<'_>) -> Result<bool, DeviceError> {
        while !self.free.is_empty() {
            if !context.queues[0].pop(context.memory, &mut self.chain)? {
                return Ok(false);
            }
            let request = parse(&self.chain, context.memory, self.bytes, self.read_only)?;
            let moved = match request {
                Request::Read(range) | Request::Write(range) => range.bytes,
                _ => 0,
            };
            if !self.limiter.take(moved)? {
                context.queues[0].unpop();
                return Ok(false);
            }
            self.begin(context, request)?;
        }
        Ok(true)
    }

    fn begin(&mut self, context: &mut DeviceContext<'_>, request: Request) -> Result<(), DeviceError> {
        match request {
            Request::Refuse(status) => self.answer(context, status, 0),
            Request::Identify => {
                let bytes = (self.chain.writable_bytes() - 1).min(SERIAL_BYTES as u64);
                self.chain.write(context.memory, 0, &self.serial[..bytes as usize])?;
                self.answer(context, Status::Ok, bytes as u32)
            }
            Request::Zero(ranges) => {
                self.drain(context)?;
                // Zeros may have to be written, which takes its time.
                context.queues[0].end_turn();
                let done = ranges
                    .iter()
                    .try_for_each(|(range, unmap)| locked(&self.disk).zero(range.offset, range.bytes, *unmap));
                if done.is_err() || context.features & FEATURE_FLUSH != 0 {
                    return self.answer(context, if done.is_ok() { Status::Ok } else { Status::Failed }, 0);
                }
                let tag = self.keep(Stage::Sync, Range { offset: 0, bytes: 0 })?;
                self.sync(context, tag)
            }
            Request::Flush => {
                let tag = self.keep(Stage::Sync, Range { offset: 0, bytes: 0 })?;
                self.sync(context, tag)
            }
            Request::Read(range) => self.read(context, range),
            Request::Write(range) => self.write(context, range),
        }
    }

    fn read(&mut self, context: &mut DeviceContext<'_>, range: Range) -> Result<(), DeviceError> {
        let tag = self.keep(Stage::Data(Direction::Read), range)?;
        let mut runs = std::mem::take(&mut self.runs);
        locked(&self.disk).read_runs(range.offset, range.bytes, &mut runs);
        let mut files = 0;
        for run in &runs {
            let skip = run.offset - range.offset;
            let buffers = self.chain.writable_pieces(skip, run.bytes);
            match &run.source {
                Source::Zeros => clear(context.memory, buffers)?,
                Source::File(file, offset) => {
                    files += 1;
                    self.io.transfer(u64::from(tag), Direction::Read, file, *offset, context.memory, buffers)?;
                }
            }
        }
        runs.clear();
        self.runs = runs;
        self.expect(context, tag, files)
    }

    fn write(&mut self, context: &mut DeviceContext<'_>, range: Range) -> Result<(), DeviceError> {
        if locked(&self.disk).needs_copy_up(range.offset, range.bytes) {
            self.drain(context)?;
            if locked(&self.disk).copy_up(range.offset, range.bytes).is_err() {
                return self.answer(context, Status::Failed, 0);
            }
        }
        let tag = self.keep(Stage::Data(Direction::Write), range)?;
        let file = locked(&self.disk).write_target();
        let buffers = self.chain.readable_pieces(DATA_OFFSET, range.bytes);
        self.io.transfer(u64::from(tag), Direction::Write, &file, range.offset, context.memory, buffers)?;
        self.expect(context, tag, 1)
    }

    /// Begins the sync of a request, which ends at once where nothing outlives the layer.
    fn sync(&mut self, context: &mut DeviceContext<'_>, tag: u16) -> Result<(), DeviceError> {
        let target = locked(&self.disk).sync_target();
        match target {
            Some(file) => {
                self.io.sync(u64::from(tag), &file)?;
                self.expect(context, tag, 1)
            }
            None => self.expect(context, tag, 0),
        }
    }

    /// Keeps the request of the current chain.
    fn keep(&mut self, stage: Stage, range: Range) -> Result<u16, DeviceError> {
        let status = self.status_address()?;
        let tag = self.free.pop().ok_or(DeviceError::Driver("more requests than the queue has"))?;
        let head = self.chain.head();
        self.pending[usize::from(tag)] = Some(Pending { head, status, stage, range, operations: 0, failed: false });
        Ok(tag)
    }

    /// Notes how many operations a request waits for; without any it is done.
    fn expect(&mut self, context: &mut DeviceContext<'_>, tag: u16, operations: u32) -> Result<(), DeviceError> {
        if let Some(pending) = self.pending[usize::from(tag)].as_mut() {
            pending.operations += operations;
        }
        if operations == 0 { self.finish(context, tag) } else { Ok(()) }
    }

    /// Gives back what has ended without waiting.
    fn give_back(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        loop {
            let mut ended = std::mem::take(&mut self.ended);
            self.io.take_ended(&mut ended)?;
            if ended.is_empty() {
                self.ended = ended;
                return Ok(());
            }
            for (tag, result) in ended.drain(..) {
                self.operation_ended(context, tag as u16, result)?;
            }
            self.ended = ended;
        }
    }

    fn operation_ended(
        &mut self,
        context: &mut DeviceContext<'_>,
        tag: u16,
        result: Result<(), Errno>,
    ) -> Result<(), DeviceError> {
        let Some(pending) = self.pending[usize::from(tag)].as_mut() else { return Ok(()) };
        pending.operations -= 1;
        pending.failed |= result.is_err();
        let (left, failed, stage, range) = (pending.operations, pending.failed, pending.stage, pending.range);
        if left > 0 {
            return Ok(());
        }
        let next = match stage {
            _ if failed => None,
            Stage::Data(Direction::Write) => {
                locked(&self.disk).written(range.offset, range.bytes);
                // A driver that cannot flush must find its writes on disk.
                (context.features & FEATURE_FLUSH == 0).then_some(Stage::Sync)
            }
            Stage::Sync => {
                let written = locked(&self.disk).write_map();
                match written {
                    Ok(again) => again.then_some(Stage::SyncMap),
                    Err(_) => {
                        self.pending[usize::from(tag)].as_mut().expect("still there").failed = true;
                        None
                    }
                }
            }
            Stage::Data(Direction::Read) | Stage::SyncMap => None,
        };
        match next {
            Some(stage) => {
                self.pending[usize::from(tag)].as_mut().expect("still there").stage = stage;
                self.sync(context, tag)
            }
            None => self.finish(context, tag),
        }
    }

    fn finish(&mut self, context: &mut DeviceContext<'_>, tag: u16) -> Result<(), DeviceError> {
        let Some(pending) = self.pending[usize::from(tag)].take() else { return Ok(()) };
        self.free.push(tag);
        let status = if pending.failed { Status::Failed } else { Status::Ok };
        let read = pending.stage == Stage::Data(Direction::Read) && !pending.failed;
        let bytes = if read { pending.range.bytes as u32 } else { 0 };
        reply(context, pending.head, pending.status, status, bytes)
    }

    /// Answers the current chain, which was not kept.
    fn answer(&mut self, context: &mut DeviceContext<'_>, status: Status, bytes: u32) -> Result<(), DeviceError> {
        let address = self.status_address()?;
        reply(context, self.chain.head(), address, status, bytes)
    }

    /// The last writable byte of the current chain.
    fn status_address(&self) -> Result<GuestAddress, QueueError> {
        let last = self.chain.writable().last().ok_or(QueueError::Chain)?;
        Ok(GuestAddress(last.address.0 + u64::from(last.bytes) - 1))
    }

    /// Waits until nothing is in flight.
    fn drain(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        while self.io.is_busy() {
            self.io.wait()?;
            self.give_back(context)?;
        }
        Ok(())
    }
}

fn reply(
    context: &mut DeviceContext<'_>,
    head: u16,
    address: GuestAddress,
    status: Status,
    bytes: u32,
) -> Result<(), DeviceError> {
    context.memory.write_obj(status as u8, address).map_err(|_| QueueError::Buffer)?;
    context.queues[0].add_used(context.memory, head, bytes + 1)?;
    Ok(())
}

fn clear(memory: &GuestRam, buffers: impl Iterator<Item = crate::virtio::Buffer>) -> Result<(), QueueError> {
    for buffer in buffers {
        let mut at = 0;
        while at < buffer.bytes {
            let piece = (ZEROS.len() as u32).min(buffer.bytes - at);
            let address = GuestAddress(buffer.address.0 + u64::from(at));
            memory.write_slice(&ZEROS[..piece as usize], address).map_err(|_| QueueError::Buffer)?;
            at += piece;
        }
    }
    Ok(())
}

/// Layers change in single steps, so that a disk is good even when a holder of the lock panicked.
fn locked(disk: &SharedDisk) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VirtioDevice for Block {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Block
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        features(self.read_only)
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_space(&self.space, offset, data);
    }

    fn activate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        context.events.watch(&self.io, FILES, Interest::READ)?;
        context.events.watch(&self.limiter, LIMITER, Interest::READ)?;
        Ok(())
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        // What is in flight ends in memory that the guest gave; only then may it have the memory back.
        let _ = self.io.forget_all();
        self.pending.fill(None);
        self.free = (0..QUEUE_SIZE).collect();
        let _ = context.events.unwatch(&self.io);
        let _ = context.events.unwatch(&self.limiter);
        let _ = self.limiter.disarm();
    }

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, _queue: usize) -> Result<(), DeviceError> {
        self.serve(context)
    }

    fn process_event(&mut self, context: &mut DeviceContext<'_>, token: u32, _: Readiness) -> Result<(), DeviceError> {
        if token == LIMITER {
            self.limiter.woken()?;
        } else {
            self.io.woken();
        }
        self.serve(context)
    }

    fn quiesce(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        self.drain(context)
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(STATE_VERSION);
        state.u64(self.bytes);
    }

    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        state.version(STATE_VERSION)?;
        if state.u64()? == self.bytes { Ok(()) } else { Err(StateError::Value("a disk of another size")) }
    }
}
