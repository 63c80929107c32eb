//! XDP on an interface: one program at a time, put there only where there is none and removed only when it is the one.

use crate::{Program, check, interface, log};
use libbpf_sys::{
    XDP_FLAGS_DRV_MODE, XDP_FLAGS_REPLACE, XDP_FLAGS_SKB_MODE, XDP_FLAGS_UPDATE_IF_NOEXIST, bpf_xdp_attach,
    bpf_xdp_attach_opts, bpf_xdp_detach, bpf_xdp_query, bpf_xdp_query_opts,
};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null;

const ATTACHED_NATIVE: u8 = 1;
const ATTACHED_GENERIC: u8 = 2;
const ATTACHED_SEVERAL: u8 = 4;

/// Where in the way of a packet the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// Behind the driver, for those that cannot.
    Generic,
}

/// What is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFacts {
    /// Number of the program; 0: none, or in a way that is not ours (in hardware, or several).
    pub program_id: u32,
    /// `None`: none, or in a way that is not ours.
    pub mode: Option<XdpMode>,
    /// Something is attached, in whatever way.
    pub occupied: bool,
}

impl XdpMode {
    fn flag(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// Attaches a program where there is none. `BUSY` or `EXIST`: there is one; `OPNOTSUPP`: not in this driver.
pub fn attach(program: &Program, index: u32, mode: XdpMode) -> Result<()> {
    let (index, program) = (interface(index)?, program.as_fd().as_raw_fd());
    let flags = XDP_FLAGS_UPDATE_IF_NOEXIST | mode.flag();
    // SAFETY: the program is open.
    log::captured(|| check(unsafe { bpf_xdp_attach(index, program, flags, null()) })).0.map(drop)
}

/// What is attached to an interface. `NODEV`: there is none with this number.
pub fn query(index: u32) -> Result<XdpFacts> {
    if !is_there(index) {
        return Err(Errno::NODEV);
    }
    let mut facts = bpf_xdp_query_opts { sz: size_of::<bpf_xdp_query_opts>() as u64, ..Default::default() };
    let index = interface(index)?;
    // SAFETY: the structure knows its size.
    log::captured(|| check(unsafe { bpf_xdp_query(index, 0, &raw mut facts) })).0?;
    let mode = match facts.attach_mode {
        ATTACHED_NATIVE => Some(XdpMode::Native),
        ATTACHED_GENERIC => Some(XdpMode::Generic),
        _ => None,
    };
    let program_id = if facts.attach_mode == ATTACHED_SEVERAL || mode.is_none() { 0 } else { facts.prog_id };
    Ok(XdpFacts { program_id, mode, occupied: facts.attach_mode != 0 })
}

/// Older kernels are asked for all interfaces, so that one which is missing is not told from one without a program.
fn is_there(index: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the length that every name fits.
    !unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null()
}

/// Removes the program when it is this one, in one step. `false`: it is not.
pub fn detach(index: u32, program_id: u32) -> Result<bool> {
    let facts = query(index)?;
    let Some(mode) = facts.mode.filter(|_| facts.program_id == program_id) else { return Ok(false) };
    let program = match Program::by_id(program_id) {
        Err(Errno::NOENT) => return Ok(false),
        program => program?,
    };
    let options = bpf_xdp_attach_opts {
        sz: size_of::<bpf_xdp_attach_opts>() as u64,
        old_prog_fd: program.as_fd().as_raw_fd(),
        ..Default::default()
    };
    let (index, flags) = (interface(index)?, XDP_FLAGS_REPLACE | mode.flag());
    // SAFETY: the program is open; the options know their size.
    match log::captured(|| check(unsafe { bpf_xdp_detach(index, flags, &raw const options) })).0 {
        Ok(_) => Ok(true),
        Err(Errno::EXIST | Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}
