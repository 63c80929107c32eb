//! The jail of a process that runs one virtual machine: what is left to an attacker who has taken it over. It is entered
//! once files are open and before there are threads ([`enter`]), and sealed once all threads run ([`seal`]).

#![deny(unsafe_code)]

mod arch;
mod calls;
mod enter;
mod identity;
mod logs;
mod root;
mod seal;
mod waiter;

pub use enter::{Jail, Limits, enter};
pub use logs::{LogFile, Logs};
pub use root::{DIRECTORY, SOCKETS};
pub use seal::{Names, seal};

use fluxvm_sys::Errno;
use thiserror::Error;

/// Why there is no jail. The process must then end: it may be half inside.
#[derive(Debug, Error)]
pub enum JailError {
    /// The process has several threads already.
    #[error("the jail must be entered before any thread is started")]
    Threads,
    /// The kernel refused a step; the text says which.
    #[error("jail: {0}")]
    Step(&'static str, #[source] Errno),
    /// The first process outside went away.
    #[error("the process that waits outside of the jail is gone")]
    Abandoned,
    /// The filter of system calls cannot be made or installed.
    #[error("jail: system call filter: {0}")]
    Filter(String),
}

/// For `map_err`: names the step.
fn step(what: &'static str) -> impl Fn(Errno) -> JailError {
    move |errno| JailError::Step(what, errno)
}

/// The same for errors of the standard library.
fn io_step(what: &'static str) -> impl Fn(std::io::Error) -> JailError {
    move |error| JailError::Step(what, Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
