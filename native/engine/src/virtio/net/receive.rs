//! One receive queue: buffers of the guest wait here, in order, until the tap has a frame for them. The tap writes a frame
//! straight into them, and the guest sees all buffers of a frame at once.

use crate::virtio::limiter::RateLimiter;
use crate::virtio::{Chain, DeviceError, GuestRam, Queue};
use fluxvm_sys::Errno;
use fluxvm_sys::guest_io::{self, SLICES_MAX};
use fluxvm_sys::tap::Tap;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use vm_memory::VolatileSlice;

/// Bytes of the header in front of each frame.
pub const HEADER_BYTES: u64 = 12;
/// Where the header says how many buffers a frame lies in.
const BUFFER_COUNT_OFFSET: u64 = 10;
/// The longest frame with its header when the guest takes long segments (virtio 1.2, section 5.1.6.3.1).
const SEGMENT_BYTES: u64 = 65_562;
/// The longest frame without its payload: two addresses, a type and a VLAN tag.
const FRAME_OVERHEAD_BYTES: u64 = 18;

/// Frames that one call takes from the tap before other devices get their turn.
const FRAMES_AT_ONCE: u32 = 64;

/// Why receiving stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The tap has no frame, or others have to get their turn: the tap tells when to go on.
    Tap,
    /// The guest has offered too few buffers: it tells when there are more.
    Buffers,
    /// The limiter tells when to go on.
    Limit,
    /// The tap is gone.
    Gone,
}

/// What the driver chose.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// A frame may lie in several buffers.
    pub mergeable: bool,
    /// Bytes for which there must be room before a frame is taken.
    pub room_bytes: u64,
}

impl Shape {
    /// For frames with a payload of at most `mtu_bytes`, or for long segments.
    pub fn new(mergeable: bool, segments: bool, mtu_bytes: u16) -> Self {
        let frame = HEADER_BYTES + FRAME_OVERHEAD_BYTES + u64::from(mtu_bytes);
        Self { mergeable, room_bytes: if segments { SEGMENT_BYTES.max(frame) } else { frame } }
    }
}

/// The buffers of one queue.
#[derive(Default)]
pub struct Receiver {
    /// Taken from the queue and not given back, oldest first.
    waiting: VecDeque<Chain>,
    waiting_bytes: u64,
    /// Chains without content, to be used again.
    spare: Vec<Chain>,
    /// A frame of so many bytes lies in the first buffers, but the limiter holds it back.
    held_bytes: Option<u64>,
    used: Vec<(u16, u32)>,
}

impl Receiver {
    /// Moves frames from the tap to the guest.
    ///
    /// # Errors
    /// When the driver broke the rules.
    pub fn run(
        &mut self,
        memory: &GuestRam,
        queue: &mut Queue,
        tap: &Tap,
        shape: Shape,
        limiter: &mut RateLimiter,
    ) -> Result<Stopped, DeviceError> {
        for _ in 0..FRAMES_AT_ONCE {
            if self.held_bytes.is_none() {
                if !self.gather(memory, queue, shape)? {
                    return Ok(Stopped::Buffers);
                }
                match self.read(memory, tap, shape)? {
                    Ok(bytes) => self.held_bytes = bytes,
                    Err(Errno::AGAIN) => return Ok(Stopped::Tap),
                    Err(_) => return Ok(Stopped::Gone),
                }
            }
            if let Some(bytes) = self.held_bytes {
                if !limiter.take(bytes)? {
                    return Ok(Stopped::Limit);
                }
                self.give(memory, queue)?;
            }
        }
        Ok(Stopped::Tap)
    }

    /// Takes buffers from the queue until a frame has room, and tells whether it has.
    fn gather(&mut self, memory: &GuestRam, queue: &mut Queue, shape: Shape) -> Result<bool, DeviceError> {
        while !self.has_room(queue, shape) {
            let mut chain = self.spare.pop().unwrap_or_default();
            if !queue.pop(memory, &mut chain)? {
                self.spare.push(chain);
                return Ok(self.has_room(queue, shape));
            }
            if chain.writable_bytes() < HEADER_BYTES || chain.readable_bytes() > 0 {
                return Err(DeviceError::Driver("a buffer for frames has no room for a header or holds data"));
            }
            self.waiting_bytes += chain.writable_bytes();
            self.waiting.push_back(chain);
        }
        Ok(true)
    }

    fn has_room(&self, queue: &Queue, shape: Shape) -> bool {
        // A driver that has offered all it can cannot offer more; longer frames are then dropped.
        let is_all = self.waiting.len() == usize::from(queue.size());
        if shape.mergeable { self.waiting_bytes >= shape.room_bytes || is_all } else { !self.waiting.is_empty() }
    }

    /// Reads a frame into the first buffers. `None`: it did not fit and is dropped.
    fn read(&self, memory: &GuestRam, tap: &Tap, shape: Shape) -> Result<Result<Option<u64>, Errno>, DeviceError> {
        let mut slices = Vec::with_capacity(SLICES_MAX);
        let mut room_bytes = 0;
        for chain in self.waiting.iter().take(if shape.mergeable { usize::MAX } else { 1 }) {
            let before = slices.len();
            chain.writable().slices(memory, 0, u64::MAX, &mut slices)?;
            if slices.len() >= SLICES_MAX {
                slices.truncate(before);
                break;
            }
            room_bytes += chain.writable_bytes();
        }
        if room_bytes == 0 {
            return Err(DeviceError::Driver("a buffer for frames is in too many pieces"));
        }
        // The tap cuts off what does not fit; one more byte of room shows whether it did.
        let mut rest = [0; 1];
        slices.push(VolatileSlice::from(&mut rest[..]));
        Ok(guest_io::read(tap.as_fd(), &slices).map(|bytes| Some(bytes as u64).filter(|bytes| *bytes <= room_bytes)))
    }

    /// Gives the held frame to the guest.
    fn give(&mut self, memory: &GuestRam, queue: &mut Queue) -> Result<(), DeviceError> {
        let mut left = self.held_bytes.take().unwrap_or(0);
        self.used.clear();
        for chain in &self.waiting {
            if left == 0 {
                break;
            }
            let bytes = left.min(chain.writable_bytes());
            self.used.push((chain.head(), bytes as u32));
            left -= bytes;
        }
        let Some(first) = self.waiting.front() else { return Ok(()) };
        first.write(memory, BUFFER_COUNT_OFFSET, &(self.used.len() as u16).to_le_bytes())?;
        for chain in self.waiting.drain(..self.used.len()) {
            self.waiting_bytes -= chain.writable_bytes();
            self.spare.push(chain);
        }
        queue.add_used_together(memory, &self.used)?;
        Ok(())
    }

    /// Gives a held frame to the guest whatever the limiter says, and puts all other buffers back into the queue.
    ///
    /// # Errors
    /// When the driver broke the rules.
    pub fn put_back(&mut self, memory: &GuestRam, queue: &mut Queue) -> Result<(), DeviceError> {
        if self.held_bytes.is_some() {
            self.give(memory, queue)?;
        }
        while let Some(chain) = self.waiting.pop_back() {
            queue.unpop();
            self.spare.push(chain);
        }
        self.waiting_bytes = 0;
        Ok(())
    }

    /// Forgets all buffers, as the driver has.
    pub fn forget(&mut self) {
        self.held_bytes = None;
        self.spare.extend(self.waiting.drain(..));
        self.waiting_bytes = 0;
    }
}
