//! Ring buffers: records that programs leave for user space, taken out in order.

use crate::{Map, check, last_error, log};
use libbpf_sys::{ring_buffer, ring_buffer__consume_n, ring_buffer__epoll_fd, ring_buffer__free, ring_buffer__new};
use rustix::io::Result;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null};

/// Longer records are left out.
pub const RECORD_MAX_BYTES: usize = 4096;

/// Records that were taken, each behind its length.
#[derive(Debug, Default)]
struct Taken {
    bytes: Vec<u8>,
}

/// The reading end of a ring buffer. Every record goes to one reader only.
#[derive(Debug)]
pub struct Ring {
    ring: NonNull<ring_buffer>,
    /// Where the records of the call that runs go; libbpf has its address.
    taken: Box<Taken>,
}

// SAFETY: libbpf keeps no state of the thread in a ring; the ring and its buffer move together, and `take` needs it mutably.
unsafe impl Send for Ring {}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: made by libbpf, and freed once.
        unsafe { ring_buffer__free(self.ring.as_ptr()) };
    }
}

impl AsFd for Ring {
    /// Readable while there are records.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns this descriptor and lives as long as what is borrowed from it.
        unsafe { BorrowedFd::borrow_raw(ring_buffer__epoll_fd(self.ring.as_ptr())) }
    }
}

impl Ring {
    /// Opens a map of type ring buffer. `INVAL`: of another type.
    pub fn open(map: &Map) -> Result<Self> {
        let mut taken = Box::<Taken>::default();
        let target: *mut Taken = &raw mut *taken;
        let ring = log::captured(|| {
            // SAFETY: the map is open; the address that the records go to lives as long as the ring, in the same structure.
            let ring = unsafe { ring_buffer__new(map.as_fd().as_raw_fd(), Some(keep), target.cast(), null()) };
            NonNull::new(ring).ok_or_else(last_error)
        });
        Ok(Self { ring: ring.0?, taken })
    }

    /// Takes at most `count` records, each as its length in four bytes, little-endian, and its bytes.
    pub fn take(&mut self, count: usize) -> Result<Vec<u8>> {
        // SAFETY: the ring is open, and only this thread uses it during the call.
        check(unsafe { ring_buffer__consume_n(self.ring.as_ptr(), count as u64) })?;
        Ok(std::mem::take(&mut self.taken.bytes))
    }
}

unsafe extern "C" fn keep(target: *mut c_void, record: *mut c_void, length: u64) -> c_int {
    let length = length as usize;
    if length <= RECORD_MAX_BYTES {
        // SAFETY: libbpf gives back the address that `open` gave it, during a call of `take`, which has it mutably.
        let taken = unsafe { &mut *target.cast::<Taken>() };
        // SAFETY: libbpf gives a record of this length, which stays until this returns.
        let record = unsafe { std::slice::from_raw_parts(record.cast::<u8>(), length) };
        taken.bytes.extend_from_slice(&(length as u32).to_le_bytes());
        taken.bytes.extend_from_slice(record);
    }
    0
}
