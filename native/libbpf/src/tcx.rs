//! Attachments to an interface by TCX (kernel 6.6 and later): a link that ends when nobody has it open and no pin holds it.

use crate::{Direction, Program, check, interface, owned};
use libbpf_sys::{
    BPF_F_BEFORE, BPF_LINK_TYPE_TCX, BPF_TCX_EGRESS, BPF_TCX_INGRESS, bpf_attach_type, bpf_link_create,
    bpf_link_create_opts, bpf_link_detach, bpf_link_get_info_by_fd, bpf_link_info, bpf_link_update,
    bpf_prog_query_opts, bpf_prog_query_opts__bindgen_ty_1,
};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// As many as the kernel allows at one hook.
const PROGRAMS_MAX: usize = 64;

/// An attachment.
#[derive(Debug)]
pub struct Link {
    descriptor: OwnedFd,
}

/// What the kernel knows of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFacts {
    /// The kernel's number of it.
    pub id: u32,
    /// The program that runs.
    pub program_id: u32,
    /// 0 once the interface is gone or the link was detached.
    pub interface_index: u32,
    /// Which packets.
    pub direction: Direction,
}

/// Who is attached to one hook of an interface, first to run first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// Changes whenever somebody attaches or detaches.
    pub revision: u64,
    /// Their numbers.
    pub ids: Vec<u32>,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Link {
    /// Takes the descriptor of a link.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// What the kernel knows of it now. `INVAL`: a link of another kind.
    pub fn facts(&self) -> Result<LinkFacts> {
        let mut info = bpf_link_info::default();
        let mut length = size_of::<bpf_link_info>() as u32;
        // SAFETY: the structure has this length, and it asks for no list.
        check(unsafe { bpf_link_get_info_by_fd(self.descriptor.as_raw_fd(), &raw mut info, &raw mut length) })?;
        if info.type_ != BPF_LINK_TYPE_TCX {
            return Err(Errno::INVAL);
        }
        // SAFETY: the kernel fills this part for links of this kind; all of it are numbers.
        let place = unsafe { info.__bindgen_anon_1.tcx };
        let direction = if place.attach_type == BPF_TCX_EGRESS { Direction::Egress } else { Direction::Ingress };
        Ok(LinkFacts { id: info.id, program_id: info.prog_id, interface_index: place.ifindex, direction })
    }

    /// Puts another program in the place of this one: each packet is judged by the one or the other.
    pub fn replace_program(&self, program: &Program) -> Result<()> {
        let (link, program) = (self.descriptor.as_raw_fd(), program.as_fd().as_raw_fd());
        // SAFETY: both descriptors are open.
        check(unsafe { bpf_link_update(link, program, std::ptr::null()) }).map(drop)
    }

    /// Ends the attachment though it may be pinned or open elsewhere.
    pub fn detach(&self) -> Result<()> {
        // SAFETY: the descriptor is open.
        check(unsafe { bpf_link_detach(self.descriptor.as_raw_fd()) }).map(drop)
    }
}

/// Attaches a program, in front of those that are there or behind them. `INVAL` on kernels without TCX; `STALE` when the
/// hook is no longer at `revision` (0: whatever it is at).
pub fn attach(program: &Program, index: u32, direction: Direction, first: bool, revision: u64) -> Result<Link> {
    let mut options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as u64,
        flags: if first { BPF_F_BEFORE } else { 0 },
        ..Default::default()
    };
    options.__bindgen_anon_1.tcx.expected_revision = revision;
    let (program, index) = (program.as_fd().as_raw_fd(), interface(index)?);
    // SAFETY: the program is open; the options know their size.
    owned(unsafe { bpf_link_create(program, index, hook(direction), &raw const options) }).map(Link::new)
}

/// Who is attached by TCX. `INVAL` on kernels without it.
pub fn programs(index: u32, direction: Direction) -> Result<Programs> {
    let mut ids = [0_u32; PROGRAMS_MAX];
    let mut query = bpf_prog_query_opts {
        sz: size_of::<bpf_prog_query_opts>() as u64,
        prog_ids: ids.as_mut_ptr(),
        __bindgen_anon_1: bpf_prog_query_opts__bindgen_ty_1 { count: PROGRAMS_MAX as u32 },
        ..Default::default()
    };
    // SAFETY: the list has room for as many as the count says.
    check(unsafe { bpf_prog_query_opts(interface(index)?, hook(direction), &raw mut query) })?;
    // SAFETY: both names of this field are the same number.
    let count = unsafe { query.__bindgen_anon_1.count } as usize;
    Ok(Programs { revision: query.revision, ids: ids.get(..count).ok_or(Errno::NOSPC)?.to_vec() })
}

fn hook(direction: Direction) -> bpf_attach_type {
    match direction {
        Direction::Ingress => BPF_TCX_INGRESS,
        Direction::Egress => BPF_TCX_EGRESS,
    }
}
