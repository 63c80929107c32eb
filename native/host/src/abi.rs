//! The C face: decode, call, encode, each inside one guard that turns a panic into an errno. Every function returns 0 or
//! a small non-negative value, or a negative errno. Nothing that is passed in is kept after the call returns.
#![allow(unsafe_code)]

use crate::layout::{ABI_HASH, Job};
use crate::{channel, descriptors, facts, pool};
use fluxvm_sys::vsock;
use rustix::io::{Errno, Result};
use rustix::net::{RecvFlags, recv};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bound on the encoded arguments of one job.
const ARGUMENTS_MAX_BYTES: usize = 64 * 1024;
/// Bound on the numbers that one KVM probe may ask for.
const CAPABILITIES_MAX: usize = 256;
/// Bound on what is sent with open files: a request.
const SEND_MAX_BYTES: usize = 64 << 10;
/// Bound on what is received at once, so that the event loop soon goes on.
const RECEIVE_MAX_BYTES: usize = 4 << 20;

pub(crate) fn guard(action: impl FnOnce() -> Result<i32>) -> i32 {
    match catch_unwind(AssertUnwindSafe(action)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => -error.raw_os_error(),
        Err(_) => -Errno::NOTRECOVERABLE.raw_os_error(),
    }
}

/// Identifies the schema that this library was built with; compared before anything else is called.
#[unsafe(no_mangle)]
pub extern "C" fn fluxvm_host_abi_hash() -> u64 {
    ABI_HASH
}

/// Opens a channel: `out[0]` is its number, `out[1]` the descriptor that the caller then owns.
///
/// # Safety
/// `out` must be valid for writing two `i32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_channel_open(out: *mut i32) -> i32 {
    guard(|| {
        if out.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: not null, and the caller promises room for two.
        let out = unsafe { std::slice::from_raw_parts_mut(out, 2) };
        let (number, descriptor) = channel::open()?;
        out.copy_from_slice(&[number, descriptor]);
        Ok(0)
    })
}

/// Forgets a channel. Records of jobs that still run are lost.
#[unsafe(no_mangle)]
pub extern "C" fn fluxvm_host_channel_close(number: i32) -> i32 {
    guard(|| channel::close(number).map(|()| 0))
}

/// Queues a job. The arguments are copied before this returns.
///
/// # Safety
/// `arguments` must be valid for reading `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_job_submit(
    number: i32,
    kind: u32,
    sequence: u64,
    arguments: *const u8,
    length: usize,
) -> i32 {
    guard(|| {
        if arguments.is_null() || length > ARGUMENTS_MAX_BYTES {
            return Err(Errno::INVAL);
        }
        // SAFETY: not null, and the caller promises `length` readable bytes for the duration of the call.
        let bytes = unsafe { std::slice::from_raw_parts(arguments, length) };
        let channel = channel::get(number)?;
        pool::submit(channel, sequence, kind, Job::decode(kind, bytes)?).map(|()| 0)
    })
}

/// Replaces each `KVM_CAP_*` number in `capabilities` by its value; returns the KVM API version.
///
/// # Safety
/// `capabilities` must be valid for reading and writing `count` `i32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_kvm_probe(capabilities: *mut i32, count: usize) -> i32 {
    guard(|| {
        if capabilities.is_null() || count > CAPABILITIES_MAX {
            return Err(Errno::INVAL);
        }
        // SAFETY: not null, and the caller promises `count` numbers that nobody else touches during the call.
        facts::probe_kvm(unsafe { std::slice::from_raw_parts_mut(capabilities, count) })
    })
}

/// The Landlock ABI version, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn fluxvm_host_landlock_abi() -> i32 {
    guard(facts::landlock_abi)
}

/// 1 when the process with this pid and start time runs, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn fluxvm_host_process_runs(pid: i32, start_ticks: u64) -> i32 {
    guard(|| facts::process_runs(pid, start_ticks).map(i32::from))
}

/// The clock that packets are stamped with: nanoseconds since the host began to run.
#[unsafe(no_mangle)]
pub extern "C" fn fluxvm_host_monotonic_ns() -> u64 {
    facts::monotonic_ns()
}

/// Signals exactly that process: 1 when sent, 0 when it is gone.
#[unsafe(no_mangle)]
pub extern "C" fn fluxvm_host_process_signal(pid: i32, start_ticks: u64, signal: i32) -> i32 {
    guard(|| facts::signal_process(pid, start_ticks, signal).map(i32::from))
}

/// Receives what a connected socket has now; returns how much. 0: its end. `AGAIN`: nothing.
///
/// # Safety
/// `buffer` must be valid for writing `length` bytes; `socket` must stay open during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_receive(socket: i32, buffer: *mut u8, length: usize) -> i32 {
    guard(|| {
        if buffer.is_null() || length > RECEIVE_MAX_BYTES {
            return Err(Errno::INVAL);
        }
        if socket < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: the caller keeps the descriptor open during the call.
        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
        // SAFETY: not null, and the caller promises `length` bytes that nobody else touches during the call.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
        let (count, _) = recv(socket, buffer, RecvFlags::DONTWAIT)?;
        i32::try_from(count).map_err(|_| Errno::OVERFLOW)
    })
}

/// Sends what a connected socket takes now of `length` bytes, and `count` open files with the first of them; returns how
/// many bytes went. `AGAIN`: none.
///
/// # Safety
/// `bytes` must be valid for reading `length` bytes and `files` for reading `count` descriptors, which stay open during the
/// call, as `socket` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_send(
    socket: i32,
    bytes: *const u8,
    length: usize,
    files: *const i32,
    count: usize,
) -> i32 {
    guard(|| {
        if bytes.is_null() || files.is_null() || length > SEND_MAX_BYTES || count > descriptors::DESCRIPTORS_MAX {
            return Err(Errno::INVAL);
        }
        // SAFETY: not null, and the caller promises `length` readable bytes for the duration of the call.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
        // SAFETY: not null, and the caller promises `count` numbers for the duration of the call.
        let files = unsafe { std::slice::from_raw_parts(files, count) };
        if socket < 0 || files.iter().any(|file| *file < 0) {
            return Err(Errno::BADF);
        }
        // SAFETY: the caller keeps all of these open during the call.
        let borrow = |file: &i32| unsafe { BorrowedFd::borrow_raw(*file) };
        let files: Vec<_> = files.iter().map(borrow).collect();
        let count = descriptors::send(borrow(&socket), bytes, &files)?;
        i32::try_from(count).map_err(|_| Errno::OVERFLOW)
    })
}

/// Begins a connection to a port of the machine with this vsock id; returns the descriptor, which the caller then owns.
#[unsafe(no_mangle)]
pub extern "C" fn fluxvm_host_vsock_connect(cid: u32, port: u32) -> i32 {
    guard(|| vsock::begin_connection(cid, port).map(IntoRawFd::into_raw_fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_errno() {
        assert_eq!(guard(|| panic!("expected in this test")), -Errno::NOTRECOVERABLE.raw_os_error());
    }
}
