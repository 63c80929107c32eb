//! Where no version 2 control group can be made (an ordinary user without delegation), each command has a minder:
//! its parent, which adopts every orphan below it, so that "all that this command started" has a name. It ends the
//! way its command ended.

use crate::control::Status;
use crate::limits::KILL_MS_MAX;
use crate::spawner::KILL_TREE_SIGNAL;
use crate::sys::process::{self, Forked, Reaped, exit_now};
use crate::sys::terminal;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::Pid;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How a minder ends whose command was killed. One that is itself killed ends by SIGKILL, so the two differ.
const COMMAND_KILLED_SIGNAL: i32 = libc::SIGUSR2;

/// The end of the command, told by the end of its minder; none when the minder was killed and its command is
/// without one.
pub fn command_status(minder: Status) -> Option<Status> {
    match minder {
        Status::Signal(libc::SIGKILL) => None,
        Status::Signal(COMMAND_KILLED_SIGNAL) => Some(Status::Signal(libc::SIGKILL)),
        other => Some(other),
    }
}

/// Forks `command` (which never returns) and minds it, in a session with `terminal` as its controlling one. With
/// `kill_group` everything it left is killed at its end.
pub fn run(kill_group: bool, terminal: Option<OwnedFd>, command: impl FnOnce() -> i32) -> ! {
    match mind(kill_group, terminal, command) {
        Ok(Status::Code(code)) => exit_now(code),
        Ok(Status::Signal(libc::SIGKILL)) => end_by(COMMAND_KILLED_SIGNAL),
        Ok(Status::Signal(signal)) => end_by(signal),
        // What it minded can no longer be named: init ends everything when a minder ends like this.
        Err(_) => end_by(libc::SIGKILL),
    }
}

fn mind(kill_group: bool, terminal: Option<OwnedFd>, command: impl FnOnce() -> i32) -> io::Result<Status> {
    nix::unistd::setsid()?;
    if let Some(terminal) = terminal {
        terminal::control(&terminal)?;
    }
    process::adopt_orphans()?;
    // Signals to the command's group also come here, and are for the command.
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?;
    let main = match process::fork()? {
        Forked::Child => exit_now(command()),
        Forked::Parent(pid) => pid,
    };
    // The command's pipes, which must close when the command closes them.
    drop(command);
    let all: Vec<i32> = (1..=libc::SIGRTMAX()).collect();
    let mut ended = None;
    while ended.is_none() {
        let received = process::wait_signal(&all)?;
        if received.signal == libc::SIGCHLD {
            ended = reap_all(main)?.main;
        } else if received.is_queued && received.signal == KILL_TREE_SIGNAL {
            ended = Some(kill_tree(main)?.unwrap_or(Status::Signal(libc::SIGKILL)));
        } else {
            // A shell with job control has left for a group of its own. One that stayed has the signal already.
            process::signal(-main.as_raw(), received.signal)?;
        }
    }
    if kill_group {
        kill_tree(main)?;
    }
    Ok(ended.expect("the loop ends with it"))
}

/// What a round of reaping brought.
#[derive(Default)]
struct Round {
    /// How the main process ended, when it was among them.
    main: Option<Status>,
    none_left: bool,
}

fn reap_all(main: Pid) -> io::Result<Round> {
    let mut round = Round::default();
    loop {
        match process::reap(None)? {
            Reaped::Child(pid, status) if pid == main => round.main = Some(status),
            Reaped::Child(..) => (),
            Reaped::NoneEnded => return Ok(round),
            Reaped::NoChildren => return Ok(Round { none_left: true, ..round }),
        }
    }
}

/// Kills children, and theirs as they come up, until none is left. Gives the end of the main process when it came
/// now. An error when some cannot be killed in time, or not be listed.
fn kill_tree(main: Pid) -> io::Result<Option<Status>> {
    let deadline = Instant::now() + Duration::from_millis(KILL_MS_MAX);
    let mut ended = None;
    loop {
        let round = reap_all(main)?;
        ended = round.main.or(ended);
        if round.none_left {
            return Ok(ended);
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for child in fs::read_to_string("/proc/thread-self/children")?.split_ascii_whitespace() {
            if let Ok(pid) = child.parse() {
                process::signal(pid, libc::SIGKILL)?;
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn end_by(signal: i32) -> ! {
    // Were it to fail, the exit below would be taken for the command's.
    let _ = process::reset_signals().and_then(|()| process::signal(std::process::id() as i32, signal));
    exit_now(127)
}
