//! The interrupt of one device: the reasons that the guest reads, and the event that KVM turns into an edge on its line.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vmm_sys_util::eventfd::EventFd;

/// The reason that there are used buffers.
pub const USED_BUFFER: u32 = 1;
const CONFIGURATION: u32 = 2;

/// Shared by the transport and whoever has something to tell the guest.
pub struct Interrupt {
    line: EventFd,
    reasons: AtomicU32,
    generation: AtomicU32,
    shared: AtomicBool,
}

impl Interrupt {
    /// `line` is an event that is bound to the device's interrupt line, edge triggered (`KVM_IRQFD`).
    pub fn new(line: EventFd) -> Self {
        Self { line, reasons: AtomicU32::new(0), generation: AtomicU32::new(0), shared: AtomicBool::new(false) }
    }

    /// Says that there are used buffers.
    ///
    /// # Errors
    /// When the event cannot be written, which a live event never refuses.
    pub fn queues_used(&self) -> io::Result<()> {
        self.raise(USED_BUFFER)
    }

    /// Says that the configuration space, or the status, is not what it was.
    ///
    /// # Errors
    /// As [`Self::queues_used`].
    pub fn configuration_changed(&self) -> io::Result<()> {
        self.generation.fetch_add(1, Ordering::Release);
        self.raise(CONFIGURATION)
    }

    /// What the guest has not acknowledged yet. Where somebody outside raises the line, for which no reason comes, there may
    /// always be used buffers.
    pub fn reasons(&self) -> u32 {
        let outside = if self.shared.load(Ordering::Acquire) { USED_BUFFER } else { 0 };
        self.reasons.load(Ordering::Acquire) | outside
    }

    /// The event behind the line, for somebody outside who gives buffers back.
    pub fn line(&self) -> &EventFd {
        &self.line
    }

    /// Whether somebody outside raises the line, too.
    pub(super) fn share(&self, shared: bool) {
        self.shared.store(shared, Ordering::Release);
    }

    /// Takes back reasons that the guest has seen.
    pub fn acknowledge(&self, reasons: u32) {
        self.reasons.fetch_and(!reasons, Ordering::AcqRel);
    }

    /// Rises with each change of the configuration space, so that the guest notices a torn read.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn restore(&self, reasons: u32, generation: u32) {
        self.reasons.store(reasons & (USED_BUFFER | CONFIGURATION), Ordering::Release);
        self.generation.store(generation, Ordering::Release);
    }

    fn raise(&self, reason: u32) -> io::Result<()> {
        self.reasons.fetch_or(reason, Ordering::AcqRel);
        self.line.write(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_add_up_until_they_are_acknowledged_and_each_raises_the_line() {
        let line = EventFd::new(libc_nonblock()).expect("an event");
        let interrupt = Interrupt::new(line.try_clone().expect("its twin"));
        interrupt.queues_used().expect("raised");
        interrupt.configuration_changed().expect("raised");
        assert_eq!(interrupt.reasons(), 3);
        assert_eq!(interrupt.generation(), 1);
        assert_eq!(line.read().expect("raised"), 2);
        interrupt.acknowledge(USED_BUFFER);
        assert_eq!(interrupt.reasons(), CONFIGURATION);
        interrupt.share(true);
        interrupt.acknowledge(USED_BUFFER | CONFIGURATION);
        assert_eq!(interrupt.reasons(), USED_BUFFER);
        interrupt.share(false);
        assert_eq!(interrupt.reasons(), 0);
    }

    fn libc_nonblock() -> i32 {
        rustix::event::EventfdFlags::NONBLOCK.bits() as i32
    }
}
