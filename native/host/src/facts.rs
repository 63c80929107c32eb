//! Questions that the kernel answers within microseconds, asked on the caller's thread.

use fluxvm_sys::{kvm, landlock};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

/// Replaces each `KVM_CAP_*` number by its value and returns the API version. `NOENT`, `ACCESS`: no usable `/dev/kvm`.
pub fn probe_kvm(capabilities: &mut [i32]) -> Result<i32> {
    let device: OwnedFd = open("/dev/kvm", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let version = kvm::api_version(device.as_fd())?;
    for capability in capabilities {
        *capability = kvm::extension(device.as_fd(), capability.cast_unsigned())?;
    }
    Ok(version)
}

/// The Landlock ABI version, 0 when the kernel has none or it is switched off.
pub fn landlock_abi() -> Result<i32> {
    match landlock::abi_version() {
        Err(Errno::NOSYS | Errno::OPNOTSUPP) => Ok(0),
        result => result,
    }
}

/// Whether the process with this pid and start time runs; one that ended and waits for its parent does not.
pub fn process_runs(pid: i32, start_ticks: u64) -> Result<bool> {
    Ok(open_process(pid, start_ticks)?.is_some())
}

/// Sends a signal to exactly that process. False: it is gone, and nobody got the signal.
pub fn signal_process(pid: i32, start_ticks: u64, signal: i32) -> Result<bool> {
    let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
    let Some(process) = open_process(pid, start_ticks)? else { return Ok(false) };
    match pidfd_send_signal(&process, signal) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opening first and comparing afterwards excludes that the pid is used again in between.
fn open_process(pid: i32, start_ticks: u64) -> Result<Option<OwnedFd>> {
    let pid = if pid > 0 { Pid::from_raw(pid) } else { None }.ok_or(Errno::INVAL)?;
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        // The second and third: by kernel, for a number that has ended as a process and is still that of a group or session.
        Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(stat) = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())) else { return Ok(None) };
    let matches = parse_stat(&stat).is_some_and(|(state, ticks)| !matches!(state, b'Z' | b'X') && ticks == start_ticks);
    Ok(matches.then_some(process))
}

/// State and start time of a `/proc/<pid>/stat` line. The name may hold anything, so fields count from its last `)`.
fn parse_stat(stat: &[u8]) -> Option<(u8, u64)> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.bytes().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

/// `CLOCK_MONOTONIC`, as programs in the kernel read it.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn a_hostile_process_name_does_not_shift_the_fields() {
        let line = b"7 (x) S 1) (y) Z 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";

        assert_eq!(parse_stat(line), Some((b'Z', 12345)));
        assert_eq!(parse_stat(b"7 (x"), None);
        assert_eq!(parse_stat(b"7 (x) S 1"), None);
    }

    #[test]
    fn only_the_right_start_time_names_a_process() {
        let stat = fs::read("/proc/self/stat").unwrap();
        let (_, ticks) = parse_stat(&stat).unwrap();
        let pid = std::process::id().cast_signed();

        assert_eq!(process_runs(pid, ticks), Ok(true));
        assert_eq!(process_runs(pid, ticks + 1), Ok(false));
        assert_eq!(process_runs(-1, ticks), Err(Errno::INVAL));
        assert_eq!(signal_process(pid, ticks + 1, 9), Ok(false));
    }

    #[test]
    fn a_process_whose_number_is_only_that_of_its_group_any_more_does_not_run() {
        let mut leader = std::process::Command::new("sh");
        let mut leader = leader.args(["-c", "sleep 60 & exit"]).process_group(0).spawn().unwrap();
        let pid = leader.id().cast_signed();
        leader.wait().unwrap();

        assert_eq!(process_runs(pid, 1), Ok(false));
        assert_eq!(signal_process(pid, 1, 9), Ok(false));
        rustix::process::kill_process_group(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn a_process_that_ended_but_was_not_waited_for_does_not_run() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let (_, ticks) = parse_stat(&fs::read(format!("/proc/{pid}/stat")).unwrap()).unwrap();

        assert_eq!(signal_process(pid, ticks, 9), Ok(true));
        while process_runs(pid, ticks) == Ok(true) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(signal_process(pid, ticks, 9), Ok(false));
        child.wait().unwrap();
    }
}
