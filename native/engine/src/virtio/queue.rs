//! A split queue as a device uses it: chains come out checked, used buffers go back in batches. The rings are those of
//! `virtio-queue`; what is added here is that a broken chain is an error and not a short one, and that limits hold.

use super::chain::Chain;
use super::{FEATURE_EVENT_INDEX, GuestRam};
use std::num::Wrapping;
use std::sync::atomic::{Ordering, fence};
use thiserror::Error;
use virtio_queue::{Queue as Ring, QueueOwnedT, QueueState, QueueT};
use vm_memory::{Bytes, GuestAddress};

/// How often a full queue may be emptied before others get their turn.
const TURN_QUEUES: u32 = 2;

const AVAILABLE_HEADER_BYTES: u64 = 4;
const AVAILABLE_ENTRY_BYTES: u64 = 2;
const USED_HEADER_BYTES: u64 = 4;
const USED_ENTRY_BYTES: u64 = 8;
const AVAILABLE_NO_INTERRUPT: u16 = 1;

/// What a driver did wrong with a queue.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum QueueError {
    /// More is available than the queue can hold, or the ring is not in guest memory.
    #[error("the queue makes no sense")]
    Ring,
    /// A chain is empty, endless, too long, broken off, or names a descriptor that does not exist.
    #[error("a chain of descriptors is broken")]
    Chain,
    /// A buffer that the device shall read comes after one that it shall write.
    #[error("a chain of descriptors has its buffers in the wrong order")]
    Order,
    /// A buffer is not in guest memory.
    #[error("a buffer is not in guest memory")]
    Buffer,
}

/// One queue of an active device, or the registers of one that is being set up.
pub struct Queue {
    ring: Ring,
    /// Used index up to which the driver was told.
    signalled: Wrapping<u16>,
    /// Chains that may still be taken in this turn.
    turn: u32,
    /// The device saw the end of the queue since notifications were last turned on.
    drained: bool,
    /// Somebody outside has it.
    outside: bool,
}

impl Queue {
    /// A queue that is not set up. `size_max` is a power of two that the device chose.
    pub(super) fn new(size_max: u16) -> Self {
        let ring = Ring::new(size_max).expect("devices choose sizes that are powers of two");
        Self { ring, signalled: Wrapping(0), turn: 0, drained: false, outside: false }
    }

    /// Whether the driver set the queue up.
    pub fn is_ready(&self) -> bool {
        self.ring.ready()
    }

    /// The size that the driver chose, in descriptors.
    pub fn size(&self) -> u16 {
        self.ring.size()
    }

    /// Takes the next chain, or returns false when there is none now. After a false the device needs no event of its own
    /// to be called again.
    ///
    /// # Errors
    /// When the driver broke the rules.
    pub fn pop(&mut self, memory: &GuestRam, chain: &mut Chain) -> Result<bool, QueueError> {
        if !self.ring.ready() || self.outside || self.turn == 0 {
            return Ok(false);
        }
        let mut heads = self.ring.iter(memory).map_err(|_| QueueError::Ring)?;
        let Some(head) = heads.next().map(|descriptors| descriptors.head_index()) else {
            self.drained = true;
            return Ok(false);
        };
        self.turn -= 1;
        self.take(memory, head, chain)?;
        Ok(true)
    }

    /// Takes a chain once more that came before and was not given back.
    ///
    /// # Errors
    /// When it breaks the rules, which also a driver can bring about that changes it meanwhile, or the queue is not set up.
    pub fn take(&self, memory: &GuestRam, head: u16, chain: &mut Chain) -> Result<(), QueueError> {
        if !self.ring.ready() || self.outside {
            return Err(QueueError::Ring);
        }
        chain.read_from(memory, self.ring.desc_table(), self.ring.size(), head)
    }

    /// Puts the last chain back, for a device that cannot serve it now and will come back by an event of its own.
    pub fn unpop(&mut self) {
        self.ring.go_to_previous_position();
        self.turn += 1;
    }

    /// Whether the driver has made something available, without taking it.
    ///
    /// # Errors
    /// As [`Self::pop`].
    pub fn is_empty(&self, memory: &GuestRam) -> Result<bool, QueueError> {
        if !self.ring.ready() {
            return Ok(true);
        }
        let index = self.ring.avail_idx(memory, Ordering::Acquire).map_err(|_| QueueError::Ring)?;
        Ok(index.0 == self.ring.next_avail())
    }

    /// Gives a chain back, with how many bytes of its writable buffers were written.
    ///
    /// # Errors
    /// When the head is not one of the queue.
    pub fn add_used(&mut self, memory: &GuestRam, head: u16, bytes: u32) -> Result<(), QueueError> {
        self.ring.add_used(memory, head, bytes).map_err(|_| QueueError::Ring)
    }

    /// Gives several chains back at once: the driver sees all of them or none.
    ///
    /// # Errors
    /// When a head is not one of the queue, or there are more than it holds.
    pub fn add_used_together(&mut self, memory: &GuestRam, used: &[(u16, u32)]) -> Result<(), QueueError> {
        let Some(((last, last_bytes), before)) = used.split_last() else { return Ok(()) };
        if used.len() > usize::from(self.size()) || used.iter().any(|(head, _)| *head >= self.size()) {
            return Err(QueueError::Ring);
        }
        let mut next = self.ring.next_used();
        for (head, bytes) in before {
            let slot = u64::from(next % self.size());
            let entry = self.address(self.ring.used_ring(), USED_HEADER_BYTES + slot * USED_ENTRY_BYTES)?;
            let value = u64::from(*head) | u64::from(*bytes) << 32;
            memory.write_obj(value.to_le(), entry).map_err(|_| QueueError::Ring)?;
            next = next.wrapping_add(1);
        }
        self.ring.set_next_used(next);
        self.add_used(memory, *last, *last_bytes)
    }

    /// Ends the turn: what is available waits until others had theirs. For a device that has done something long.
    pub fn end_turn(&mut self) {
        self.turn = 0;
        self.drained = false;
    }

    /// Begins a turn: the device may take so many chains that it cannot keep others waiting for ever.
    pub(super) fn begin_turn(&mut self) {
        self.turn = u32::from(self.size()) * TURN_QUEUES;
        self.drained = false;
    }

    /// The device is about to look at the queue again in the same turn.
    pub(super) fn look_again(&mut self) {
        self.drained = false;
    }

    /// Whether the turn ended before the queue did.
    pub(super) fn turn_is_over(&self) -> bool {
        self.turn == 0
    }

    /// Whether the device saw the end of the queue in this turn.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Asks the driver to notify, and tells whether something came before it could have read that.
    pub(super) fn enable_notification(&mut self, memory: &GuestRam) -> Result<bool, QueueError> {
        if !self.ring.ready() {
            return Ok(false);
        }
        self.ring.enable_notification(memory).map_err(|_| QueueError::Ring)
    }

    /// Asks the driver to stay quiet; it may not listen.
    pub(super) fn disable_notification(&mut self, memory: &GuestRam) -> Result<(), QueueError> {
        if !self.ring.ready() {
            return Ok(());
        }
        self.ring.disable_notification(memory).map_err(|_| QueueError::Ring)
    }

    /// Whether the driver wants an interrupt for what was given back since the last one.
    pub(super) fn takes_interrupt(&mut self, memory: &GuestRam) -> Result<bool, QueueError> {
        let used = Wrapping(self.ring.next_used());
        let before = std::mem::replace(&mut self.signalled, used);
        if used == before {
            return Ok(false);
        }
        // What was given back must be visible before the driver's wish is read.
        fence(Ordering::SeqCst);
        let available = self.ring.avail_ring();
        if self.ring.event_idx_enabled() {
            let offset = AVAILABLE_HEADER_BYTES + u64::from(self.size()) * AVAILABLE_ENTRY_BYTES;
            let wish: u16 = self.load(memory, self.address(available, offset)?)?;
            return Ok(used - Wrapping(wish) - Wrapping(1) < used - before);
        }
        Ok(self.load(memory, self.address(available, 0)?)? & AVAILABLE_NO_INTERRUPT == 0)
    }

    /// Takes over what was negotiated.
    pub(super) fn start(&mut self, features: u64) {
        self.ring.set_event_idx(features & FEATURE_EVENT_INDEX != 0);
    }

    /// The registers, for the transport.
    pub(super) fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// The largest size that the driver may choose, in descriptors.
    pub(super) fn size_max(&self) -> u16 {
        self.ring.max_size()
    }

    /// Marks the queue as set up, when all of its rings lie in guest memory.
    pub(super) fn set_ready(&mut self, memory: &GuestRam, ready: bool) {
        self.ring.set_ready(ready);
        // An available ring at address zero is how the rings say "not set up".
        if ready && (!self.ring.is_valid(memory) || self.ring.avail_ring() == 0) {
            self.ring.set_ready(false);
        }
    }

    /// Forgets everything that the driver set up.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.size_max());
    }

    /// Whether somebody outside has the queue.
    pub(super) fn is_outside(&self) -> bool {
        self.outside
    }

    /// Somebody outside has it from now on.
    pub(super) fn leave(&mut self) {
        self.outside = true;
    }

    /// Goes on where somebody outside left it. What they gave back they have told the driver.
    pub(super) fn come_back(&mut self, memory: &GuestRam, next_available: u16) -> Result<(), QueueError> {
        self.outside = false;
        let used = self.ring.used_idx(memory, Ordering::Acquire).map_err(|_| QueueError::Ring)?;
        self.ring.set_next_avail(next_available);
        self.ring.set_next_used(used.0);
        self.signalled = used;
        Ok(())
    }

    /// What to keep of the queue.
    pub(super) fn state(&self) -> QueueState {
        self.ring.state()
    }

    /// A queue with this state, when the state is one that a driver could have made.
    pub(super) fn from_state(state: QueueState, memory: &GuestRam) -> Option<Self> {
        let ready = state.ready;
        let ring = Ring::try_from(state).ok()?;
        let mut queue = Self { signalled: Wrapping(ring.next_used()), ring, turn: 0, drained: false, outside: false };
        queue.set_ready(memory, ready);
        (queue.is_ready() == ready).then_some(queue)
    }

    fn address(&self, ring: u64, offset: u64) -> Result<GuestAddress, QueueError> {
        ring.checked_add(offset).map(GuestAddress).ok_or(QueueError::Ring)
    }

    fn load(&self, memory: &GuestRam, address: GuestAddress) -> Result<u16, QueueError> {
        memory.load(address, Ordering::Acquire).map(u16::from_le).map_err(|_| QueueError::Ring)
    }
}
