//! The sandbox's control groups. The launcher opens what its helpers and commands enter through; the supervisor
//! owns one leaf of the version 2 hierarchy for each running command, which is the scope in which it is killed.

use crate::config::CgroupPaths;
use crate::limits::KILL_MS_MAX;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, chown, fchownat, unlinkat};
use std::cell::{Cell, RefCell};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// Open `cgroup.procs` files. The kernel judges a write by the rights of whoever opened the file, so that a
/// process without any can still enter the groups of its own sandbox.
#[derive(Default)]
pub struct Memberships {
    init: Vec<File>,
    work: Vec<File>,
}

impl Memberships {
    pub fn open(paths: &CgroupPaths) -> io::Result<Self> {
        let open = |path: &Path| OpenOptions::new().write(true).open(path).map_err(|error| at(path, error));
        Ok(Self {
            init: paths.init_procs.iter().map(|path| open(path)).collect::<io::Result<_>>()?,
            work: (paths.work_v2.iter().chain(&paths.work_v1))
                .map(|group| open(&group.join("cgroup.procs")))
                .collect::<io::Result<_>>()?,
        })
    }

    /// Moves this process into the `init` leaves. Costs a grace period of the kernel, some 10 ms when it has been
    /// idle, and next to nothing right after another move.
    pub fn join_init(&self) -> io::Result<()> {
        join(&self.init)
    }

    /// Moves this process into the `work` groups.
    pub fn join_work(&self) -> io::Result<()> {
        join(&self.work)
    }

    /// Moves this process into the `work` groups of those hierarchies that also have an `init` leaf, so that
    /// [`Self::join_init`] takes it out of all of them again.
    pub fn visit_work(&self) -> io::Result<()> {
        // Each hierarchy is a file system of its own.
        let hierarchy = |procs: &File| procs.metadata().map(|metadata| metadata.dev());
        let with_init = self.init.iter().map(hierarchy).collect::<io::Result<Vec<_>>>()?;
        for procs in &self.work {
            if with_init.contains(&hierarchy(procs)?) {
                join(std::slice::from_ref(procs))?;
            }
        }
        Ok(())
    }

    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.init.iter().chain(&self.work).map(AsRawFd::as_raw_fd)
    }
}

fn join(groups: &[File]) -> io::Result<()> {
    groups.iter().try_for_each(|mut procs| procs.write_all(b"0"))
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Gives the version 2 `work` group to the supervisor, and the right to start processes in its leaves to the
/// sandbox's group.
pub fn delegate(work: &Path, supervisor_uid: u32, sandbox_gid: u32) -> io::Result<()> {
    let (owner, group) = (Some(Uid::from_raw(supervisor_uid)), Some(Gid::from_raw(sandbox_gid)));
    chown(work, owner, Some(Gid::from_raw(supervisor_uid)))?;
    for name in ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
        let path = work.join(name);
        chown(&path, owner, group).map_err(|error| at(&path, error.into()))?;
    }
    let procs = work.join("cgroup.procs");
    fs::set_permissions(&procs, std::os::unix::fs::PermissionsExt::from_mode(0o664)).map_err(|error| at(&procs, error))
}

/// Whether a `work` group limits the number of processes.
pub fn limits_processes(paths: &CgroupPaths) -> bool {
    paths.work_v2.iter().chain(&paths.work_v1).any(|group| group.join("pids.max").exists())
}

/// Counts out-of-memory kills in a `work` group.
pub struct OomCounter {
    file: Option<File>,
}

impl OomCounter {
    pub fn open(paths: Option<&CgroupPaths>) -> Self {
        let candidates = paths.into_iter().flat_map(|paths| {
            let v2 = paths.work_v2.iter().map(|group| group.join("memory.events"));
            v2.chain(paths.work_v1.iter().map(|group| group.join("memory.oom_control")))
        });
        Self { file: candidates.filter_map(|path| File::open(path).ok()).next() }
    }

    /// Kills so far; 0 where no control group counts them.
    pub fn kills(&self) -> u64 {
        let mut buffer = [0; 512];
        let Some(length) = self.file.as_ref().and_then(|file| file.read_at(&mut buffer, 0).ok()) else { return 0 };
        let text = String::from_utf8_lossy(&buffer[..length]);
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or(0)
    }
}

/// The leaves below `work`, made on demand and used again once they are empty. One that was killed is not: the
/// kernel kills whatever is born into such a group from outside (it compares kill counts of two different groups).
pub struct Leaves {
    work: OwnedFd,
    sandbox_gid: Option<u32>,
    made: Cell<u64>,
    /// Leaves nobody uses; some may still hold what a command left behind.
    idle: RefCell<Vec<Leaf>>,
}

impl Leaves {
    /// Opens `work` for making leaves. `Unsupported` where the kernel cannot kill a whole group (before 5.14).
    pub fn open(work: &Path, sandbox_gid: Option<u32>) -> io::Result<Self> {
        if !work.join("cgroup.kill").exists() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        let work = nix::fcntl::open(work, flags, Mode::empty())?;
        Ok(Self { work, sandbox_gid, made: Cell::new(0), idle: RefCell::default() })
    }

    /// An empty leaf.
    pub fn acquire(&self) -> io::Result<Leaf> {
        let mut idle = self.idle.borrow_mut();
        if let Some(index) = idle.iter().rposition(Leaf::is_fresh) {
            return Ok(idle.swap_remove(index));
        }
        // The longer the list of those that are still in use, the more are looked at here.
        idle.retain(|leaf| !self.remove(leaf));
        drop(idle);
        let name = format!("e{}", self.made.replace(self.made.get() + 1));
        Leaf::make(&self.work, name, self.sandbox_gid)
    }

    /// Takes a leaf back. What still runs in it goes on, and is killed with the sandbox.
    pub fn release(&self, leaf: Leaf) {
        if leaf.is_fresh() || !self.remove(&leaf) {
            self.idle.borrow_mut().push(leaf);
        }
    }

    /// Removes a leaf that was killed; false when something still runs in it, or it was not killed.
    fn remove(&self, leaf: &Leaf) -> bool {
        leaf.killed.get() && unlinkat(&self.work, leaf.name.as_str(), UnlinkatFlags::RemoveDir).is_ok()
    }
}

/// The control group of one command.
pub struct Leaf {
    name: String,
    directory: OwnedFd,
    kill: File,
    events: File,
    killed: Cell<bool>,
}

impl Leaf {
    fn make(work: &OwnedFd, name: String, sandbox_gid: Option<u32>) -> io::Result<Self> {
        mkdirat(work, name.as_str(), Mode::from_bits_truncate(0o755))?;
        let directory = openat(work, name.as_str(), OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        if let Some(gid) = sandbox_gid {
            // The kernel lets a process be born in a leaf only when its parent may write here.
            fchownat(&directory, "cgroup.procs", None, Some(Gid::from_raw(gid)), nix::fcntl::AtFlags::empty())?;
            fchmodat(&directory, "cgroup.procs", Mode::from_bits_truncate(0o664), FchmodatFlags::FollowSymlink)?;
        }
        let file = |name: &str, flags| openat(&directory, name, flags | OFlag::O_CLOEXEC, Mode::empty());
        let kill = file("cgroup.kill", OFlag::O_WRONLY)?.into();
        let events = file("cgroup.events", OFlag::O_RDONLY)?.into();
        Ok(Self { name, directory, kill, events, killed: Cell::new(false) })
    }

    /// What a process is born into the group with.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Kills every process of the group, also those just being forked.
    pub fn kill(&self) -> io::Result<()> {
        self.killed.set(true);
        (&self.kill).write_all(b"1")
    }

    /// Whether a command may be born into it.
    fn is_fresh(&self) -> bool {
        !self.killed.get() && self.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        let mut buffer = [0; 256];
        let length = self.events.read_at(&mut buffer, 0).unwrap_or(0);
        buffer[..length].starts_with(b"populated 0\n")
    }

    /// Kills until the group is empty; false when it is still not after `KILL_MS_MAX` (a process in an
    /// uninterruptible wait).
    pub async fn empty(&self) -> bool {
        for _ in 0..KILL_MS_MAX {
            if self.is_empty() {
                return true;
            }
            if self.kill().is_err() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.is_empty()
    }
}
