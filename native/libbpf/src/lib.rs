//! libbpf, built in, behind safe functions: objects are loaded once and leave nothing but descriptors, maps know the sizes
//! of their keys and values, programs are attached by TCX, by a filter, or as XDP. Everything here may wait in the kernel,
//! except the element calls of `Map` and the test runs of `Program`.

mod log;
mod map;
mod object;
mod pin;
mod probe;
mod program;
mod ring;
mod tc;
mod tcx;
mod xdp;

pub use map::{Map, MapFacts, Page};
pub use object::{Loaded, MapSetting, load};
pub use pin::{Pinned, open_pinned, pin};
pub use probe::{can_load, has_tcx};
pub use program::{CONTEXT_BYTES, Program, ProgramFacts, TestRun};
pub use ring::{RECORD_MAX_BYTES, Ring};
pub use tc::Filter;
pub use tcx::{Link, LinkFacts, Programs, attach, programs};
pub use xdp::{XdpFacts, XdpMode, attach as attach_xdp, detach as detach_xdp, query as query_xdp};

use rustix::io::{Errno, Result};
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd};

/// Which packets of an interface: those that come in by it, or those that leave by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Packets that come in.
    Ingress,
    /// Packets that leave.
    Egress,
}

/// What libbpf returns: 0 or more, or a negative errno.
fn check(status: c_int) -> Result<c_int> {
    if status < 0 { Err(Errno::from_raw_os_error(-status)) } else { Ok(status) }
}

/// Takes a descriptor that libbpf has just made for us.
fn owned(status: c_int) -> Result<OwnedFd> {
    // SAFETY: a call that returns a descriptor gives it to its caller alone.
    check(status).map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The error that the last call left in errno; for functions that return a null pointer.
fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// An interface's number as netlink wants it. `INVAL`: none has this number.
fn interface(index: u32) -> Result<c_int> {
    c_int::try_from(index).ok().filter(|&index| index > 0).ok_or(Errno::INVAL)
}

/// A name in a structure of the kernel's: up to its first NUL.
fn name_of(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte.cast_unsigned()).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A name that libbpf keeps; empty where it has none.
///
/// # Safety
/// `name` is null or points at a text that lives during the call.
unsafe fn text_of(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the caller promises a text.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
