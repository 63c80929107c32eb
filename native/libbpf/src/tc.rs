//! Attachments by a filter of the clsact queue discipline, on kernels without TCX. A filter stays until it is removed or the
//! interface is gone; whose it is says only the number of its program.

use crate::{Direction, Program, check, interface, log};
use libbpf_sys::{
    BPF_TC_EGRESS, BPF_TC_F_REPLACE, BPF_TC_INGRESS, bpf_tc_attach, bpf_tc_detach, bpf_tc_hook, bpf_tc_hook_create,
    bpf_tc_opts, bpf_tc_query,
};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd};

/// One place for a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The interface.
    pub interface_index: u32,
    /// Which packets.
    pub direction: Direction,
    /// `pref` of the tc tool.
    pub priority: u32,
    /// Number within that priority.
    pub handle: u32,
}

impl Filter {
    /// Attaches a program with direct action; returns its number. `EXIST`: there is one, and it is not to be replaced.
    pub fn attach(&self, program: &Program, replace: bool) -> Result<u32> {
        quietly(|| {
            let mut hook = self.hook()?;
            // SAFETY: the structure knows its size.
            match check(unsafe { bpf_tc_hook_create(&raw mut hook) }) {
                Ok(_) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            let mut options = self.options();
            options.prog_fd = program.as_fd().as_raw_fd();
            options.flags = if replace { BPF_TC_F_REPLACE } else { 0 };
            // SAFETY: both structures know their size; the program is open.
            check(unsafe { bpf_tc_attach(&raw const hook, &raw mut options) })?;
            Ok(options.prog_id)
        })
    }

    /// Number of the program that is attached here; `None` when no filter with a program is.
    pub fn program_id(&self) -> Result<Option<u32>> {
        quietly(|| {
            let (hook, mut options) = (self.hook()?, self.options());
            // SAFETY: both structures know their size.
            match check(unsafe { bpf_tc_query(&raw const hook, &raw mut options) }) {
                Ok(_) => Ok(Some(options.prog_id)),
                // The second: no clsact there, or a filter of another kind.
                Err(Errno::NOENT | Errno::INVAL) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    /// Removes the filter when it has this program. `false`: it has not.
    pub fn detach(&self, program_id: u32) -> Result<bool> {
        if self.program_id()? != Some(program_id) {
            return Ok(false);
        }
        quietly(|| {
            let (hook, options) = (self.hook()?, self.options());
            // SAFETY: both structures know their size.
            match check(unsafe { bpf_tc_detach(&raw const hook, &raw const options) }) {
                Ok(_) => Ok(true),
                Err(Errno::NOENT) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn hook(&self) -> Result<bpf_tc_hook> {
        Ok(bpf_tc_hook {
            sz: size_of::<bpf_tc_hook>() as u64,
            ifindex: interface(self.interface_index)?,
            attach_point: match self.direction {
                Direction::Ingress => BPF_TC_INGRESS,
                Direction::Egress => BPF_TC_EGRESS,
            },
            ..Default::default()
        })
    }

    fn options(&self) -> bpf_tc_opts {
        bpf_tc_opts {
            sz: size_of::<bpf_tc_opts>() as u64,
            handle: self.handle,
            priority: self.priority,
            ..Default::default()
        }
    }
}

/// libbpf warns of every answer that is an error, also of those that are expected here.
fn quietly<T>(action: impl FnOnce() -> Result<T>) -> Result<T> {
    log::captured(action).0
}
