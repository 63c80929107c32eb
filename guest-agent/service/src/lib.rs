//! The guest-agent server: versions 1 and 2 of the protocol on any byte stream, over a [`Guest`] that says how
//! this guest runs commands, touches files and stops. It knows no transport and no kind of sandbox.

#![forbid(unsafe_code)]

pub mod guest;

pub use guest::*;
