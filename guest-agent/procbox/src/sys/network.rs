//! Network namespaces of this process, and queues of tap devices.

use super::check;
use nix::fcntl::{OFlag, open};
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

const SET_INTERFACE: libc::Ioctl = 0x4004_54ca;
const IFF_TAP: libc::c_int = 0x0002;
const IFF_NO_PI: libc::c_int = 0x1000;
const IFF_VNET_HDR: libc::c_int = 0x4000;
const IFF_MULTI_QUEUE: libc::c_int = 0x0100;

/// Every queue of a device is opened through this.
const TAP_DEVICE: &str = "/dev/net/tun";

/// Enters the network namespace that is pinned to a file.
pub fn enter(pin: &Path) -> io::Result<()> {
    let namespace = open(pin, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty())?;
    enter_open(&namespace)
}

/// Enters an open network namespace.
pub fn enter_open(namespace: &impl AsFd) -> io::Result<()> {
    setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
}

/// The network namespace where this process is.
pub fn current() -> io::Result<OwnedFd> {
    Ok(open("/proc/self/ns/net", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Attaches to a queue of a tap device of this namespace that is there, or of a macvtap; a virtio header is in front of
/// each frame.
pub fn open_tap(name: &str, is_macvtap: bool, is_multiqueue: bool) -> io::Result<OwnedFd> {
    // Attaching alone would make one that leads nowhere.
    let index = if_nametoindex(name)?;
    let device = if is_macvtap { format!("/dev/tap{index}") } else { TAP_DEVICE.into() };
    let file = open(device.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty())?;
    // SAFETY: an interface request is plain data whose bytes may all be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let queues = if is_multiqueue { IFF_MULTI_QUEUE } else { 0 };
    request.ifr_ifru.ifru_flags = (IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | queues) as libc::c_short;
    // SAFETY: the request reads and writes one interface request, alive during the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), SET_INTERFACE, &mut request) }.into())?;
    Ok(file)
}
