//! One queue of requests to flush, and a configuration space that says where the memory lies.

use crate::memory::Image;
use crate::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, StateError, StateReader, StateWriter, VirtioDevice, read_space,
};

const QUEUE_SIZES: [u16; 1] = [64];
const STATE_VERSION: u32 = 1;
const FLUSH: u32 = 0;
const DONE: u32 = 0;
const FAILED: u32 = u32::MAX;
const WORD_BYTES: usize = size_of::<u32>();

/// The device.
pub struct Pmem {
    start: u64,
    bytes: u64,
    chain: Chain,
}

impl Pmem {
    /// The device of an image, which the machine must have among its own.
    #[must_use]
    pub fn new(image: &Image) -> Self {
        Self { start: image.start(), bytes: image.bytes(), chain: Chain::default() }
    }
}

impl VirtioDevice for Pmem {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Pmem
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let mut space = [0; 16];
        space[..8].copy_from_slice(&self.start.to_le_bytes());
        space[8..].copy_from_slice(&self.bytes.to_le_bytes());
        read_space(&space, offset, data);
    }

    fn activate(&mut self, _context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, queue: usize) -> Result<(), DeviceError> {
        while context.queues[queue].pop(context.memory, &mut self.chain)? {
            if self.chain.writable_bytes() < WORD_BYTES as u64 {
                return Err(DeviceError::Driver("a request to flush has no room for an answer"));
            }
            let mut request = [0; WORD_BYTES];
            let is_whole = self.chain.readable_bytes() >= WORD_BYTES as u64;
            if is_whole {
                self.chain.read(context.memory, 0, &mut request)?;
            }
            let answer = if is_whole && u32::from_le_bytes(request) == FLUSH { DONE } else { FAILED };
            self.chain.write(context.memory, 0, &answer.to_le_bytes())?;
            context.queues[queue].add_used(context.memory, self.chain.head(), WORD_BYTES as u32)?;
        }
        Ok(())
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(STATE_VERSION);
        state.u64(self.start);
        state.u64(self.bytes);
    }

    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        state.version(STATE_VERSION)?;
        if (state.u64()?, state.u64()?) != (self.start, self.bytes) {
            return Err(StateError::Value("an image of another length or in another place"));
        }
        Ok(())
    }
}
