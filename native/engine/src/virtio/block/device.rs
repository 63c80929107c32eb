//! The device as the transport sees it: what it is made of, what wakes it, and its state.

use super::control::BlockControl;
use super::file_io::{Ended, FileIo, IoMode};
use super::serving::Pending;
use super::space::{QUEUE_SIZE, SPACE_BYTES, features, space};
use super::waiting::Waiting;
use crate::virtio::disk::{Disk, Run, SharedDisk};
use crate::virtio::limiter::{Limits, RateLimiter};
use crate::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, Interest, Readiness, StateError, StateReader, StateWriter,
    VirtioDevice, read_space,
};
use std::io;
use std::sync::{MutexGuard, PoisonError};

const QUEUE_SIZES: [u16; 1] = [QUEUE_SIZE];
pub(super) const SERIAL_BYTES: usize = 20;
const STATE_VERSION: u32 = 2;
/// Without requests that wait for room.
const STATE_VERSION_WITHOUT_WAITING: u32 = 1;

/// Tokens of watched descriptors.
const FILES: u32 = 0;
const LIMITER: u32 = 1;
const CONTROL: u32 = 2;
const ROOM: u32 = 3;

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

/// A disk of the guest.
pub struct Block {
    pub(super) disk: SharedDisk,
    pub(super) io: FileIo,
    pub(super) limiter: RateLimiter,
    control: BlockControl,
    pub(super) waiting: Waiting,
    pub(super) serial: [u8; SERIAL_BYTES],
    space: [u8; SPACE_BYTES],
    pub(super) bytes: u64,
    pub(super) read_only: bool,
    pub(super) pending: Box<[Option<Pending>]>,
    pub(super) free: Vec<u16>,
    pub(super) chain: Chain,
    pub(super) runs: Vec<Run>,
    pub(super) ended: Ended,
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
        let control = BlockControl::new(options.limits)?;
        Ok(Self {
            disk,
            io: FileIo::new(options.mode),
            limiter: RateLimiter::new(options.limits)?,
            waiting: Waiting::new(control.waiting())?,
            control,
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

    /// What the disk is changed by while the guest runs.
    pub fn control(&self) -> BlockControl {
        self.control.clone()
    }

    /// Whether files are reached through a ring.
    pub fn has_ring(&self) -> bool {
        self.io.ring().is_some()
    }
}

/// Layers change in single steps, so that a disk is good even when a holder of the lock panicked.
pub(super) fn locked(disk: &SharedDisk) -> MutexGuard<'_, Disk> {
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
        if let Some(ring) = self.io.ring() {
            context.events.watch(ring, FILES, Interest::READ)?;
        }
        context.events.watch(&self.limiter, LIMITER, Interest::READ)?;
        context.events.watch(&self.control, CONTROL, Interest::READ)?;
        context.events.watch(&self.waiting, ROOM, Interest::READ)?;
        Ok(())
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        // What is in flight ends in memory that the guest gave; only then may it have the memory back.
        let _ = self.io.forget_all();
        self.pending.fill(None);
        self.free = (0..QUEUE_SIZE).collect();
        if let Some(ring) = self.io.ring() {
            let _ = context.events.unwatch(ring);
        }
        let _ = context.events.unwatch(&self.limiter);
        let _ = context.events.unwatch(&self.control);
        let _ = context.events.unwatch(&self.waiting);
        let _ = self.limiter.disarm();
        let _ = self.waiting.replace(Vec::new());
    }

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, _queue: usize) -> Result<(), DeviceError> {
        self.serve(context)
    }

    fn process_event(&mut self, context: &mut DeviceContext<'_>, token: u32, _: Readiness) -> Result<(), DeviceError> {
        match token {
            LIMITER => self.limiter.woken()?,
            CONTROL => {
                self.control.woken();
                self.limiter.set(self.control.limits())?;
            }
            ROOM => self.try_again(context)?,
            _ => (),
        }
        self.serve(context)
    }

    fn quiesce(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        self.drain(context)
    }

    fn resume(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        self.try_again(context)
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(STATE_VERSION);
        state.u64(self.bytes);
        state.u16(self.waiting.asleep().len() as u16);
        self.waiting.asleep().iter().for_each(|head| state.u16(*head));
    }

    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        let found = state.u32()?;
        if ![STATE_VERSION, STATE_VERSION_WITHOUT_WAITING].contains(&found) {
            return Err(StateError::Version { found, wanted: STATE_VERSION });
        }
        if state.u64()? != self.bytes {
            return Err(StateError::Value("a disk of another size"));
        }
        let count = if found == STATE_VERSION { state.u16()? } else { 0 };
        if count > QUEUE_SIZE {
            return Err(StateError::Value("more requests than the queue has"));
        }
        let heads = (0..count).map(|_| state.u16()).collect::<Result<_, _>>()?;
        self.waiting.replace(heads).map_err(|_| StateError::Value("the host has no timer"))
    }
}
