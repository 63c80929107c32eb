//! What this host can enforce, found by trying: each namespace in a child that is thrown away, the rest by asking
//! the kernel. Every missing fact comes with its reason.

use crate::sys::process::{Forked, exit_now, fork};
use crate::sys::{landlock, mount, seccomp};
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, openat2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::waitpid;
use nix::unistd::{getegid, geteuid, pipe};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

/// Facts of this host, for the user who asks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Facts {
    pub kernel: String,
    pub root: bool,
    /// 0 = no Landlock.
    pub landlock_abi: u32,
    /// Signal and abstract-socket scopes (ABI 6).
    pub landlock_scopes: bool,
    pub seccomp: bool,
    pub userns: bool,
    pub mountns: bool,
    pub pidns: bool,
    pub ipcns: bool,
    pub utsns: bool,
    pub netns: bool,
    pub cgroupns: bool,
    /// A `/proc` of the sandbox's own can be mounted.
    pub proc_mount: bool,
    /// Mount trees by descriptor, with attributes for the whole tree (Linux 5.12).
    pub mount_api: bool,
    pub openat2: bool,
    pub cgroup_v1: Vec<String>,
    pub cgroup_v2: Option<CgroupV2>,
    /// Why each missing fact is missing.
    pub reasons: BTreeMap<&'static str, String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CgroupV2 {
    pub mount: String,
    pub controllers: Vec<String>,
}

impl Facts {
    /// Looks at this host with the rights of this process, which must have one thread.
    pub fn of_this_host() -> io::Result<Self> {
        let mut facts = Self {
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            root: geteuid().is_root(),
            ..Self::default()
        };
        facts.ask_kernel();
        facts.try_namespaces()?;
        facts.find_cgroups();
        Ok(facts)
    }

    fn ask_kernel(&mut self) {
        match landlock::abi() {
            Ok(abi) => self.landlock_abi = abi,
            Err(error) => self.missing("landlock_abi", format!("Landlock is not available: {error}")),
        }
        self.landlock_scopes = self.landlock_abi >= 6;
        if !self.landlock_scopes {
            let reason = format!("Landlock ABI 6 is needed (Linux 6.12), this kernel has {}", self.landlock_abi);
            self.missing("landlock_scopes", reason);
        }
        let tried = seccomp::available();
        self.seccomp = self.note("seccomp", tried);
        let tried = openat2(AT_FDCWD, "/", OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC));
        self.openat2 = self.note("openat2", tried.map(drop).map_err(io::Error::from));
    }

    fn try_namespaces(&mut self) -> io::Result<()> {
        let outcomes = outcomes_in_child(!self.root)?;
        for (attempt, outcome) in ATTEMPTS.iter().zip(outcomes) {
            let result = match outcome {
                0 => Ok(()),
                NOT_REACHED => Err(io::Error::other("an earlier step failed")),
                errno => Err(io::Error::from_raw_os_error(errno)),
            };
            let ok = self.note(attempt.name, result);
            *(attempt.field)(self) = ok;
        }
        Ok(())
    }

    fn find_cgroups(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(path), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            if kind == "cgroup2" && self.cgroup_v2.is_none() {
                let controllers = fs::read_to_string(format!("{path}/cgroup.controllers")).unwrap_or_default();
                let controllers = controllers.split_ascii_whitespace().map(str::to_owned).collect();
                self.cgroup_v2 = Some(CgroupV2 { mount: path.to_owned(), controllers });
            } else if kind == "cgroup" {
                const CONTROLLERS: [&str; 9] =
                    ["blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "pids"];
                let bound = options.split(',').filter(|option| CONTROLLERS.contains(option)).map(str::to_owned);
                self.cgroup_v1.extend(bound);
            }
        }
        if self.cgroup_v2.is_none() {
            self.missing("cgroup_v2", "no cgroup2 file system is mounted".into());
        }
        if self.cgroup_v1.is_empty() {
            self.missing("cgroup_v1", "no version 1 hierarchy is mounted".into());
        }
    }

    fn note(&mut self, name: &'static str, result: io::Result<()>) -> bool {
        if let Err(error) = &result {
            self.missing(name, error.to_string());
        }
        result.is_ok()
    }

    fn missing(&mut self, name: &'static str, reason: String) {
        self.reasons.insert(name, reason);
    }
}

struct Attempt {
    name: &'static str,
    field: fn(&mut Facts) -> &mut bool,
    run: fn() -> io::Result<()>,
}

/// In this order, each on top of those before. For an ordinary user the user namespace comes before all of them;
/// for root it comes last, because inside one the kernel allows less.
const ATTEMPTS: [Attempt; 9] = [
    Attempt {
        name: "mountns",
        field: |facts| &mut facts.mountns,
        run: || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            mount::make_all_private()
        },
    },
    Attempt { name: "ipcns", field: |facts| &mut facts.ipcns, run: || Ok(unshare(CloneFlags::CLONE_NEWIPC)?) },
    Attempt { name: "utsns", field: |facts| &mut facts.utsns, run: || Ok(unshare(CloneFlags::CLONE_NEWUTS)?) },
    Attempt { name: "netns", field: |facts| &mut facts.netns, run: || Ok(unshare(CloneFlags::CLONE_NEWNET)?) },
    Attempt { name: "cgroupns", field: |facts| &mut facts.cgroupns, run: || Ok(unshare(CloneFlags::CLONE_NEWCGROUP)?) },
    Attempt {
        name: "mount_api",
        field: |facts| &mut facts.mount_api,
        run: || {
            let tree = mount::clone_tree(c"/")?;
            mount::set_attributes(tree.as_fd(), mount::READ_ONLY, true)?;
            mount::new_filesystem(c"tmpfs", &[], 0).map(drop)
        },
    },
    Attempt { name: "pidns", field: |facts| &mut facts.pidns, run: || Ok(unshare(CloneFlags::CLONE_NEWPID)?) },
    Attempt {
        name: "proc_mount",
        field: |facts| &mut facts.proc_mount,
        run: || mount::new_filesystem(c"proc", &[], mount::NO_SUID).map(drop),
    },
    Attempt { name: "userns", field: |facts| &mut facts.userns, run: || Ok(unshare(CloneFlags::CLONE_NEWUSER)?) },
];

const NOT_REACHED: i32 = -1;

/// The errno of each attempt, 0 for success.
fn outcomes_in_child(as_user: bool) -> io::Result<Vec<i32>> {
    let (reader, writer) = pipe()?;
    match fork()? {
        Forked::Child => {
            drop(reader);
            attempt_all(as_user, &mut File::from(writer));
            exit_now(0)
        }
        Forked::Parent(child) => {
            drop(writer);
            let mut bytes = Vec::new();
            File::from(reader).take(4096).read_to_end(&mut bytes)?;
            waitpid(child, None)?;
            let mut outcomes: Vec<i32> =
                bytes.chunks_exact(4).map(|word| i32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect();
            outcomes.resize(ATTEMPTS.len(), NOT_REACHED);
            Ok(outcomes)
        }
    }
}

fn attempt_all(as_user: bool, output: &mut File) {
    let enter = || -> io::Result<()> {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        unshare(CloneFlags::CLONE_NEWUSER)?;
        map_own_user(uid, gid)
    };
    let entered = if as_user { enter() } else { Ok(()) };
    for attempt in &ATTEMPTS {
        let result = match (attempt.name, &entered) {
            ("userns", Ok(())) if as_user => Ok(()),
            (_, Err(error)) => Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EPERM))),
            ("proc_mount", Ok(())) => in_grandchild(attempt.run),
            (_, Ok(())) => (attempt.run)(),
        };
        report(output, &result);
    }
}

/// Only a process that is inside the new pid namespace can mount its `/proc`.
fn in_grandchild(run: fn() -> io::Result<()>) -> io::Result<()> {
    match fork()? {
        Forked::Child => exit_now(run().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO))),
        Forked::Parent(child) => match waitpid(child, None)? {
            nix::sys::wait::WaitStatus::Exited(_, 0) => Ok(()),
            nix::sys::wait::WaitStatus::Exited(_, errno) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        },
    }
}

fn report(output: &mut File, result: &io::Result<()>) {
    let errno = result.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
    if output.write_all(&errno.to_ne_bytes()).is_err() {
        exit_now(1);
    }
}

/// Maps the user and group `uid` and `gid` to themselves in the user namespace that this process just made.
pub fn map_own_user(uid: u32, gid: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_fact_has_a_reason() {
        let facts = Facts::of_this_host().unwrap();
        for attempt in &ATTEMPTS {
            let present = *(attempt.field)(&mut facts.clone());
            assert_eq!(present, !facts.reasons.contains_key(attempt.name), "{}", attempt.name);
        }
        assert_eq!(facts.seccomp, !facts.reasons.contains_key("seccomp"));
    }
}
