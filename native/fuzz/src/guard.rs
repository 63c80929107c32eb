//! An allocator that ends the process when memory runs away: nothing that a guest, an image or a client says may make
//! the engine hold more than a small multiple of it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// More than any target needs, and far less than an unchecked number of 32 bits asks for.
pub const HELD_BYTES_MAX: usize = 512 << 20;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a bound on what is held at once.
pub struct Guarded;

fn take(bytes: usize) {
    if HELD_BYTES.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > HELD_BYTES_MAX {
        // Nothing may be allocated any more, so that this cannot say it in a nicer way.
        let text = b"runaway memory: more than 512 MiB are held\n";
        let _ = rustix::io::write(rustix::stdio::stderr(), text);
        std::process::abort();
    }
}

// SAFETY: all memory comes from the system's allocator, with the same arguments; the rest only counts.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        take(bytes);
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}
