//! Who moves the frames of a network device, for whoever watches it from outside.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A view of the device that stays valid without it.
#[derive(Clone, Default)]
pub struct Datapath(Arc<Shared>);

#[derive(Default)]
struct Shared {
    in_kernel: AtomicBool,
    why_not: Mutex<Option<String>>,
}

impl Datapath {
    /// `vhost-net` when the host's kernel moves the frames of every pair in use, else `userspace`.
    pub fn word(&self) -> &'static str {
        if self.0.in_kernel.load(Ordering::Relaxed) { "vhost-net" } else { "userspace" }
    }

    /// Why the kernel does not, when it was to.
    pub fn why_not(&self) -> Option<String> {
        self.0.why_not.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_in_kernel(&self, is: bool) {
        self.0.in_kernel.store(is, Ordering::Relaxed);
    }

    pub(super) fn refuse(&self, why: impl Display) {
        self.set_in_kernel(false);
        *self.0.why_not.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_string());
    }
}
