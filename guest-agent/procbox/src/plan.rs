//! Decides, from what is asked for and what the host has, which layers a sandbox gets. A gap counts only where no
//! layer covers it: a mount namespace covers what Landlock lacks for files, an empty network what it lacks for TCP.

use crate::config::{Isolation, LaunchConfig};
use crate::probe::Facts;
use crate::report::Enforcement;
use ports::Network;
use serde::Serialize;

/// The layers of one sandbox.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Plan {
    /// Mount, pid, ipc and uts namespaces.
    pub namespaces: bool,
    /// A user namespace around them, because the launcher is not root.
    pub user_namespace: bool,
    pub cgroup_namespace: bool,
    /// A network namespace of its own, empty unless it is one that was made for it.
    pub own_network: bool,
    /// The one that was made for it.
    pub joins_network: bool,
    /// A `/proc` of its own.
    pub proc: bool,
    /// Landlock ABI in use; 0 = none.
    pub landlock_abi: u32,
    /// What is asked for and not enforced by any layer, each with a remedy.
    pub gaps: Vec<String>,
    /// Gaps that even best effort does not accept.
    pub refusals: Vec<String>,
    /// Worth knowing, and no gap.
    pub notes: Vec<String>,
}

impl Plan {
    /// Plans `config` on a host with `facts`.
    pub fn new(config: &LaunchConfig, facts: &Facts) -> Self {
        let wants_namespaces = config.isolation != Isolation::Off;
        let has_namespaces = wants_namespaces
            && [facts.mountns, facts.pidns, facts.ipcns, facts.utsns, facts.mount_api].iter().all(|has| *has)
            && (facts.root || facts.userns);
        let mut plan = Self {
            namespaces: has_namespaces,
            user_namespace: has_namespaces && !facts.root,
            cgroup_namespace: has_namespaces && facts.cgroupns && config.cgroup.is_some(),
            own_network: has_namespaces && facts.netns && (config.net_ports.is_empty() || config.network.is_some()),
            joins_network: config.network.is_some(),
            proc: has_namespaces && facts.proc_mount,
            landlock_abi: facts.landlock_abi.min(config.max_abi.unwrap_or(u32::MAX)),
            ..Self::default()
        };
        plan.judge_essentials(config, facts);
        plan.judge_isolation(config, facts);
        plan.judge_layers(config);
        plan.judge_limits(config);
        plan.judge_paths(config);
        plan
    }

    /// The message that refuses this plan, or none when it may run.
    pub fn refusal(&self, best_effort: bool) -> Option<String> {
        let accepted = if best_effort { &[][..] } else { &self.gaps[..] };
        let all: Vec<&str> = self.refusals.iter().chain(accepted).map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// What will hold for commands under this plan.
    pub fn enforcement(&self, config: &LaunchConfig) -> Enforcement {
        let shared_network = !self.own_network;
        Enforcement {
            landlock_abi: self.landlock_abi,
            filesystem: self.namespaces || self.landlock_abi >= 3,
            tcp_connect: self.own_network || self.landlock_abi >= 4,
            tcp_bind: self.own_network || self.landlock_abi >= 4,
            scope_abstract_unix: self.own_network || self.landlock_abi >= 6,
            scope_signal: self.namespaces || self.landlock_abi >= 6,
            seccomp: true,
            uid_dropped: config.drops_uid(),
            namespaces: self.namespaces,
            network_isolated: self.own_network,
            seccomp_sockets: shared_network,
            not_enforced: self.gaps.clone(),
        }
    }

    /// Whose sockets there are beside the sandbox's.
    pub fn network(&self) -> Network {
        if self.own_network { Network::Own } else { Network::Shared }
    }

    fn judge_essentials(&mut self, config: &LaunchConfig, facts: &Facts) {
        if !facts.seccomp {
            let why = reason(facts, "seccomp");
            self.refusals
                .push(format!("seccomp filters are not available ({why}): use a kernel with CONFIG_SECCOMP_FILTER"));
        }
        if !facts.openat2 {
            let why = reason(facts, "openat2");
            self.refusals.push(format!("openat2 is not available ({why}): Linux 5.6 or newer is needed"));
        }
        if facts.root && !config.net_ports.is_empty() && config.network.is_none() {
            self.refusals.push("net_ports: a sandbox of root has its own network, which needs the dataplane".into());
        }
        if config.network.is_some() && !self.own_network {
            self.refusals.push("network: needs isolation by namespaces, its own network among them".into());
        }
        if !self.namespaces && self.landlock_abi < 6 {
            self.refusals.push(
                "neither a pid namespace nor Landlock signal scope (ABI 6) is available: allow user namespaces, \
                 run the agent as root, or use Linux 6.12 or newer"
                    .into(),
            );
        }
    }

    fn judge_isolation(&mut self, config: &LaunchConfig, facts: &Facts) {
        let needed = [
            ("userns", facts.userns || facts.root),
            ("mountns", facts.mountns),
            ("pidns", facts.pidns),
            ("ipcns", facts.ipcns),
            ("utsns", facts.utsns),
            ("netns", facts.netns || !config.net_ports.is_empty()),
            ("mount_api", facts.mount_api),
            ("proc_mount", facts.proc_mount),
        ];
        for (name, has) in needed {
            if has {
                continue;
            }
            let missing = format!("{name} is not available ({}): {}", reason(facts, name), remedy(name));
            match config.isolation {
                Isolation::Strict => self.refusals.push(missing),
                Isolation::Auto => self.notes.push(missing),
                Isolation::Off => (),
            }
        }
    }

    fn judge_layers(&mut self, config: &LaunchConfig) {
        let abi = self.landlock_abi;
        if !self.namespaces && abi < 3 {
            self.gap("file access needs a mount namespace or Landlock ABI 3 (Linux 6.2)");
        }
        if !self.namespaces && abi < 5 {
            self.gap("device ioctls need a mount namespace or Landlock ABI 5 (Linux 6.10)");
        }
        if !self.own_network && abi < 4 {
            self.gap("TCP limits need an own network namespace or Landlock ABI 4 (Linux 6.7)");
        }
        if !self.own_network {
            self.notes.push("the network is the host's: Unix, datagram, raw and netlink sockets are refused".into());
        }
        if self.namespaces && !self.proc {
            self.notes.push("the sandbox has no /proc: this host refuses to mount one".into());
        }
        if !config.drops_uid() {
            self.notes.push("commands run as the agent's own user".into());
        }
    }

    fn judge_limits(&mut self, config: &LaunchConfig) {
        match &config.cgroup {
            Some(cgroup) if cgroup.work_v2.is_none() => {
                self.notes.push("without the version 2 hierarchy, each command has a minder process".into());
            }
            Some(_) => (),
            None => {
                if !config.limits.address_space {
                    self.gap("memory_mib needs a control group, or limits.address_space");
                }
                self.notes.push("no control group: limits are per process, and counted per user".into());
            }
        }
    }

    fn judge_paths(&mut self, config: &LaunchConfig) {
        for path in config.read_paths.iter().chain(&config.write_paths) {
            if !path.exists() {
                self.gap(&format!("{} does not exist: take it from the grants or create it", path.display()));
            }
        }
        if !config.workspace.is_dir() {
            self.refusals.push(format!("workspace {} is not a directory", config.workspace.display()));
        }
    }

    fn gap(&mut self, text: &str) {
        self.gaps.push(text.to_owned());
    }
}

fn reason<'a>(facts: &'a Facts, name: &str) -> &'a str {
    facts.reasons.get(name).map_or("no reason known", String::as_str)
}

fn remedy(name: &str) -> &'static str {
    match name {
        "userns" => {
            "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0) or run the agent as root"
        }
        "proc_mount" => "run outside a container that masks /proc, or use isolation \"auto\"",
        "mount_api" => "use Linux 5.12 or newer",
        _ => "run the agent as root or with the right to make namespaces",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Network, ResourceLimits};
    use crate::confine::namespace_flags;
    use std::path::PathBuf;

    fn full() -> Facts {
        Facts {
            root: true,
            landlock_abi: 7,
            landlock_scopes: true,
            seccomp: true,
            userns: true,
            mountns: true,
            pidns: true,
            ipcns: true,
            utsns: true,
            netns: true,
            cgroupns: true,
            proc_mount: true,
            mount_api: true,
            openat2: true,
            ..Facts::default()
        }
    }

    fn config(isolation: Isolation) -> LaunchConfig {
        LaunchConfig {
            id: "a".into(),
            socket: "/run/a/agent.sock".into(),
            peer_uid: 0,
            workspace: std::env::temp_dir(),
            mount_at: "/workspace".into(),
            isolation,
            best_effort: false,
            max_abi: None,
            sandbox_uid: Some(200000),
            supervisor_uid: Some(204096),
            read_paths: vec!["/usr".into()],
            write_paths: vec![],
            net_ports: vec![],
            network: None,
            limits: ResourceLimits {
                memory_mib: 64,
                address_space: true,
                max_processes: 10,
                cpu_seconds: None,
                file_size_max_bytes: None,
                open_files: 64,
            },
            cgroup: None,
            exit_record: PathBuf::from("/run/a/exit.json"),
        }
    }

    #[test]
    fn a_full_host_has_no_gap() {
        let plan = Plan::new(&config(Isolation::Strict), &full());
        assert_eq!(plan.refusal(false), None);
        assert!(plan.namespaces && plan.own_network && plan.proc && !plan.user_namespace);
    }

    #[test]
    fn namespaces_cover_an_old_landlock() {
        for abi in [0, 1, 2, 5] {
            let facts = Facts { landlock_abi: abi, ..full() };
            assert_eq!(Plan::new(&config(Isolation::Strict), &facts).refusal(false), None, "ABI {abi}");
        }
        let capped = LaunchConfig { max_abi: Some(2), ..config(Isolation::Auto) };
        assert_eq!(Plan::new(&capped, &full()).landlock_abi, 2);
    }

    #[test]
    fn landlock_alone_is_enough_from_abi_6() {
        let facts = Facts { pidns: false, ..full() };
        assert_eq!(Plan::new(&config(Isolation::Auto), &facts).refusal(false), None);
        assert!(Plan::new(&config(Isolation::Strict), &facts).refusal(true).unwrap().contains("pidns"));
        let older = Facts { landlock_abi: 5, ..facts };
        assert!(Plan::new(&config(Isolation::Auto), &older).refusal(true).unwrap().contains("signal scope"));
    }

    #[test]
    fn all_gaps_are_in_one_message_and_best_effort_takes_them() {
        let mut asked = config(Isolation::Auto);
        asked.limits.address_space = false;
        asked.read_paths.push("/no/such/path".into());
        let plan = Plan::new(&asked, &full());
        let message = plan.refusal(false).unwrap();
        assert!(message.contains("memory_mib") && message.contains("/no/such/path"));
        assert_eq!(plan.refusal(true), None);
        assert_eq!(plan.enforcement(&asked).not_enforced.len(), 2);
    }

    #[test]
    fn ports_of_root_wait_for_the_dataplane() {
        let asked = LaunchConfig { net_ports: vec![80], ..config(Isolation::Auto) };
        assert!(Plan::new(&asked, &full()).refusal(true).unwrap().contains("dataplane"));
        let as_user = Facts { root: false, ..full() };
        assert_eq!(Plan::new(&asked, &as_user).refusal(false), None);
    }

    #[test]
    fn a_network_that_was_made_is_joined_or_there_is_no_sandbox() {
        let made = Network { namespace: "/run/netns/eph-a".into(), resolver: "169.254.1.1".parse().unwrap() };
        let with_ports =
            |isolation| LaunchConfig { net_ports: vec![80], network: Some(made.clone()), ..config(isolation) };
        let joined = with_ports(Isolation::Auto);
        let plan = Plan::new(&joined, &full());
        assert!(plan.refusal(false).is_none() && plan.own_network && plan.joins_network);
        assert_eq!(namespace_flags(&plan) & libc::CLONE_NEWNET, 0);
        assert_ne!(namespace_flags(&Plan::new(&config(Isolation::Auto), &full())) & libc::CLONE_NEWNET, 0);
        let off = with_ports(Isolation::Off);
        assert!(Plan::new(&off, &full()).refusal(true).unwrap().contains("isolation"));
    }

    #[test]
    fn nothing_excuses_a_missing_seccomp() {
        let facts = Facts { seccomp: false, ..full() };
        assert!(Plan::new(&config(Isolation::Auto), &facts).refusal(true).unwrap().contains("seccomp"));
    }

    #[test]
    fn without_proc_auto_runs_and_strict_says_why() {
        let facts = Facts {
            proc_mount: false,
            reasons: [("proc_mount", "Operation not permitted".to_string())].into(),
            ..full()
        };
        let plan = Plan::new(&config(Isolation::Auto), &facts);
        assert!(plan.refusal(false).is_none() && !plan.proc && plan.namespaces);
        let refusal = Plan::new(&config(Isolation::Strict), &facts).refusal(true).unwrap();
        assert!(refusal.contains("Operation not permitted"));
    }
}
