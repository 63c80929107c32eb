//! Virtio devices on the memory-mapped transport, version 2 of its registers. A device sees queues, events and guest
//! memory; the transport sees registers and interrupts; one reactor thread of the virtual machine drives all of them.

pub mod balloon;
pub mod block;
mod chain;
pub mod console;
mod device;
pub mod disk;
mod interrupt;
pub mod limiter;
pub mod net;
mod persist;
pub mod pmem;
mod queue;
#[cfg(test)]
mod queue_tests;
mod reactor;
#[cfg(test)]
mod reactor_tests;
pub mod rng;
mod state;
mod status;
#[cfg(test)]
pub(crate) mod testing;
mod transport;
#[cfg(test)]
mod transport_tests;
pub mod vsock;

pub use chain::{Buffer, Buffers, CHAIN_DESCRIPTORS_MAX, Chain};
pub use device::{DeviceContext, DeviceError, DeviceKind, VirtioDevice, read_space};
pub use interrupt::{Interrupt, USED_BUFFER};
pub use queue::{Queue, QueueError};
pub use reactor::{EventHandler, Events, Interest, Reactor, ReactorError, Readiness};
pub use state::{StateError, StateReader, StateWriter};
pub use transport::{INTERRUPT_ACKNOWLEDGE, MMIO_BYTES, QUEUE_NOTIFY, VirtioMmio};

/// The memory of the guest, as devices see it.
pub type GuestRam = vm_memory::GuestMemoryMmap<()>;

/// Buffers may be listed in a table of their own.
pub const FEATURE_INDIRECT_DESCRIPTORS: u64 = 1 << 28;
/// Each side tells the other at which index it wants to be woken.
pub const FEATURE_EVENT_INDEX: u64 = 1 << 29;
/// Not a legacy device.
pub const FEATURE_VERSION_1: u64 = 1 << 32;
