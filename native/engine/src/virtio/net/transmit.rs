//! One transmit queue: each chain is a frame with its header, and goes to the tap in one system call, straight from the
//! guest's buffers. What the kernel refuses is dropped, as a wire would.

use super::receive::HEADER_BYTES;
use crate::virtio::limiter::RateLimiter;
use crate::virtio::{Chain, DeviceError, GuestRam, Queue};
use fluxvm_sys::guest_io::{self, SLICES_MAX};
use fluxvm_sys::tap::Tap;
use std::os::fd::AsFd;

/// The shortest frame: two addresses and a type.
const FRAME_BYTES_MIN: u64 = 14;
/// The longest: an IP packet of 64 KiB, its link header and a VLAN tag.
const FRAME_BYTES_MAX: u64 = 65_536 + 18;

/// The state of one queue.
#[derive(Default)]
pub struct Transmitter {
    chain: Chain,
}

impl Transmitter {
    /// Moves frames from the guest to the tap, until there are none or the limiter holds the next one back.
    ///
    /// # Errors
    /// When the driver broke the rules.
    pub fn run(
        &mut self,
        memory: &GuestRam,
        queue: &mut Queue,
        tap: &Tap,
        limiter: &mut RateLimiter,
    ) -> Result<(), DeviceError> {
        while queue.pop(memory, &mut self.chain)? {
            if !limiter.take(self.chain.readable_bytes())? {
                queue.unpop();
                return Ok(());
            }
            self.send(memory, tap)?;
            queue.add_used(memory, self.chain.head(), 0)?;
        }
        Ok(())
    }

    fn send(&self, memory: &GuestRam, tap: &Tap) -> Result<(), DeviceError> {
        let frame_bytes = self.chain.readable_bytes().saturating_sub(HEADER_BYTES);
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame_bytes) {
            return Ok(());
        }
        let mut slices = Vec::with_capacity(self.chain.readable().len());
        self.chain.readable().slices(memory, 0, u64::MAX, &mut slices)?;
        if slices.len() <= SLICES_MAX {
            // A header that makes no sense, a link that is down, no memory: the frame is lost.
            let _ = guest_io::write(tap.as_fd(), &slices);
        }
        Ok(())
    }
}
