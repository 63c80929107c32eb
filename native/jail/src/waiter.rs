//! The outer process: without rights or descriptors it waits for the inner one and ends as that did.

use crate::JailError;
use crate::enter::Jail;
use crate::identity::drop_rights;
use fluxvm_sys::process::close_others;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, waitpid};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::exit;

/// The status when there is none of the inner process to pass on.
const NO_STATUS: i32 = 125;
const SIGNALLED: i32 = 128;

/// Waits for the inner process and ends as it did. `tie` stays open for as long as this process lives.
///
/// # Errors
/// When rights cannot be dropped; the inner process is then killed.
#[allow(unsafe_code)]
pub fn wait_for(inner: Pid, jail: &Jail, tie: &OwnedFd) -> Result<(), JailError> {
    if let Err(error) = drop_rights(jail.uid, jail.gid) {
        let _ = kill_process(inner, Signal::KILL);
        return Err(error);
    }
    // SAFETY: this process uses nothing but the tie and the standard descriptors until it ends.
    let _ = unsafe { close_others(&[tie.as_raw_fd()]) };
    loop {
        match waitpid(Some(inner), WaitOptions::empty()) {
            Ok(Some((_, status))) => end_as(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => exit(NO_STATUS),
        }
    }
}

fn end_as(status: WaitStatus) -> ! {
    if let Some(code) = status.exit_status() {
        exit(code);
    }
    let number = status.terminating_signal().unwrap_or(0);
    if let Some(signal) = Signal::from_named_raw(number) {
        let _ = kill_process(getpid(), signal);
    }
    exit(SIGNALLED + number);
}
