//! What `/dev/kvm` on this host offers: API version and extension values. Nothing here creates a virtual machine.

use crate::ioctl::{request_number, with_integer};
use kvm_ioctls::Kvm;
use rustix::io::Result;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

const GROUP: u32 = 0xAE;
const GET_API_VERSION: libc::Ioctl = request_number(0, GROUP, 0x00, 0);
const CHECK_EXTENSION: libc::Ioctl = request_number(0, GROUP, 0x03, 0);

/// The KVM API version; 12 since 2007.
pub fn api_version(kvm: BorrowedFd<'_>) -> Result<i32> {
    with_integer(kvm, GET_API_VERSION, 0)
}

/// The value of one `KVM_CAP_*` number: 0 when absent, else 1 or a number that the extension defines.
pub fn extension(kvm: BorrowedFd<'_>, capability: u32) -> Result<i32> {
    with_integer(kvm, CHECK_EXTENSION, u64::from(capability))
}

/// KVM on a descriptor of `/dev/kvm` that was opened before, for a process that sees no device by name.
pub fn on_descriptor(device: OwnedFd) -> Kvm {
    // SAFETY: the descriptor is open and becomes the property of the result; on another file every request is refused.
    unsafe { Kvm::from_raw_fd(device.into_raw_fd()) }
}
