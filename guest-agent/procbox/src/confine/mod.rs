//! How init gives up the host, once: namespaces, then the small root, then the user, then Landlock, in this order
//! because a process under Landlock cannot mount and one without capabilities cannot change its user.

mod accounts;
pub mod landlock;
mod names;
pub mod rights;
pub mod root;
pub mod seccomp;
pub mod terminals;

use crate::cgroup::Memberships;
use crate::config::{LaunchConfig, Network};
use crate::plan::Plan;
use crate::probe::map_own_user;
use crate::sys::{network, process};
use crate::workspace;
use nix::sched::{CloneFlags, unshare};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Names what was being done when an error came up.
pub fn during<E: std::fmt::Display>(what: impl std::fmt::Display) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {error}")
}

/// The namespaces that init is forked into; the control group namespace is entered later, see [`enter`].
pub fn namespace_flags(plan: &Plan) -> libc::c_int {
    let mut flags = 0;
    if plan.namespaces {
        flags |= libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    }
    if plan.user_namespace {
        flags |= libc::CLONE_NEWUSER;
    }
    if plan.own_network && !plan.joins_network {
        flags |= libc::CLONE_NEWNET;
    }
    flags
}

/// Where the workspace is for commands.
pub fn workspace_inside(config: &LaunchConfig, plan: &Plan) -> PathBuf {
    if plan.namespaces { config.mount_at.clone() } else { config.workspace.clone() }
}

/// The user that started the launcher, as the host knows it. In a new user namespace nobody knows it any more.
#[derive(Clone, Copy, Debug)]
pub struct Launcher {
    pub uid: u32,
    pub gid: u32,
}

/// Confines this process, freshly forked with [`namespace_flags`]; `terminals` is a devpts for it. Errors say what was
/// being done.
pub fn enter(
    config: &LaunchConfig,
    plan: &Plan,
    groups: &Memberships,
    launcher: Launcher,
    terminals: Option<OwnedFd>,
) -> Result<(), String> {
    if plan.user_namespace {
        map_own_user(launcher.uid, launcher.gid).map_err(during("mapping the user"))?;
    }
    enter_groups(plan, groups)?;
    if let Some(Network { namespace, .. }) = &config.network {
        network::enter(namespace).map_err(during("joining the network"))?;
    }
    if plan.own_network {
        allow_low_ports();
    }
    if plan.namespaces {
        nix::unistd::sethostname("sandbox").map_err(during("setting the host name"))?;
        root::enter(config, plan, config.sandbox_uid.unwrap_or(launcher.uid), terminals)?;
    }
    if plan.own_network {
        process::loopback_up().map_err(during("switching loopback on"))?;
    }
    workspace::enter(&workspace_inside(config, plan)).map_err(during("entering the workspace"))?;
    rights::give_up(config.sandbox_uid, &[])?;
    landlock::restrict(config, plan)?;
    process::hide_from_peers().map_err(during("hiding from the sandbox"))
}

/// Joins the `init` leaves. The namespace is made while in `work`, so that it holds every command's group; in a
/// hierarchy without an `init` leaf this process stays where the agent is.
fn enter_groups(plan: &Plan, groups: &Memberships) -> Result<(), String> {
    if plan.cgroup_namespace {
        groups.visit_work().map_err(during("joining the work control groups"))?;
        unshare(CloneFlags::CLONE_NEWCGROUP).map_err(during("making the control group namespace"))?;
    }
    groups.join_init().map_err(during("joining the init control groups"))
}

/// Lets every user of this network, which is the sandbox's own, listen on ports below 1024. A host that refuses (a
/// `/proc` that is read-only) keeps them for root, of whom there is none inside.
fn allow_low_ports() {
    let _ = std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
}
