//! Gives guest memory back to the host. What the pages read as afterwards depends on the mapping; a guest that gave them
//! up expects nothing of them.

use crate::guest_vm::Mapping;
use rustix::io::Result;
use rustix::mm::{Advice, madvise};
use vm_memory::VolatileSlice;

/// Lets go of the pages of a slice, which must be whole pages. Pages of a shared mapping are cut out of their file; private
/// copies are dropped, and the pages read as the file below.
///
/// # Errors
/// What `madvise` says, for example `INVAL` for a slice that does not begin at a page.
pub fn release(slice: &VolatileSlice<'_>, mapping: Mapping) -> Result<()> {
    let advice = match mapping {
        Mapping::Shared => Advice::LinuxRemove,
        Mapping::Private => Advice::LinuxDontNeed,
    };
    let guard = slice.ptr_guard_mut();
    // SAFETY: the pages belong to guest memory, which has no Rust references and whose content may change at any time; they
    // stay mapped.
    unsafe { madvise(guard.as_ptr().cast(), slice.len(), advice) }
}
