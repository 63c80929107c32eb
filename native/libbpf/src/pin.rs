//! Pins: names in a file system of type bpf that keep maps, programs and links alive while no process has them open.

use crate::{Link, Map, Program, check, owned};
use libbpf_sys::{bpf_obj_get, bpf_obj_pin};
use rustix::fs::{CWD, readlinkat};
use rustix::io::{Errno, Result};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What a pin held.
#[derive(Debug)]
pub enum Pinned {
    /// A map.
    Map(Map),
    /// A program.
    Program(Program),
    /// An attachment.
    Link(Link),
}

/// Pins something at a path that does not exist yet. `EXIST`: it does; `PERM`: no file system of type bpf.
pub fn pin(descriptor: BorrowedFd<'_>, path: &CStr) -> Result<()> {
    // SAFETY: the path is a text and the descriptor is open.
    check(unsafe { bpf_obj_pin(descriptor.as_raw_fd(), path.as_ptr()) }).map(drop)
}

/// Opens what is pinned at a path. `NOENT`: nothing.
pub fn open_pinned(path: &CStr) -> Result<Pinned> {
    // SAFETY: the path is a text.
    let descriptor = owned(unsafe { bpf_obj_get(path.as_ptr()) })?;
    let kind = readlinkat(CWD, format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Vec::new())?;
    match kind.to_bytes() {
        b"anon_inode:bpf-map" => Map::new(descriptor).map(Pinned::Map),
        b"anon_inode:bpf-prog" => Ok(Pinned::Program(Program::new(descriptor))),
        b"anon_inode:bpf_link" | b"anon_inode:bpf-link" => Ok(Pinned::Link(Link::new(descriptor))),
        _ => Err(Errno::INVAL),
    }
}
