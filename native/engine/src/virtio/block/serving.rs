//! Requests on their way: taken from the queue, begun, kept while files work, and given back.

use super::device::{Block, SERIAL_BYTES, locked};
use super::request::{DATA_OFFSET, Range, Request, Status, parse};
use super::space::FEATURE_FLUSH;
use super::waiting::is_for_room;
use crate::virtio::disk::Source;
use crate::virtio::{Buffer, DeviceContext, DeviceError, GuestRam, QueueError};
use fluxvm_sys::uring::Direction;
use rustix::io::Errno;
use std::io;
use vm_memory::{Bytes, GuestAddress};

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Data(Direction),
    /// The data of the top layer.
    Sync,
    /// Its map, after its data.
    SyncMap,
}

/// How a request went so far; the worst counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Good,
    /// The host has no room for what it writes.
    NoRoom,
    Failed,
}

impl Outcome {
    fn of(error: &io::Error) -> Self {
        if Errno::from_io_error(error).is_some_and(is_for_room) { Self::NoRoom } else { Self::Failed }
    }
}

/// A request that was taken and not yet given back.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    head: u16,
    status: GuestAddress,
    stage: Stage,
    range: Range,
    /// Operations that have not ended.
    operations: u32,
    outcome: Outcome,
}

impl Block {
    /// Takes and gives back until there is nothing to do without waiting.
    pub(super) fn serve(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
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
        // Those that wait for room need theirs again.
        while self.free.len() > self.waiting.asleep().len() {
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

    /// Begins once more what waits for room.
    pub(super) fn try_again(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        for head in self.waiting.wake()? {
            context.queues[0].take(context.memory, head, &mut self.chain)?;
            let request = parse(&self.chain, context.memory, self.bytes, self.read_only)?;
            self.begin(context, request)?;
        }
        Ok(())
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
                if let Err(error) = done {
                    return self.fail(context, &error);
                }
                if context.features & FEATURE_FLUSH != 0 {
                    return self.answer(context, Status::Ok, 0);
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
            let buffers = self.chain.writable().pieces(skip, run.bytes);
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
            let copied = locked(&self.disk).copy_up(range.offset, range.bytes);
            if let Err(error) = copied {
                return self.fail(context, &error);
            }
        }
        let tag = self.keep(Stage::Data(Direction::Write), range)?;
        let file = locked(&self.disk).write_target();
        let buffers = self.chain.readable().pieces(DATA_OFFSET, range.bytes);
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
        self.pending[usize::from(tag)] =
            Some(Pending { head, status, stage, range, operations: 0, outcome: Outcome::Good });
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
        let outcome = match (pending.stage, result) {
            (_, Ok(())) => Outcome::Good,
            (Stage::Data(Direction::Write), Err(error)) if is_for_room(error) => Outcome::NoRoom,
            // Also a sync without room: the host may have dropped what it could not write, and would not say so again.
            _ => Outcome::Failed,
        };
        pending.outcome = pending.outcome.max(outcome);
        if pending.operations > 0 {
            return Ok(());
        }
        let (stage, range) = (pending.stage, pending.range);
        let next = match stage {
            _ if pending.outcome != Outcome::Good => None,
            Stage::Data(Direction::Write) => {
                locked(&self.disk).written(range.offset, range.bytes);
                // A driver that cannot flush must find its writes on disk.
                (context.features & FEATURE_FLUSH == 0).then_some(Stage::Sync)
            }
            Stage::Sync => match locked(&self.disk).write_map() {
                Ok(again) => again.then_some(Stage::SyncMap),
                Err(error) => {
                    pending.outcome = Outcome::of(&error);
                    None
                }
            },
            Stage::Data(Direction::Read) | Stage::SyncMap => None,
        };
        match next {
            Some(stage) => {
                pending.stage = stage;
                self.sync(context, tag)
            }
            None => self.finish(context, tag),
        }
    }

    fn finish(&mut self, context: &mut DeviceContext<'_>, tag: u16) -> Result<(), DeviceError> {
        let Some(pending) = self.pending[usize::from(tag)].take() else { return Ok(()) };
        self.free.push(tag);
        let (status, bytes) = match (pending.outcome, pending.stage) {
            (Outcome::NoRoom, _) => return Ok(self.waiting.add(pending.head)?),
            (Outcome::Failed, _) => (Status::Failed, 0),
            (Outcome::Good, Stage::Data(Direction::Read)) => (Status::Ok, pending.range.bytes as u32),
            (Outcome::Good, _) => (Status::Ok, 0),
        };
        self.reply(context, pending.head, pending.status, status, bytes)
    }

    /// The host did not do what the current chain, which was not kept, needs.
    fn fail(&mut self, context: &mut DeviceContext<'_>, error: &io::Error) -> Result<(), DeviceError> {
        match Outcome::of(error) {
            Outcome::NoRoom => Ok(self.waiting.add(self.chain.head())?),
            _ => self.answer(context, Status::Failed, 0),
        }
    }

    /// Answers the current chain, which was not kept.
    fn answer(&mut self, context: &mut DeviceContext<'_>, status: Status, bytes: u32) -> Result<(), DeviceError> {
        let address = self.status_address()?;
        self.reply(context, self.chain.head(), address, status, bytes)
    }

    fn reply(
        &mut self,
        context: &mut DeviceContext<'_>,
        head: u16,
        address: GuestAddress,
        status: Status,
        bytes: u32,
    ) -> Result<(), DeviceError> {
        self.waiting.answered(head);
        context.memory.write_obj(status as u8, address).map_err(|_| QueueError::Buffer)?;
        context.queues[0].add_used(context.memory, head, bytes + 1)?;
        Ok(())
    }

    /// The last writable byte of the current chain.
    fn status_address(&self) -> Result<GuestAddress, QueueError> {
        let last = self.chain.writable().last().ok_or(QueueError::Chain)?;
        Ok(GuestAddress(last.address.0 + u64::from(last.bytes) - 1))
    }

    /// Waits until nothing is in flight.
    pub(super) fn drain(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        while self.io.is_busy() {
            self.io.wait()?;
            self.give_back(context)?;
        }
        Ok(())
    }
}

fn clear(memory: &GuestRam, buffers: impl Iterator<Item = Buffer>) -> Result<(), QueueError> {
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
