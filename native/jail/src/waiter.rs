//! The outer process: without rights, and with no descriptors but those of logs, it waits for the inner one, writes down what
//! that says, passes on requests to end, and ends as that did.

use crate::enter::Jail;
use crate::identity::drop_rights;
use crate::logs::Logs;
use crate::{JailError, step};
use fluxvm_sys::process::close_others;
use fluxvm_sys::signals::EndSignals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::exit;

/// The status when there is none of the inner process to pass on.
const NO_STATUS: i32 = 125;
const SIGNALLED: i32 = 128;
/// After each look at the logs, so that one byte after the other is no work, and a flood of them no more than the
/// pipes hold. With a tenth of it the messages of a booting kernel cost a twentieth of the time that the boot takes.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Waits for the inner process and ends as it did. `tie` stays open for as long as this process lives.
///
/// # Errors
/// When the inner process cannot be watched or rights cannot be dropped; it is then killed.
#[allow(unsafe_code)]
pub fn wait_for(inner: Pid, jail: &Jail, tie: &OwnedFd, signals: &EndSignals, mut logs: Logs) -> Result<(), JailError> {
    let watched = pidfd_open(inner, PidfdFlags::empty()).map_err(step("watch the inner process"));
    let watched = watched.and_then(|watched| drop_rights(jail.uid, jail.gid).map(|()| watched));
    let inner_end = watched.inspect_err(|_| {
        let _ = kill_process(inner, Signal::KILL);
    })?;
    let own = [tie.as_raw_fd(), signals.as_fd().as_raw_fd(), inner_end.as_raw_fd()];
    let keep: Vec<_> = own.into_iter().chain(logs.descriptors()).collect();
    // SAFETY: this process uses nothing but these and the standard descriptors until it ends.
    let _ = unsafe { close_others(&keep) };
    let mut pauses = false;
    loop {
        let mut polled = vec![PollFd::new(&inner_end, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        if !pauses {
            polled.extend(logs.polled());
        }
        let _ = poll(&mut polled, pauses.then_some(&PAUSE));
        if signals.have_come() {
            let _ = pidfd_send_signal(&inner_end, Signal::TERM);
        }
        match waitpid(Some(inner), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                // Its last words.
                logs.copy();
                end_as(status)
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => exit(NO_STATUS),
        }
        pauses = !pauses && logs.copy();
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
