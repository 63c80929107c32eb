//! The way in: two processes come out of one. The inner one is alone in new namespaces with an empty root and rights to
//! nothing; the outer one waits for its end, so that whoever started it has one pid that lives as long as the machine.

use crate::identity::{drop_rights, map_ids, set_limits};
use crate::logs::Logs;
use crate::root::{limit_directories, pivot};
use crate::waiter::wait_for;
use crate::{JailError, io_step, step};
use fluxvm_sys::Errno;
use fluxvm_sys::namespaces::{UnshareFlags, leave};
use fluxvm_sys::process::{Forked, close_others, fork};
use fluxvm_sys::signals::EndSignals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Pid, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::set_no_new_privs;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// What the process keeps.
#[derive(Clone, Debug)]
pub struct Jail {
    /// Its user, which nobody else has.
    pub uid: u32,
    /// Its group, which nobody else has.
    pub gid: u32,
    /// The directory of its files, which it sees as [`crate::DIRECTORY`]; it must belong to the user.
    pub directory: PathBuf,
    /// The directory of its sockets, which it sees as [`crate::SOCKETS`]. It sees no other.
    pub sockets: PathBuf,
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
struct Pipes {
    ready: OwnedFd,
    mapped: OwnedFd,
}

/// Enters the jail with the three standard descriptors and those of `keep`; all others are closed. Returns in the inner
/// process, which is the first of its pid namespace; the outer one never returns and ends as the inner one does. When the
/// outer one is killed, so is the inner one. Requests to end that come as signals, which must have been taken before, the
/// outer one passes on, and it writes `logs`. Needs root.
///
/// Tells which pages of its memory the process inside has written by a descriptor, since it cannot look that up in there;
/// nothing where the host's `/proc` does not say.
///
/// # Errors
/// Names the step that failed. The process, which may be half inside, must end then.
///
/// # Safety
/// Nobody may use a descriptor that is not kept, nor close it again.
#[allow(unsafe_code)]
pub unsafe fn enter(jail: &Jail, keep: &[BorrowedFd<'_>], logs: Logs) -> Result<Option<File>, JailError> {
    if let Some(cgroup) = &jail.cgroup {
        std::fs::write(cgroup.join("cgroup.procs"), "0").map_err(io_step("join the cgroup"))?;
    }
    let signals = EndSignals::take().map_err(step("take signals"))?;
    let (ready_end, ready) = pipe_with(PipeFlags::CLOEXEC).map_err(step("make a pipe"))?;
    let (mapped, mapped_end) = pipe_with(PipeFlags::CLOEXEC).map_err(step("make a pipe"))?;
    leave(UnshareFlags::NEWPID).map_err(step("make a pid namespace"))?;
    leave_clocks().map_err(step("make a time namespace"))?;
    match fork() {
        Err(Errno::BUSY) => Err(JailError::Threads),
        Err(errno) => Err(JailError::Step("make the inner process", errno)),
        Ok(Forked::Parent(inner)) => {
            drop((ready, mapped));
            stay_outside(jail, inner, &ready_end, &mapped_end, &signals, logs)?;
            Err(JailError::Abandoned)
        }
        Ok(Forked::Child) => {
            drop((ready_end, mapped_end, signals));
            logs.move_in().map_err(step("part from the logs"))?;
            let pipes = Pipes { ready, mapped };
            let page_map = File::open("/proc/self/pagemap").ok();
            go_inside(jail, &pipes)?;
            drop(pipes);
            let keep: Vec<_> = keep.iter().chain(&page_map.as_ref().map(AsFd::as_fd)).map(AsRawFd::as_raw_fd).collect();
            // SAFETY: who calls this function answers for the descriptors.
            unsafe { close_others(&keep) }.map_err(step("close descriptors"))?;
            Ok(page_map)
        }
    }
}

/// The clocks of the inner process are apart from those of others and show the same. A kernel that was built without such
/// namespaces has one set of clocks, which the inner process has no right to set; nothing is lost there.
fn leave_clocks() -> Result<(), Errno> {
    match leave(UnshareFlags::NEWTIME) {
        Err(Errno::INVAL) => Ok(()),
        left => left,
    }
}

fn stay_outside(
    jail: &Jail,
    inner: Pid,
    ready: &OwnedFd,
    mapped: &OwnedFd,
    signals: &EndSignals,
    logs: Logs,
) -> Result<(), JailError> {
    if hears(ready) {
        map_ids(inner, jail.uid, jail.gid)?;
        write(mapped, &[1]).map_err(step("tell the inner process"))?;
    }
    // From here on an error could only be told by a status that the inner process has not given.
    wait_for(inner, jail, mapped, signals, logs)
}

fn go_inside(jail: &Jail, pipes: &Pipes) -> Result<(), JailError> {
    leave(ALL_BUT_USERS).map_err(step("make namespaces"))?;
    pivot(&jail.directory, &jail.sockets)?;
    set_limits(jail.limits)?;
    // Last, so that even a full set of its rights reaches none of the namespaces above.
    leave(UnshareFlags::NEWUSER).map_err(step("make a user namespace"))?;
    write(&pipes.ready, &[1]).map_err(step("tell the outer process"))?;
    if !hears(&pipes.mapped) {
        return Err(JailError::Abandoned);
    }
    drop_rights(jail.uid, jail.gid)?;
    set_no_new_privs(true).map_err(step("give up new rights"))?;
    limit_directories()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("forbid dumps"))?;
    // Changing the user would undo this, so that it comes after; who died before has closed its pipe.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(step("tie the processes together"))?;
    if hung_up(&pipes.mapped) { Err(JailError::Abandoned) } else { Ok(()) }
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
