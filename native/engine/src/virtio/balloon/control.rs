//! What the machine's control asks of the balloon, from any thread.

use fluxvm_sys::guest_vm::Mapping;
use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use vmm_sys_util::eventfd::EventFd;

/// What the guest always keeps, in bytes.
pub const GUEST_BYTES_MIN: u64 = 64 << 20;

/// The unit of the balloon, whatever the guest's own pages are.
pub(super) const PAGE_BYTES: u64 = 4096;

/// A target that would leave the guest too little.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a balloon of {wanted} bytes leaves the guest less than 64 MiB of its {memory} bytes")]
pub struct TargetError {
    /// What was asked for.
    pub wanted: u64,
    /// What the guest has.
    pub memory: u64,
}

/// What the guest said about its memory when it was last asked. It may say anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes that nothing uses.
    pub free: Option<u64>,
    /// Bytes that could be used without swapping.
    pub available: Option<u64>,
    /// Bytes of the caches of its disks.
    pub caches: Option<u64>,
    /// Bytes in all.
    pub total: Option<u64>,
    /// Page faults that had to read.
    pub major_faults: Option<u64>,
}

pub(super) struct Shared {
    pub(super) memory_bytes: u64,
    pub(super) target_pages: AtomicU32,
    pub(super) actual_pages: AtomicU32,
    pub(super) layered: AtomicBool,
    pub(super) statistics_wanted: AtomicBool,
    pub(super) statistics: Mutex<Statistics>,
    pub(super) event: EventFd,
}

/// A handle on the balloon of one machine.
#[derive(Clone)]
pub struct BalloonControl {
    pub(super) shared: Arc<Shared>,
}

impl BalloonControl {
    pub(super) fn new(memory_bytes: u64, mapping: Mapping) -> io::Result<Self> {
        let shared = Shared {
            memory_bytes,
            target_pages: AtomicU32::new(0),
            actual_pages: AtomicU32::new(0),
            layered: AtomicBool::new(mapping == Mapping::Private),
            statistics_wanted: AtomicBool::new(false),
            statistics: Mutex::new(Statistics::default()),
            event: EventFd::new((EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).bits() as i32)?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Asks the guest to give up so many bytes, rounded down to pages. It does so in its own time.
    ///
    /// # Errors
    /// When the guest would keep less than [`GUEST_BYTES_MIN`]; nothing changes then.
    pub fn set_target(&self, bytes: u64) -> Result<(), TargetError> {
        let memory = self.shared.memory_bytes;
        let pages = u32::try_from(bytes / PAGE_BYTES);
        let kept = memory.checked_sub(bytes).is_some_and(|left| bytes == 0 || left >= GUEST_BYTES_MIN);
        let (true, Ok(pages)) = (kept, pages) else { return Err(TargetError { wanted: bytes, memory }) };
        self.shared.target_pages.store(pages, Ordering::Release);
        self.wake();
        Ok(())
    }

    /// What was asked for, in bytes.
    pub fn target_bytes(&self) -> u64 {
        u64::from(self.shared.target_pages.load(Ordering::Acquire)) * PAGE_BYTES
    }

    /// What the guest says it gave, in bytes, but never more than it has.
    pub fn actual_bytes(&self) -> u64 {
        (u64::from(self.shared.actual_pages.load(Ordering::Acquire)) * PAGE_BYTES).min(self.shared.memory_bytes)
    }

    /// Asks the guest for fresh statistics, if it can give them.
    pub fn ask_statistics(&self) {
        self.shared.statistics_wanted.store(true, Ordering::Release);
        self.wake();
    }

    /// The statistics that came last.
    pub fn statistics(&self) -> Statistics {
        *self.shared.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory is mapped in another way from now on. The machine must stand still.
    pub fn set_mapping(&self, mapping: Mapping) {
        self.shared.layered.store(mapping == Mapping::Private, Ordering::Release);
    }

    pub(super) fn mapping(&self) -> Mapping {
        if self.shared.layered.load(Ordering::Acquire) { Mapping::Private } else { Mapping::Shared }
    }

    fn wake(&self) {
        // The counter of an event only overflows when nobody reads it, and then it is raised already.
        let _ = self.shared.event.write(1);
    }
}

impl AsRawFd for BalloonControl {
    fn as_raw_fd(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }
}
