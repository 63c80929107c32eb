//! What a program that serves one directory of the host to somebody hostile sees and may do. Its root holds that directory,
//! what a program needs to start, and nothing else. It is a user of its own, which on this directory's mount stands for the
//! directory's owner, and it is root where only that user exists.

use crate::confine::{during, landlock, root, seccomp};
use crate::sys::mount::{self, NO_DEVICES, NO_EXEC, NO_SUID, READ_ONLY};
use crate::sys::process::{self, Forked};
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, fstat, umask};
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Pid, Uid, pause, pipe, read, setgroups, setresgid, setresuid, write};
use serde::Deserialize;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Where the program finds the directory.
const INSIDE: &str = "/share";

/// The capabilities that a server of files needs among its own user's files, by the kernel's numbers: CHOWN, DAC_OVERRIDE,
/// DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID, SETPCAP, SYS_CHROOT, MKNOD, SETFCAP.
const CAPABILITIES: [libc::c_ulong; 11] = [0, 1, 2, 3, 4, 6, 7, 8, 18, 27, 31];

/// The directory. No part of its path may be a link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    path: PathBuf,
    read_only: bool,
}

impl Share {
    /// Confines this process, which is root's and has one thread, as the module says. What it runs next may read and
    /// execute `read_paths`.
    pub fn enter(&self, uid: u32, read_paths: &[PathBuf]) -> Result<(), String> {
        let own = CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWNET;
        unshare(CloneFlags::CLONE_NEWNS | own).map_err(during("making namespaces"))?;
        // Whoever the program becomes passes through the directories of its root.
        umask(Mode::from_bits_truncate(0o022));
        mount::make_all_private().map_err(during("leaving the host's mounts"))?;
        let directory = self.open()?;
        let tree = self.mount_of(directory.as_fd(), uid)?;
        // The new root's own cannot be written through.
        let proc = open("/proc", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(during("opening /proc"))?;
        root::enter_with(read_paths, tree, directory.as_fd(), Path::new(INSIDE))?;
        become_only_user(uid, proc.as_fd())?;
        process::bound_capabilities(&CAPABILITIES).map_err(during("bounding capabilities"))?;
        process::forbid_new_privileges().map_err(during("setting no_new_privs"))?;
        let mut readable = read_paths.to_vec();
        let mut writable = vec![PathBuf::from("/dev/null"), PathBuf::from("/dev/urandom")];
        if self.read_only { &mut readable } else { &mut writable }.push(INSIDE.into());
        landlock::restrict_to(&readable, &writable)?;
        seccomp::for_file_server().install().map_err(during("installing the filter"))
    }

    fn open(&self) -> Result<OwnedFd, String> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(AT_FDCWD, &self.path, how).map_err(during(format!("opening the shared folder {}", self.path.display())))
    }

    /// A detached mount of the directory on which `uid` stands for its owner.
    fn mount_of(&self, directory: BorrowedFd<'_>, uid: u32) -> Result<OwnedFd, String> {
        let failed = |what: &str| during(format!("{what} shared folder {}", self.path.display()));
        let tree = mount::clone_tree_of(directory).map_err(failed("mounting the"))?;
        let read_only = if self.read_only { READ_ONLY } else { 0 };
        mount::set_attributes(tree.as_fd(), NO_SUID | NO_DEVICES | NO_EXEC | read_only, true)
            .map_err(failed("mounting the"))?;
        let owner = fstat(directory).map_err(|errno| failed("looking at the")(errno.into()))?;
        let users = users_namespace(&format!("{} {uid} 1", owner.st_uid), &format!("{} {uid} 1", owner.st_gid));
        let mapped = users.and_then(|users| mount::map_users(tree.as_fd(), users.as_fd()));
        mapped.map_err(failed("mapping users, which its file system may not allow, on the"))?;
        Ok(tree)
    }
}

/// A user namespace with these maps, in which nobody lives.
fn users_namespace(uid_map: &str, gid_map: &str) -> std::io::Result<OwnedFd> {
    let (ready, readiness) = pipe()?;
    let child = match process::fork()? {
        Forked::Child => process::exit_with(|| {
            // Its end is a signal of its parent, or its parent's own end.
            let waits = process::end_with_parent().is_ok() && unshare(CloneFlags::CLONE_NEWUSER).is_ok();
            if !waits || write(&readiness, b"x").is_err() {
                return 1;
            }
            loop {
                pause();
            }
        }),
        Forked::Parent(child) => child,
    };
    drop(readiness);
    let users = read(&ready, &mut [0]).map_err(std::io::Error::from).and_then(|count| match count {
        0 => Err(std::io::Error::other("no user namespace can be made")),
        _ => map_and_open(child, uid_map, gid_map),
    });
    kill(child, Signal::SIGKILL)?;
    waitpid(child, None)?;
    users
}

fn map_and_open(child: Pid, uid_map: &str, gid_map: &str) -> std::io::Result<OwnedFd> {
    std::fs::write(format!("/proc/{child}/uid_map"), uid_map)?;
    std::fs::write(format!("/proc/{child}/gid_map"), gid_map)?;
    Ok(File::open(format!("/proc/{child}/ns/user"))?.into())
}

/// Becomes `uid`, and root of a user namespace where that is the only user. `proc` is a `/proc` that can be written.
fn become_only_user(uid: u32, proc: BorrowedFd<'_>) -> Result<(), String> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    process::keep_capabilities().map_err(during("keeping capabilities"))?;
    setgroups(&[]).map_err(during("leaving supplementary groups"))?;
    setresgid(group, group, group).map_err(during("changing the group"))?;
    setresuid(user, user, user).map_err(during("changing the user"))?;
    // Some hosts let only those make a user namespace that need none.
    process::use_capabilities().map_err(during("using capabilities"))?;
    process::own_proc_files().map_err(during("owning /proc files"))?;
    unshare(CloneFlags::CLONE_NEWUSER).map_err(during("making a user namespace"))?;
    for (name, content) in
        [("setgroups", "deny".to_owned()), ("gid_map", format!("0 {uid} 1")), ("uid_map", format!("0 {uid} 1"))]
    {
        let file = openat(proc, &*format!("self/{name}"), OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty());
        let written =
            file.map_err(std::io::Error::from).and_then(|file| File::from(file).write_all(content.as_bytes()));
        written.map_err(during(format!("writing {name}")))?;
    }
    Ok(())
}
