//! Giving up user, groups, capabilities and the way back to any of them.

use super::during;
use crate::sys::process;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

/// Becomes `uid` (and the group of the same number) with the supplementary `groups`, or stays who it is when
/// `uid` is none; then drops every capability and sets no_new_privs.
pub fn give_up(uid: Option<u32>, groups: &[u32]) -> Result<(), String> {
    process::drop_capability_bounds().or_else(unless_denied).map_err(during("bounding capabilities"))?;
    if let Some(uid) = uid {
        let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        setgroups(&groups).map_err(during("setting supplementary groups"))?;
        setresgid(group, group, group).map_err(during("changing the group"))?;
        setresuid(user, user, user).map_err(during("changing the user"))?;
    }
    process::drop_capabilities().map_err(during("dropping capabilities"))?;
    process::forbid_new_privileges().map_err(during("setting no_new_privs"))
}

/// An ordinary user outside a user namespace has no capability and may not bound them; no_new_privs suffices.
fn unless_denied(error: std::io::Error) -> std::io::Result<()> {
    let ordinary = error.raw_os_error() == Some(libc::EPERM) && !nix::unistd::geteuid().is_root();
    if ordinary { Ok(()) } else { Err(error) }
}
