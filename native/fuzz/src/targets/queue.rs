//! Virtqueues: chains of every kind, taken and given back by the plainest of devices.

use crate::guest::Guest;
use crate::script::Script;
use crate::story::{self, Direction, Subject};
use fluxvm_engine::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, StateError, StateReader, StateWriter, VirtioDevice,
};

/// What one request echoes at most.
const ECHO_BYTES_MAX: u64 = 64 << 10;

/// A device that gives back what it gets, with two queues.
#[derive(Default)]
pub struct Echo {
    chain: Chain,
}

impl VirtioDevice for Echo {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Entropy
    }

    fn queue_sizes(&self) -> &[u16] {
        &[64, 16]
    }

    fn features(&self) -> u64 {
        0b101
    }

    fn accepts(&self, features: u64) -> bool {
        features & 0b101 != 0b100
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        fluxvm_engine::virtio::read_space(b"echo", offset, data);
    }

    fn activate(&mut self, _context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, queue: usize) -> Result<(), DeviceError> {
        let queue = &mut context.queues[queue];
        while queue.pop(context.memory, &mut self.chain)? {
            let bytes = self.chain.readable_bytes().min(self.chain.writable_bytes()).min(ECHO_BYTES_MAX);
            let mut data = vec![0; bytes as usize];
            self.chain.read(context.memory, 0, &mut data)?;
            self.chain.write(context.memory, 0, &data)?;
            queue.add_used(context.memory, self.chain.head(), bytes as u32)?;
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

/// Asks an echo that was started by an honest driver.
pub fn check_echo(guest: &mut Guest) {
    let (question, room) = (guest.give(b"is anybody there"), guest.room(64));
    assert_eq!(guest.request(1, &[question, room]), 16);
    assert_eq!(guest.bytes(room)[..16], *b"is anybody there");
}

struct Queues;

impl Subject for Queues {
    fn device(&mut self) -> Box<dyn VirtioDevice> {
        Box::<Echo>::default()
    }

    fn direction(&self, _: usize) -> Direction {
        Direction::Both
    }

    fn request(&mut self, _: usize, script: &mut Script<'_>) -> Vec<u8> {
        script.bytes(16)
    }

    fn check(&mut self, guest: &mut Guest) {
        check_echo(guest);
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    story::tell(input, &mut Queues);
}
