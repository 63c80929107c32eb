//! The C face: decode, call, encode, each inside one guard that turns a panic into an errno. Every function returns 0, or a
//! negative errno. Nothing that is passed in is kept after the call returns.
#![allow(unsafe_code)]

use crate::layout::{ABI_HASH, STARTED_WORDS};
use crate::{machine, machines};
use fluxvm_hypervisor::CONFIG_BYTES_MAX;
use rustix::io::{Errno, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn guard(action: impl FnOnce() -> Result<()>) -> i32 {
    match catch_unwind(AssertUnwindSafe(action)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => -error.raw_os_error(),
        Err(_) => -Errno::NOTRECOVERABLE.raw_os_error(),
    }
}

/// Identifies the schema that this library was built with; compared before anything else is called.
#[unsafe(no_mangle)]
pub extern "C" fn fluxvm_engine_abi_hash() -> u64 {
    ABI_HASH
}

/// Starts the machine that a boot configuration (JSON) describes, and returns before it is made; `out` is what the schema
/// calls the started words. What becomes of it comes as records.
///
/// # Safety
/// `config` must be valid for reading `length` bytes and `out` for writing the words of the schema.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_engine_start(config: *const u8, length: usize, out: *mut i32) -> i32 {
    guard(|| {
        if config.is_null() || out.is_null() {
            return Err(Errno::FAULT);
        }
        if length as u64 > CONFIG_BYTES_MAX {
            return Err(Errno::TOOBIG);
        }
        // SAFETY: not null, and the caller promises `length` readable bytes for the duration of the call.
        let config = unsafe { std::slice::from_raw_parts(config, length) };
        let started = machine::start(config.to_vec())?;
        // SAFETY: not null, and the caller promises room for that many.
        let out = unsafe { std::slice::from_raw_parts_mut(out, STARTED_WORDS) };
        out.copy_from_slice(&started.words());
        Ok(())
    })
}

/// Asks a machine to end; its last record says when it has. `BADF`: it has, or there never was one.
#[unsafe(no_mangle)]
pub extern "C" fn fluxvm_engine_end(handle: i32) -> i32 {
    guard(|| machines::stop(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_errno() {
        assert_eq!(guard(|| panic!("on purpose")), -Errno::NOTRECOVERABLE.raw_os_error());
    }

    #[test]
    fn what_no_caller_should_pass_is_refused() {
        let mut out = [0; STARTED_WORDS];
        let config = b"{}";
        // SAFETY: null is what is tried; the sizes are those of the values.
        let statuses = unsafe {
            [
                fluxvm_engine_start(std::ptr::null(), 1, out.as_mut_ptr()),
                fluxvm_engine_start(config.as_ptr(), config.len(), std::ptr::null_mut()),
                fluxvm_engine_start(config.as_ptr(), usize::MAX, out.as_mut_ptr()),
            ]
        };
        assert_eq!(statuses, [Errno::FAULT, Errno::FAULT, Errno::TOOBIG].map(|errno| -errno.raw_os_error()));
        assert_eq!(fluxvm_engine_end(0), -Errno::BADF.raw_os_error());
        assert_eq!(fluxvm_engine_end(-1), -Errno::BADF.raw_os_error());
    }
}
