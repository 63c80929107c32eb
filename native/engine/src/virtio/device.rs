//! What a device is to the transport, and what it gets to work with. The transport owns the queues: it turns notifications
//! on and off and raises interrupts after each call, so that a device only takes chains and gives them back.

use super::{Events, GuestRam, Interrupt, Queue, QueueError, Readiness, StateError, StateReader, StateWriter};
use std::io;
use std::sync::Arc;
use thiserror::Error;
use vmm_sys_util::eventfd::EventFd;

/// Events with tokens from here on are notifications of queues.
pub(super) const QUEUE_TOKENS: u32 = 0x8000_0000;

/// The number by which a guest finds the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DeviceKind {
    /// A network card.
    Net = 1,
    /// A disk.
    Block = 2,
    /// Consoles.
    Console = 3,
    /// A source of randomness.
    Entropy = 4,
    /// Memory that the host asks back.
    Balloon = 5,
    /// Sockets between host and guest.
    Vsock = 19,
    /// Memory that is a file.
    Pmem = 27,
}

/// Why a device cannot go on. The transport then tells the guest that the device needs a reset, and stops it until then.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The driver broke the rules of the queues.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The host refused something that the device cannot do without.
    #[error("host: {0}")]
    Host(#[from] io::Error),
    /// The driver broke the rules of this device.
    #[error("driver: {0}")]
    Driver(&'static str),
}

/// What a device works with during a call.
pub struct DeviceContext<'a> {
    /// Guest memory; a clone keeps it mapped for I/O that outlives the call.
    pub memory: &'a Arc<GuestRam>,
    /// The queues, all of them; one that the driver did not set up has no chains.
    pub queues: &'a mut [Queue],
    /// What was negotiated, including the bits of the transport.
    pub features: u64,
    /// Where to ask for readiness of own descriptors; [`VirtioDevice::process_event`] gets the answers.
    pub events: &'a Events,
    /// For changes of the configuration space. Used buffers are signalled by the transport.
    pub interrupt: &'a Interrupt,
    /// The notifications of the queues.
    pub(super) notify: &'a [EventFd],
}

impl<'a> DeviceContext<'a> {
    /// Leaves a queue to somebody outside, who sees its notifications by the event that is returned and interrupts the guest
    /// by the device's line. Nobody here touches its rings until [`Self::take_back`].
    ///
    /// # Errors
    /// When the queue was left already.
    pub fn hand_over(&mut self, queue: usize) -> io::Result<&'a EventFd> {
        self.events.unwatch(&self.notify[queue])?;
        self.queues[queue].leave();
        self.interrupt.share(true);
        Ok(&self.notify[queue])
    }

    /// Takes a queue back from outside, where `next_available` is the next chain to take; one that was not left stays as it
    /// is. Whoever had it must have let go.
    ///
    /// # Errors
    /// When its rings are not in guest memory.
    pub fn take_back(&mut self, queue: usize, next_available: u16) -> Result<(), DeviceError> {
        if !self.queues[queue].is_outside() {
            return Ok(());
        }
        self.events.watch_writes(&self.notify[queue], QUEUE_TOKENS + queue as u32)?;
        let returned = self.queues[queue].come_back(self.memory, next_available);
        self.interrupt.share(self.queues.iter().any(Queue::is_outside));
        Ok(returned?)
    }
}

/// A device behind the transport. All calls come one at a time.
pub trait VirtioDevice: Send {
    /// Which device it is.
    fn kind(&self) -> DeviceKind;

    /// The largest size of each queue, powers of two.
    fn queue_sizes(&self) -> &[u16];

    /// The features of the device; those of the transport are added to them.
    fn features(&self) -> u64;

    /// Whether a subset of the offered features makes sense together.
    fn accepts(&self, _features: u64) -> bool {
        true
    }

    /// Fills `data`, which holds zeros, from the configuration space; what lies beyond its end stays zero.
    fn read_config(&self, offset: u64, data: &mut [u8]);

    /// Writes to the configuration space; a driver may write anything anywhere, at most eight bytes at a time.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// The driver is ready: from here the queues may be used. All ready queues were checked to lie in guest memory.
    ///
    /// # Errors
    /// When the device cannot work as negotiated.
    fn activate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError>;

    /// Back to before [`Self::activate`]: I/O in flight has ended, all chains are forgotten, no event is watched. Called on
    /// an active device, also when it could not start, and after a load that no driver is to go on with.
    fn reset(&mut self, context: &mut DeviceContext<'_>);

    /// The driver made buffers available in this queue, or may have. Chains may be left for later; the device then comes
    /// back to them by an event of its own.
    ///
    /// # Errors
    /// When the device cannot go on.
    fn process_queue(&mut self, context: &mut DeviceContext<'_>, queue: usize) -> Result<(), DeviceError>;

    /// A descriptor that the device watches is ready.
    ///
    /// # Errors
    /// When the device cannot go on.
    fn process_event(
        &mut self,
        _context: &mut DeviceContext<'_>,
        _token: u32,
        _readiness: Readiness,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Ends all I/O in flight; afterwards the device touches no guest memory until [`Self::resume`]. Only called on an
    /// active device.
    ///
    /// # Errors
    /// When I/O cannot be ended; the virtual machine then goes on.
    fn quiesce(&mut self, _context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Goes on after [`Self::quiesce`]. Every queue is processed after this.
    ///
    /// # Errors
    /// When the device cannot go on.
    fn resume(&mut self, _context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Writes what the device knows beyond its queues and its set-up. Called on a quiesced device.
    fn save(&self, state: &mut StateWriter);

    /// Takes over what [`Self::save`] wrote, before [`Self::activate`] is called. The bytes are untrusted.
    ///
    /// # Errors
    /// When the bytes make no sense for this device; it is then unchanged.
    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError>;
}

/// Answers a read of a configuration space that is laid out in `space`; what lies beyond stays as it is.
pub fn read_space(space: &[u8], offset: u64, data: &mut [u8]) {
    let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(space.len());
    let bytes = data.len().min(space.len() - begin);
    data[..bytes].copy_from_slice(&space[begin..begin + bytes]);
}
