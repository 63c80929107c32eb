//! The guest-agent server: versions 1 and 2 of the protocol on any byte stream, over a [`Guest`] that says how
//! this guest runs commands, touches files and stops. It knows no transport and no kind of sandbox.

#![forbid(unsafe_code)]

mod authority;
mod device;
mod drive;
mod executions;
mod guest;
mod server;
mod shell;
mod v1;
mod v2;

pub use authority::Authority;
pub use guest::*;
pub use server::Server;
