//! Sockets between this host and its virtual machines, and the ids that machines are known by there.

use crate::ioctl::{WRITE, request_number, with_structure};
use rustix::io::{Errno, Result};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const VHOST_VIRTIO: u32 = 0xAF;
const SET_GUEST_CID: libc::Ioctl = request_number(WRITE, VHOST_VIRTIO, 0x60, size_of::<u64>());

/// Begins a connection and does not wait for it: the socket becomes writable when it stands, and has an error when it
/// was refused or the kernel's time for it, two seconds, has passed. `NODEV`: no machine has this id.
pub fn begin_connection(cid: u32, port: u32) -> Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes integers only.
    let socket = unsafe { libc::socket(libc::AF_VSOCK, kind, 0) };
    if socket < 0 {
        return Err(last_error());
    }
    // SAFETY: the descriptor is new, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: a structure of integers, for which all bits zero is a value.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    let length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the address is of this family, is as long as told, and is borrowed for the whole call.
    let status = unsafe { libc::connect(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
    if status < 0 && last_error() != Errno::INPROGRESS {
        return Err(last_error());
    }
    Ok(socket)
}

/// Gives a machine-to-be, which `/dev/vhost-vsock` opened is, its id. `ADDRINUSE`: another has it; `INVAL`: no machine can.
pub fn take_cid(device: BorrowedFd<'_>, cid: u32) -> Result<()> {
    let mut cid = u64::from(cid);
    // SAFETY: the request reads one 64-bit number.
    unsafe { with_structure(device, SET_GUEST_CID, &mut cid) }.map(|_| ())
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
