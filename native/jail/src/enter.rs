//! The way in: two processes come out of one. The inner one is alone in new namespaces with an empty root and rights to
//! nothing; the outer one waits for its end, so that whoever started it has one pid that lives as long as the machine.

use crate::identity::{drop_rights, map_ids, set_limits};
use crate::root::pivot;
use crate::waiter::wait_for;
use crate::{JailError, io_step, step};
use fluxvm_sys::Errno;
use fluxvm_sys::namespaces::{UnshareFlags, leave};
use fluxvm_sys::process::{Forked, close_others, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Pid, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::set_no_new_privs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// What the process keeps.
#[derive(Clone, Debug)]
pub struct Jail {
    /// Its user, which nobody else has.
    pub uid: u32,
    /// Its group, which nobody else has.
    pub gid: u32,
    /// The only directory that it sees, as [`crate::DIRECTORY`]; it must belong to the user.
    pub directory: PathBuf,
    /// The cgroup that it joins, a directory of cgroup version 2.
    pub cgroup: Option<PathBuf>,
    /// What it may use up.
    pub limits: Limits,
}

/// Resource limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads of the user, the outer process included.
    pub threads: u64,
    /// Length of a file that it writes, in bytes.
    pub file_bytes: u64,
}

const ALL_BUT_USERS: UnshareFlags = UnshareFlags::NEWNS
    .union(UnshareFlags::NEWNET)
    .union(UnshareFlags::NEWIPC)
    .union(UnshareFlags::NEWUTS)
    .union(UnshareFlags::NEWCGROUP);

/// The inner process's ends of the two pipes: it says that it has a user namespace, and hears that the namespace has ids.
struct Signals {
    ready: OwnedFd,
    mapped: OwnedFd,
}

/// Enters the jail with the three standard descriptors and those of `keep`; all others are closed. Returns in the inner
/// process, which is the first of its pid namespace; the outer one never returns and ends as the inner one does. When the
/// outer one is killed, so is the inner one. Needs root.
///
/// # Errors
/// Names the step that failed. The process, which may be half inside, must end then.
///
/// # Safety
/// Nobody may use a descriptor that is not kept, nor close it again.
#[allow(unsafe_code)]
pub unsafe fn enter(jail: &Jail, keep: &[BorrowedFd<'_>]) -> Result<(), JailError> {
    if let Some(cgroup) = &jail.cgroup {
        std::fs::write(cgroup.join("cgroup.procs"), "0").map_err(io_step("join the cgroup"))?;
    }
    let (ready_end, ready) = pipe_with(PipeFlags::CLOEXEC).map_err(step("make a pipe"))?;
    let (mapped, mapped_end) = pipe_with(PipeFlags::CLOEXEC).map_err(step("make a pipe"))?;
    leave(UnshareFlags::NEWPID).map_err(step("make a pid namespace"))?;
    match fork() {
        Err(Errno::BUSY) => Err(JailError::Threads),
        Err(errno) => Err(JailError::Step("make the inner process", errno)),
        Ok(Forked::Parent(inner)) => {
            drop((ready, mapped));
            stay_outside(jail, inner, &ready_end, &mapped_end)
        }
        Ok(Forked::Child) => {
            drop((ready_end, mapped_end));
            let signals = Signals { ready, mapped };
            go_inside(jail, &signals)?;
            drop(signals);
            let keep: Vec<_> = keep.iter().map(AsRawFd::as_raw_fd).collect();
            // SAFETY: who calls this function answers for the descriptors.
            unsafe { close_others(&keep) }.map_err(step("close descriptors"))
        }
    }
}

fn stay_outside(jail: &Jail, inner: Pid, ready: &OwnedFd, mapped: &OwnedFd) -> Result<(), JailError> {
    if hears(ready) {
        map_ids(inner, jail.uid, jail.gid)?;
        write(mapped, &[1]).map_err(step("tell the inner process"))?;
    }
    // From here on an error could only be told by a status that the inner process has not given.
    wait_for(inner, jail, mapped)
}

fn go_inside(jail: &Jail, signals: &Signals) -> Result<(), JailError> {
    leave(ALL_BUT_USERS).map_err(step("make namespaces"))?;
    pivot(&jail.directory)?;
    set_limits(jail.limits)?;
    // Last, so that even a full set of its rights reaches none of the namespaces above.
    leave(UnshareFlags::NEWUSER).map_err(step("make a user namespace"))?;
    write(&signals.ready, &[1]).map_err(step("tell the outer process"))?;
    if !hears(&signals.mapped) {
        return Err(JailError::Abandoned);
    }
    drop_rights(jail.uid, jail.gid)?;
    set_no_new_privs(true).map_err(step("give up new rights"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("forbid dumps"))?;
    // Changing the user would undo this, so that it comes after; who died before has closed its pipe.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(step("tie the processes together"))?;
    if hung_up(&signals.mapped) { Err(JailError::Abandoned) } else { Ok(()) }
}

fn hears(pipe: &OwnedFd) -> bool {
    loop {
        match read(pipe, &mut [0; 1]) {
            Err(Errno::INTR) => {}
            heard => return heard == Ok(1),
        }
    }
}

fn hung_up(pipe: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
