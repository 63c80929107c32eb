//! Process calls: forks into namespaces and control groups, rights that are given up, descriptors that are
//! closed, and the last step into a command. Every process that forks here has a single thread.

use super::check;
use crate::control::Status;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::Pid;
use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Where a fork came back.
pub enum Forked {
    Parent(Pid),
    Child,
}

fn forked(value: libc::c_long) -> io::Result<Forked> {
    Ok(match check(value)? {
        0 => Forked::Child,
        pid => Forked::Parent(Pid::from_raw(pid as libc::pid_t)),
    })
}

/// Forks into the new namespaces of `flags` (`CLONE_NEW…`).
pub fn fork_into_namespaces(flags: libc::c_int) -> io::Result<Forked> {
    let flags = (flags | libc::SIGCHLD) as libc::c_ulong;
    // SAFETY: without CLONE_VM the child has its own copy of everything; the process has one thread, so no lock
    // is held by a thread that the child lacks.
    forked(unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) })
}

/// Forks a plain child.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: the process has one thread, so no lock is held by a thread that the child lacks.
    forked(unsafe { libc::fork() }.into())
}

/// Forks a sibling (a child of this process's parent), straight into control group `group` when given.
pub fn fork_sibling(group: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    let Some(group) = group else {
        let flags = libc::CLONE_PARENT as libc::c_ulong;
        // SAFETY: as in `fork_into_namespaces`.
        return forked(unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) });
    };
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: all-zero is the documented "nothing asked for" of clone_args.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_PARENT as u64 | CLONE_INTO_CGROUP;
    args.cgroup = group.as_raw_fd() as u64;
    // SAFETY: as in `fork_into_namespaces`; `args` is a whole structure during the call.
    forked(unsafe { libc::syscall(libc::SYS_clone3, &args as *const libc::clone_args, size_of::<libc::clone_args>()) })
}

/// Ends this process without running exit handlers, which belong to the process it was forked from.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: never returns and touches no memory.
    unsafe { libc::_exit(status) }
}

/// Ends this forked process with what `run` returns; a panic stays in it as well.
pub fn exit_with(run: impl FnOnce() -> i32) -> ! {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    exit_now(result.unwrap_or(PANICKED))
}

const PANICKED: i32 = 101;

/// Closes every descriptor but those in `keep`.
pub fn close_all_except(keep: &[RawFd]) -> io::Result<()> {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    keep.dedup();
    let mut first: libc::c_uint = 0;
    for descriptor in keep {
        let descriptor = descriptor as libc::c_uint;
        if descriptor > first {
            close_range(first, descriptor - 1, 0)?;
        }
        first = descriptor + 1;
    }
    close_range(first, libc::c_uint::MAX, 0)
}

/// Marks every descriptor from `first` on to be closed by execve.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    close_range(first as libc::c_uint, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int)
}

fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain integers; callers own no `OwnedFd` in the range that they use afterwards.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })?;
    Ok(())
}

/// Copies `source` to the fixed number `target`, which stays open across execve.
pub fn duplicate_to(source: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: plain integers. `target` is a standard number that no `OwnedFd` of this process holds.
    check(unsafe { libc::dup2(source.as_raw_fd(), target) }.into())?;
    Ok(())
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the options used below take one integer and require the rest to be zero.
    check(unsafe { libc::prctl(option, argument, 0usize, 0usize, 0usize) }.into())?;
    Ok(())
}

/// No execve gives this process or its children new rights, for ever.
pub fn forbid_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Others of the same user can no longer trace this process or read its memory or `/proc` files.
pub fn hide_from_peers() -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, 0)
}

/// This process is killed when the thread that forked it ends.
pub fn end_with_parent() -> io::Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)
}

/// Orphans below this process become its children.
pub fn adopt_orphans() -> io::Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// Empties the bounding and ambient capability sets. Must come before the user is changed.
pub fn drop_capability_bounds() -> io::Result<()> {
    for capability in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            Ok(()) => (),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong)
}

/// Takes every capability out of the bounding set but those in `keep`.
pub fn bound_capabilities(keep: &[libc::c_ulong]) -> io::Result<()> {
    for capability in (0..64).filter(|capability| !keep.contains(capability)) {
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
            _ => (),
        }
    }
    Ok(())
}

const CAPABILITIES_VERSION_3: u32 = 0x2008_0522;

/// Empties the effective, permitted and inheritable capability sets.
pub fn drop_capabilities() -> io::Result<()> {
    set_capabilities(&[0; 6])
}

fn set_capabilities(sets: &[u32; 6]) -> io::Result<()> {
    let header = [CAPABILITIES_VERSION_3, 0];
    // SAFETY: the arrays have the layout of cap_user_header and of two cap_user_data, alive during the call.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) })?;
    Ok(())
}

/// The next change of the user takes no capability away, only its effect; see [`use_capabilities`].
pub fn keep_capabilities() -> io::Result<()> {
    prctl(libc::PR_SET_KEEPCAPS, 1)
}

/// Makes every capability effective that this process may have.
pub fn use_capabilities() -> io::Result<()> {
    let header = [CAPABILITIES_VERSION_3, 0];
    let mut sets = [0u32; 6];
    // SAFETY: the arrays have the layout of cap_user_header and of two cap_user_data, alive during the call.
    check(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) })?;
    // Effective, permitted, inheritable; the low half and the high half.
    (sets[0], sets[3]) = (sets[1], sets[4]);
    set_capabilities(&sets)
}

/// The `/proc` files of this process belong to its user again, which a change of the user took away.
pub fn own_proc_files() -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, 1)
}

/// Sets soft and hard limit of `resource`.
pub fn limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    // SAFETY: `limit` is a whole structure during the call.
    check(unsafe { libc::setrlimit64(resource, &limit) }.into())?;
    Ok(())
}

/// Puts every signal back to its default and blocks none, as a command expects to start.
pub fn reset_signals() -> io::Result<()> {
    for signal in 1..=libc::SIGRTMAX() {
        if signal == libc::SIGKILL || signal == libc::SIGSTOP {
            continue;
        }
        // SAFETY: the default disposition runs no code of ours. Numbers that libc keeps for itself fail harmlessly.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    Ok(())
}

/// Signals a process, a group (negative) or everything this process may signal (-1). No such target is fine.
pub fn signal(target: libc::pid_t, signal: i32) -> io::Result<()> {
    // SAFETY: plain integers.
    match check(unsafe { libc::kill(target, signal) }.into()) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
        _ => Ok(()),
    }
}

/// Signals a process in a way that it can tell from an ordinary signal.
pub fn queue_signal(target: Pid, signal: i32) -> io::Result<()> {
    let value = libc::sigval { sival_ptr: std::ptr::null_mut() };
    // SAFETY: plain integers and a null pointer that nobody follows.
    match check(unsafe { libc::sigqueue(target.as_raw(), signal, value) }.into()) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
        _ => Ok(()),
    }
}

/// A signal that was waited for.
pub struct Received {
    pub signal: i32,
    /// It was sent by [`queue_signal`].
    pub is_queued: bool,
}

/// Waits for one of `signals`, all of which are blocked.
pub fn wait_signal(signals: &[i32]) -> io::Result<Received> {
    // SAFETY: all-zero is a valid sigset_t and a valid siginfo_t.
    let (mut set, mut info): (libc::sigset_t, libc::siginfo_t) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    for signal in signals {
        // SAFETY: `set` is a sigset_t.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    loop {
        // SAFETY: both structures are alive during the call.
        match check(unsafe { libc::sigwaitinfo(&set, &mut info) }.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => (),
            Err(error) => return Err(error),
            Ok(signal) => return Ok(Received { signal: signal as i32, is_queued: info.si_code == libc::SI_QUEUE }),
        }
    }
}

/// Takes ownership of an open descriptor that nobody else owns: one the kernel just gave out, or one handed over
/// by the parent. It is closed by execve.
pub fn adopt_descriptor(raw: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain integers; a number that is not open fails.
    check(unsafe { libc::fcntl(raw, libc::F_SETFD, libc::FD_CLOEXEC) }.into())?;
    // SAFETY: it is open, and by contract of this function nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// What [`reap`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    Child(Pid, Status),
    /// There are children, and none has ended.
    NoneEnded,
    NoChildren,
}

/// Takes an ended child of this process, without waiting: `child` alone when given. Written by hand because a
/// child may end by any signal, real-time ones included.
pub fn reap(child: Option<Pid>) -> io::Result<Reaped> {
    let mut status = 0;
    // SAFETY: `status` is an int during the call.
    let pid = unsafe { libc::waitpid(child.map_or(-1, Pid::as_raw), &mut status, libc::WNOHANG) };
    match check(pid.into()) {
        Ok(0) => Ok(Reaped::NoneEnded),
        Ok(_) if libc::WIFSIGNALED(status) => {
            Ok(Reaped::Child(Pid::from_raw(pid), Status::Signal(libc::WTERMSIG(status))))
        }
        Ok(_) => Ok(Reaped::Child(Pid::from_raw(pid), Status::Code(libc::WEXITSTATUS(status)))),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Reaped::NoChildren),
        Err(error) => Err(error),
    }
}

/// A program with arguments and environment, in the form that execve takes.
pub struct Image {
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Image {
    pub fn new(argv: Vec<CString>, env: Vec<CString>) -> Self {
        Self { argv, env }
    }

    /// Becomes the program at `path`. Returns only on failure.
    pub fn execute(&self, path: &CStr) -> io::Result<Infallible> {
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, env) = (pointers(&self.argv), pointers(&self.env));
        // SAFETY: both arrays end with null and hold pointers to strings that outlive the call.
        unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
        Err(io::Error::last_os_error())
    }
}

/// Switches the loopback interface of this network namespace on.
pub fn loopback_up() -> io::Result<()> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(*b"lo") {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: `request` is a whole ifreq during the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) }.into())?;
    Ok(())
}
