//! The loopback interface, which only init brings up.

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const NAME: &[u8] = b"lo";

/// Brings it up.
pub fn bring_up() -> Result<(), Error> {
    // SAFETY: the call takes no pointers; a descriptor that it returns is ours.
    let socket = unsafe {
        let descriptor = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if descriptor < 0 {
            return Err(Error::last_os_error());
        }
        OwnedFd::from_raw_fd(descriptor)
    };
    // SAFETY: all bits zero is a valid value of this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (target, byte) in request.ifr_name.iter_mut().zip(NAME) {
        *target = *byte as libc::c_char;
    }
    call(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the call before has filled in this member.
    unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    call(&socket, libc::SIOCSIFFLAGS, &mut request)
}

fn call(socket: &OwnedFd, number: libc::Ioctl, request: &mut libc::ifreq) -> Result<(), Error> {
    // SAFETY: both requests read and write one such structure, which `request` is.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), number, request) };
    if status < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
