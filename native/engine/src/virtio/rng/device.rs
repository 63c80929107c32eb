//! One queue of writable buffers.

use crate::virtio::limiter::{Limits, RateLimiter};
use crate::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, Interest, Readiness, StateError, StateReader, StateWriter,
    VirtioDevice,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

const QUEUE_SIZES: [u16; 1] = [64];
/// The most that one request gets, in bytes; a driver asks again for more.
const REQUEST_BYTES_MAX: usize = 4096;
const STATE_VERSION: u32 = 1;
const LIMITER: u32 = 0;

/// The device.
pub struct Rng {
    chain: Chain,
    buffer: Box<[u8; REQUEST_BYTES_MAX]>,
    limiter: RateLimiter,
}

impl Rng {
    /// A source with limits on what the guest may draw.
    ///
    /// # Errors
    /// When the host has no descriptors left.
    pub fn new(limits: Limits) -> io::Result<Self> {
        let limiter = RateLimiter::new(limits)?;
        Ok(Self { chain: Chain::default(), buffer: Box::new([0; REQUEST_BYTES_MAX]), limiter })
    }

    fn serve(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        let queue = &mut context.queues[0];
        while queue.pop(context.memory, &mut self.chain)? {
            if self.chain.readable_bytes() > 0 {
                return Err(DeviceError::Driver("a request for randomness carries data"));
            }
            let wanted = self.chain.writable_bytes().min(REQUEST_BYTES_MAX as u64) as usize;
            if !self.limiter.take(wanted as u64)? {
                queue.unpop();
                return Ok(());
            }
            let random = &mut self.buffer[..wanted];
            fill(random)?;
            self.chain.write(context.memory, 0, random)?;
            queue.add_used(context.memory, self.chain.head(), wanted as u32)?;
        }
        Ok(())
    }
}

fn fill(mut random: &mut [u8]) -> io::Result<()> {
    while !random.is_empty() {
        match getrandom(&mut *random, GetRandomFlags::empty()) {
            Ok(filled) => random = &mut random[filled..],
            Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl VirtioDevice for Rng {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Entropy
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, _offset: u64, _data: &mut [u8]) {}

    fn activate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(context.events.watch(&self.limiter, LIMITER, Interest::READ)?)
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        let _ = context.events.unwatch(&self.limiter);
        let _ = self.limiter.disarm();
    }

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, _queue: usize) -> Result<(), DeviceError> {
        self.serve(context)
    }

    fn process_event(&mut self, context: &mut DeviceContext<'_>, _: u32, _: Readiness) -> Result<(), DeviceError> {
        self.limiter.woken()?;
        self.serve(context)
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(STATE_VERSION);
    }

    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        state.version(STATE_VERSION)
    }
}
