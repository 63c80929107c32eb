//! What the machine's control changes of a disk while the guest runs, from any thread.

use crate::virtio::limiter::Limits;
use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use vmm_sys_util::eventfd::EventFd;

struct Shared {
    limits: Mutex<Limits>,
    changed: EventFd,
    waiting: Arc<AtomicU32>,
}

/// A handle on one disk.
#[derive(Clone)]
pub struct BlockControl(Arc<Shared>);

impl BlockControl {
    pub(super) fn new(limits: Limits) -> io::Result<Self> {
        let changed = EventFd::new((EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).bits() as i32)?;
        Ok(Self(Arc::new(Shared { limits: Mutex::new(limits), changed, waiting: Arc::default() })))
    }

    /// The limits that hold or are about to.
    pub fn limits(&self) -> Limits {
        *self.0.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other limits from now on, with full buckets; what waits under the old ones is looked at again.
    pub fn set_limits(&self, limits: Limits) {
        *self.0.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        // The counter of an event only overflows when nobody reads it, and then it is raised already.
        let _ = self.0.changed.write(1);
    }

    /// How many requests wait because the host has no room for what they write.
    pub fn waiting_for_room(&self) -> u32 {
        self.0.waiting.load(Ordering::Relaxed)
    }

    /// Where that number is shown.
    pub(super) fn waiting(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.0.waiting)
    }

    /// The event was seen.
    pub(super) fn woken(&self) {
        let _ = self.0.changed.read();
    }
}

impl AsRawFd for BlockControl {
    fn as_raw_fd(&self) -> RawFd {
        self.0.changed.as_raw_fd()
    }
}
