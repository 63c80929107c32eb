//! The ids by which virtual machines are reached over vsock: one machine of the host at a time has each.

use fluxvm_sys::vsock;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result};
use std::os::fd::AsFd;

/// Whether nobody has this id, found out by having it for a moment. `NOENT`, `NODEV`, `ACCESS`: no usable
/// `/dev/vhost-vsock`; `INVAL`: an id that no machine can have.
pub fn cid_is_free(cid: u32) -> Result<bool> {
    let device = open("/dev/vhost-vsock", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    match vsock::take_cid(device.as_fd(), cid) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRINUSE) => Ok(false),
        Err(error) => Err(error),
    }
}
