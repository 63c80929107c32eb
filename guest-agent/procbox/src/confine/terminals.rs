//! The sandbox's own devpts: made by the launcher, so that the supervisor can open terminals of it although nothing is
//! ever passed up from init, which mounts it where it belongs.

use crate::limits::TERMINALS_MAX;
use crate::probe::map_own_user;
use crate::sys::mount::{self, NO_EXEC, NO_SUID};
use crate::sys::process::{self, Forked};
use nix::fcntl::OFlag;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{dup3, getegid, geteuid};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// A devpts that is not attached anywhere. Terminals belong to `owner`, whoever makes them; without one, to whoever
/// does.
pub fn make(owner: Option<u32>) -> io::Result<OwnedFd> {
    let max = CString::new(TERMINALS_MAX.to_string()).expect("digits");
    let owner = owner.map(|uid| CString::new(uid.to_string()).expect("digits"));
    let mut options = vec![(c"ptmxmode", c"0666"), (c"mode", c"0600"), (c"max", max.as_c_str())];
    if let Some(uid) = &owner {
        options.extend([(c"uid", uid.as_c_str()), (c"gid", uid.as_c_str())]);
    }
    mount::new_filesystem(c"devpts", &options, NO_SUID | NO_EXEC)
}

/// As [`make`], for an ordinary user: a child makes it in namespaces of its own, which the file system outlives, and
/// leaves it in the descriptor table that it shares with this process. The process must have one thread.
pub fn make_unprivileged() -> io::Result<OwnedFd> {
    let mut slot: OwnedFd = File::open("/dev/null")?.into();
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_FILES;
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    match process::fork_into_namespaces(namespaces)? {
        Forked::Child => process::exit_with(|| {
            let made = map_own_user(uid, gid)
                .and_then(|()| make(None))
                .and_then(|made| Ok(dup3(made, &mut slot, OFlag::O_CLOEXEC)?));
            made.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO))
        }),
        Forked::Parent(child) => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(slot),
            WaitStatus::Exited(_, errno) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        },
    }
}
