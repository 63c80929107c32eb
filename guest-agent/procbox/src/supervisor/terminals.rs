//! Terminals for commands: of the sandbox's own devpts, which the supervisor has held since the launch.

use super::internal;
use crate::sys::terminal::{self, Terminal};
use nix::errno::Errno;
use std::os::fd::{AsFd, OwnedFd};
use wire::execution::TerminalSize;
use wire::{ErrorCode, Fault};

pub struct Terminals {
    /// The mounted devpts; none where only the sandbox itself could make one, or has none.
    pub mount: Option<OwnedFd>,
}

impl Terminals {
    /// A fresh terminal. Errors: `CAPABILITY`, `LIMIT`.
    pub fn open(&self, size: TerminalSize) -> Result<Terminal, Fault> {
        let Some(mount) = &self.mount else {
            let why = "this sandbox has no terminals: they need namespaces that root made";
            return Err(Fault::new(ErrorCode::Capability, why));
        };
        terminal::open(mount.as_fd(), size.cols, size.rows).map_err(|error| match error.raw_os_error() {
            Some(errno) if errno == Errno::ENOSPC as i32 => {
                Fault::new(ErrorCode::Limit, "all terminals of the sandbox are in use")
            }
            _ => internal(error),
        })
    }
}
