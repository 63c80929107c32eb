//! The keyboard controller (i8042) without a keyboard: all that is left of it is its line to the reset pin.

use crate::arch::layout::KEYBOARD_RESET;
use crate::bus::BusDevice;

/// Ports 0x60 to 0x64.
pub const PORTS: u64 = 5;
const COMMAND: u64 = 4;
/// Nothing to read, ready for a command.
const STATUS_IDLE: u8 = 0;

/// The controller, with what is to happen on a reset.
pub struct Keyboard {
    reset: Box<dyn FnMut() + Send>,
}

impl Keyboard {
    /// `reset` is called from the thread of the vCPU that asks.
    pub fn new(reset: impl FnMut() + Send + 'static) -> Self {
        Self { reset: Box::new(reset) }
    }
}

impl BusDevice for Keyboard {
    fn read(&mut self, _: u64, data: &mut [u8]) {
        data.fill(STATUS_IDLE);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset == COMMAND && data.contains(&KEYBOARD_RESET) {
            (self.reset)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn only_the_reset_command_resets_and_the_status_is_idle() {
        let resets = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&resets);
        let mut keyboard = Keyboard::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        keyboard.write(0, &[KEYBOARD_RESET]);
        keyboard.write(COMMAND, &[0xD1]);
        assert_eq!(resets.load(Ordering::Relaxed), 0);
        keyboard.write(COMMAND, &[KEYBOARD_RESET]);
        assert_eq!(resets.load(Ordering::Relaxed), 1);
        let mut status = [1];
        keyboard.read(COMMAND, &mut status);
        assert_eq!(status, [0]);
    }
}
