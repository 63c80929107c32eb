//! Terminals for commands: of the sandbox's own devpts, which the supervisor has held since the launch.

use super::internal;
use crate::sys::terminal::{self, Terminal};
use nix::errno::Errno;
use std::os::fd::{AsFd, OwnedFd};
use wire::execution::TerminalSize;
use wire::{ErrorCode, Fault};

pub struct Terminals {
    /// The devpts, or why there is none.
    pub mount: Result<OwnedFd, String>,
}

impl Terminals {
    /// A fresh terminal. Errors: `CAPABILITY`, `LIMIT`.
    pub fn open(&self, size: TerminalSize) -> Result<Terminal, Fault> {
        let mount = self
            .mount
            .as_ref()
            .map_err(|why| Fault::new(ErrorCode::Capability, format!("this sandbox has no terminals: {why}")))?;
        terminal::open(mount.as_fd(), size.cols, size.rows).map_err(|error| match error.raw_os_error() {
            Some(errno) if errno == Errno::ENOSPC as i32 => {
                Fault::new(ErrorCode::Limit, "all terminals of the sandbox are in use")
            }
            _ => internal(error),
        })
    }
}
