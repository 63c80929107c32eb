//! A device that gives everything back at once: what the transport itself is tested with.

use crate::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, StateError, StateReader, StateWriter, VirtioDevice,
};

/// See the head of this file.
pub(crate) struct Echo {
    pub(crate) sizes: Vec<u16>,
    pub(crate) fails_to_start: bool,
    chain: Chain,
}

impl Echo {
    pub(crate) fn new() -> Self {
        Self { sizes: vec![16, 8], fails_to_start: false, chain: Chain::default() }
    }
}

impl VirtioDevice for Echo {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Entropy
    }

    fn queue_sizes(&self) -> &[u16] {
        &self.sizes
    }

    fn features(&self) -> u64 {
        0b101
    }

    fn accepts(&self, features: u64) -> bool {
        features & 0b101 != 0b100
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        for (place, byte) in data.iter_mut().enumerate() {
            *byte = (offset as u8).wrapping_add(place as u8);
        }
    }

    fn activate(&mut self, _context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        if self.fails_to_start { Err(DeviceError::Driver("not today")) } else { Ok(()) }
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, queue: usize) -> Result<(), DeviceError> {
        while context.queues[queue].pop(context.memory, &mut self.chain)? {
            let bytes = self.chain.readable_bytes().min(self.chain.writable_bytes());
            let mut data = vec![0; bytes as usize];
            self.chain.read(context.memory, 0, &mut data)?;
            self.chain.write(context.memory, 0, &data)?;
            context.queues[queue].add_used(context.memory, self.chain.head(), bytes as u32)?;
        }
        Ok(())
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(42);
    }

    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        if state.u32()? == 42 { Ok(()) } else { Err(StateError::Value("not of an echo")) }
    }
}
