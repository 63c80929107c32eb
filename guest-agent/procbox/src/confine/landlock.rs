//! The Landlock rules of a sandbox. Two domains: the outer one holds init, its workers and everything else; the
//! inner one holds commands only, so that they cannot signal the sandbox's own helpers.

use super::during;
use super::names::RESOLVER_FILE;
use super::root::{OWN_DEVICES, TERMINAL_DEVICE};
use crate::config::LaunchConfig;
use crate::plan::Plan;
use crate::sys::landlock::*;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Rights that apply to something other than a directory.
const FILE_RIGHTS: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
const READ: u64 = EXECUTE | READ_FILE | READ_DIR;

/// File rights that Landlock of version `abi` knows.
fn known_rights(abi: u32) -> u64 {
    let mut rights = ABI_1;
    for (since, right) in [(2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)] {
        if abi >= since {
            rights |= right;
        }
    }
    rights
}

/// Enters the outer domain. Nothing happens on a host without Landlock, where the plan has other layers.
pub fn restrict(config: &LaunchConfig, plan: &Plan) -> Result<(), String> {
    let abi = plan.landlock_abi;
    if abi == 0 {
        return Ok(());
    }
    let attr = RulesetAttr {
        handled_access_fs: known_rights(abi),
        // In a network of its own the sandbox reaches nothing but itself.
        handled_access_net: if abi >= 4 && !plan.own_network { TCP_BIND | TCP_CONNECT } else { 0 },
        scoped: if abi >= 6 { SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL } else { 0 },
    };
    let ruleset = create_ruleset(&attr).map_err(during("making the Landlock ruleset"))?;
    for (path, rights) in grants(config, plan) {
        allow(ruleset.as_fd(), path, rights & attr.handled_access_fs)
            .map_err(during(format!("granting {}", path.display())))?;
    }
    if attr.handled_access_net != 0 {
        for port in &config.net_ports {
            allow_port(ruleset.as_fd(), *port, TCP_CONNECT).map_err(during(format!("granting port {port}")))?;
        }
    }
    restrict_self(ruleset.as_fd()).map_err(during("entering the Landlock domain"))
}

/// Enters a domain of its own for a helper of the host: nothing but `read` and `write`, no signal and no abstract
/// socket of others. Nothing happens on a host without Landlock, where its user confines it.
pub fn restrict_to(read: &[PathBuf], write: &[PathBuf]) -> Result<(), String> {
    let Ok(abi) = abi() else { return Ok(()) };
    let attr = RulesetAttr {
        handled_access_fs: known_rights(abi),
        scoped: if abi >= 6 { SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL } else { 0 },
        ..RulesetAttr::default()
    };
    let ruleset = create_ruleset(&attr).map_err(during("making the Landlock ruleset"))?;
    let granted = read.iter().map(|path| (path, READ)).chain(write.iter().map(|path| (path, !EXECUTE)));
    for (path, rights) in granted {
        allow(ruleset.as_fd(), path, rights & attr.handled_access_fs)
            .map_err(during(format!("granting {}", path.display())))?;
    }
    restrict_self(ruleset.as_fd()).map_err(during("entering the Landlock domain"))
}

/// The inner domain, which adds nothing but the signal scope; none where the kernel has no such scope.
pub fn command_domain(abi: u32) -> io::Result<Option<OwnedFd>> {
    if abi < 6 {
        return Ok(None);
    }
    create_ruleset(&RulesetAttr { scoped: SCOPE_SIGNAL, ..RulesetAttr::default() }).map(Some)
}

fn grants<'a>(config: &'a LaunchConfig, plan: &Plan) -> Vec<(&'a Path, u64)> {
    let all = u64::MAX;
    let mut grants: Vec<(&Path, u64)> = Vec::new();
    grants.extend(config.read_paths.iter().map(|path| (path.as_path(), READ)));
    grants.extend(config.write_paths.iter().map(|path| (path.as_path(), all)));
    if plan.namespaces {
        // Everything in the sandbox's own root is granted anyway; this lets `ls /` work.
        grants.push((Path::new("/"), READ_DIR));
        grants.push((Path::new("/dev/pts"), READ_FILE | WRITE_FILE | IOCTL_DEV));
        grants.push((Path::new(TERMINAL_DEVICE), READ_FILE | WRITE_FILE | IOCTL_DEV));
        grants.extend(OWN_DEVICES.map(|device| (Path::new(device), READ_FILE | WRITE_FILE)));
        grants.push((config.mount_at.as_path(), all));
        grants.extend(config.network.iter().map(|_| (Path::new(RESOLVER_FILE), READ)));
    } else {
        grants.push((config.workspace.as_path(), all));
    }
    if plan.proc {
        grants.push((Path::new("/proc"), READ_FILE | READ_DIR));
    }
    grants
}

fn allow(ruleset: BorrowedFd<'_>, path: &Path, rights: u64) -> io::Result<()> {
    let object = match open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
        // The plan has noted or refused what does not exist.
        Err(nix::errno::Errno::ENOENT) => return Ok(()),
        other => other?,
    };
    let is_directory = nix::sys::stat::fstat(&object)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let rights = if is_directory { rights } else { rights & FILE_RIGHTS };
    allow_path(ruleset, object.as_fd(), rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_follow_the_abi() {
        assert_eq!(known_rights(1), ABI_1);
        assert_eq!(known_rights(2), ABI_1 | REFER);
        assert_eq!(known_rights(4), ABI_1 | REFER | TRUNCATE);
        assert_eq!(known_rights(9), ABI_1 | REFER | TRUNCATE | IOCTL_DEV);
    }
}
