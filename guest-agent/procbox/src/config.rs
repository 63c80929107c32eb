//! The launch configuration: what the agent asks for, read once from standard input and checked before anything
//! is made.

use crate::limits::*;
use serde::Deserialize;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

/// One sandbox as the agent wants it. An unknown field is an error.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchConfig {
    /// Name in reports: 1 … 64 of `[A-Za-z0-9-]`.
    pub id: String,
    /// Where the supervisor listens. Its directory belongs to this sandbox alone; as root it is given to
    /// `supervisor_uid`.
    pub socket: PathBuf,
    /// The user whose connections are served.
    pub peer_uid: u32,
    /// The one writable directory, on the host.
    pub workspace: PathBuf,
    /// Where the workspace appears inside, when there is a mount namespace.
    pub mount_at: PathBuf,
    pub isolation: Isolation,
    /// Run although something cannot be enforced, and list it.
    pub best_effort: bool,
    /// Use no Landlock ABI above this.
    pub max_abi: Option<u32>,
    /// The commands' user and group; null when the launcher is not root.
    pub sandbox_uid: Option<u32>,
    /// The supervisor's user and group; null when the launcher is not root.
    pub supervisor_uid: Option<u32>,
    /// Readable and executable inside.
    pub read_paths: Vec<PathBuf>,
    /// Writable inside, beside the workspace.
    pub write_paths: Vec<PathBuf>,
    /// TCP ports that may be connected to; empty = an own, empty network. Who has a `network` has the ports that its
    /// dataplane allows.
    pub net_ports: Vec<u16>,
    /// The network that was made for the sandbox; only when the launcher is root.
    pub network: Option<Network>,
    pub limits: ResourceLimits,
    /// Control groups made and limited by the agent; null where there are none.
    pub cgroup: Option<CgroupPaths>,
    /// Written when the sandbox has ended. Its directory is writable for `supervisor_uid`.
    pub exit_record: PathBuf,
}

/// A network namespace with a way out, where a dataplane decides about each packet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The file that it is pinned to.
    pub namespace: PathBuf,
    /// Who resolves names.
    pub resolver: IpAddr,
}

/// How much of the namespace layer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Every namespace and a `/proc` of its own, or no sandbox.
    Strict,
    /// Namespaces where the host allows them.
    Auto,
    /// Landlock and seccomp only.
    Off,
}

/// Limits of each command. The control group carries the limits of all commands together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceLimits {
    pub memory_mib: u64,
    /// Limit the address space to `memory_mib` (where no control group limits memory).
    pub address_space: bool,
    pub max_processes: u64,
    pub cpu_seconds: Option<u64>,
    pub file_size_max_bytes: Option<u64>,
    pub open_files: u64,
}

/// Control groups of the sandbox: leaf `init` for its own helpers, `work` for commands, in each hierarchy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupPaths {
    /// `cgroup.procs` of the `init` leaf in every hierarchy.
    pub init_procs: Vec<PathBuf>,
    /// The `work` group of the version 2 hierarchy.
    pub work_v2: Option<PathBuf>,
    /// The `work` groups of the version 1 hierarchies.
    pub work_v1: Vec<PathBuf>,
}

impl LaunchConfig {
    /// Reads and checks a configuration from `input` until its end. Errors are messages for the operator.
    pub fn read(input: impl Read) -> Result<Self, String> {
        let mut bytes = Vec::new();
        input.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot read: {error}"))?;
        if bytes.len() as u64 > CONFIG_BYTES_MAX {
            return Err(format!("longer than {CONFIG_BYTES_MAX} bytes"));
        }
        let config: Self = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }

    /// Whether commands get a user of their own.
    pub fn drops_uid(&self) -> bool {
        self.sandbox_uid.is_some()
    }

    fn check(&self) -> Result<(), String> {
        let id_ok = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if self.id.is_empty() || self.id.len() > 64 || !self.id.bytes().all(id_ok) {
            return Err("id: 1 to 64 letters, digits and hyphens are needed".into());
        }
        for (name, path) in [
            ("socket", &self.socket),
            ("workspace", &self.workspace),
            ("mount_at", &self.mount_at),
            ("exit_record", &self.exit_record),
        ] {
            check_path(name, path)?;
        }
        self.check_grants()?;
        self.check_uids()?;
        self.check_cgroup()?;
        self.limits.check()
    }

    fn check_grants(&self) -> Result<(), String> {
        if ["/proc", "/dev"].iter().any(|own| self.mount_at.starts_with(own)) {
            return Err("mount_at: /proc and /dev are the sandbox's own".into());
        }
        for (name, paths) in [("read_paths", &self.read_paths), ("write_paths", &self.write_paths)] {
            if paths.len() > PATHS_MAX {
                return Err(format!("{name}: more than {PATHS_MAX}"));
            }
            for path in paths {
                check_path(name, path)?;
                if path.starts_with(&self.mount_at) || self.mount_at.starts_with(path) {
                    return Err(format!("{name}: {} overlaps mount_at", path.display()));
                }
                if ["/proc", "/dev/pts"].iter().any(|own| path.starts_with(own)) || path == Path::new("/dev") {
                    return Err(format!("{name}: {} is the sandbox's own", path.display()));
                }
            }
        }
        if self.net_ports.len() > NET_PORTS_MAX || self.net_ports.contains(&0) {
            return Err(format!("net_ports: at most {NET_PORTS_MAX}, none of them 0"));
        }
        if let Some(network) = &self.network {
            check_path("network.namespace", &network.namespace)?;
            if !self.drops_uid() {
                return Err("network: needs a launcher that is root".into());
            }
        }
        Ok(())
    }

    fn check_uids(&self) -> Result<(), String> {
        let is_root = nix::unistd::geteuid().is_root();
        match (self.sandbox_uid, self.supervisor_uid) {
            (Some(sandbox), Some(supervisor)) => {
                if !is_root {
                    return Err("sandbox_uid and supervisor_uid need a launcher that is root".into());
                }
                if sandbox == 0 || supervisor == 0 || sandbox == supervisor || [sandbox, supervisor].contains(&u32::MAX)
                {
                    return Err("sandbox_uid and supervisor_uid: two different users other than root are needed".into());
                }
                Ok(())
            }
            (None, None) if !is_root => Ok(()),
            (None, None) => Err("sandbox_uid and supervisor_uid are needed when the launcher is root".into()),
            _ => Err("sandbox_uid and supervisor_uid: both or neither".into()),
        }
    }

    fn check_cgroup(&self) -> Result<(), String> {
        let Some(cgroup) = &self.cgroup else { return Ok(()) };
        let paths = cgroup.init_procs.iter().chain(&cgroup.work_v2).chain(&cgroup.work_v1);
        let mut count = 0;
        for path in paths {
            check_path("cgroup", path)?;
            count += 1;
        }
        if count > PATHS_MAX {
            return Err(format!("cgroup: more than {PATHS_MAX} paths"));
        }
        Ok(())
    }
}

impl ResourceLimits {
    fn check(&self) -> Result<(), String> {
        for (name, value) in [
            ("memory_mib", Some(self.memory_mib)),
            ("max_processes", Some(self.max_processes)),
            ("cpu_seconds", self.cpu_seconds),
            ("file_size_max_bytes", self.file_size_max_bytes),
        ] {
            if value == Some(0) {
                return Err(format!("limits.{name}: at least 1 is needed"));
            }
        }
        if self.open_files < 16 {
            return Err("limits.open_files: at least 16 is needed".into());
        }
        Ok(())
    }
}

fn check_path(name: &str, path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain || bytes.contains(&0) || bytes.len() > PATH_BYTES_MAX || bytes == b"/" {
        return Err(format!("{name}: an absolute path below / without .. is needed, not {:?}", path));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> serde_json::Value {
        let uids = nix::unistd::geteuid().is_root();
        serde_json::json!({
            "id": "a-1", "socket": "/run/x/agent.sock", "peer_uid": 0, "workspace": "/srv/w", "mount_at": "/workspace",
            "isolation": "auto", "best_effort": false, "max_abi": null,
            "sandbox_uid": uids.then_some(200000), "supervisor_uid": uids.then_some(204096),
            "read_paths": ["/usr"], "write_paths": ["/dev/null"], "net_ports": [],
            "limits": {"memory_mib": 64, "address_space": false, "max_processes": 10, "cpu_seconds": null,
                       "file_size_max_bytes": null, "open_files": 64},
            "cgroup": null, "exit_record": "/run/x/exit.json"
        })
    }

    fn read_with(change: impl FnOnce(&mut serde_json::Value)) -> Result<LaunchConfig, String> {
        let mut value = sample();
        change(&mut value);
        LaunchConfig::read(value.to_string().as_bytes())
    }

    #[test]
    fn a_plain_configuration_is_taken() {
        assert!(read_with(|_| ()).is_ok());
    }

    #[test]
    fn unknown_fields_are_refused() {
        assert!(read_with(|value| value["extra"] = 1.into()).unwrap_err().contains("extra"));
        assert!(read_with(|value| value["limits"]["extra"] = 1.into()).is_err());
    }

    #[test]
    fn paths_that_escape_or_overlap_are_refused() {
        for path in ["usr", "/usr/../etc", "/", "/usr/./x\u{0}", "/workspace/in", "/proc/1", "/dev"] {
            assert!(read_with(|value| value["read_paths"] = serde_json::json!([path])).is_err(), "{path}");
        }
    }

    #[test]
    fn the_workspace_covers_nothing_of_the_sandbox() {
        assert!(read_with(|value| value["mount_at"] = "/dev/pts/x".into()).is_err());
        assert!(read_with(|value| value["mount_at"] = "/proc".into()).is_err());
    }

    #[test]
    fn ids_limits_and_ports_have_bounds() {
        assert!(read_with(|value| value["id"] = "a/b".into()).is_err());
        assert!(read_with(|value| value["id"] = "".into()).is_err());
        assert!(read_with(|value| value["net_ports"] = serde_json::json!([0])).is_err());
        assert!(read_with(|value| value["limits"]["memory_mib"] = 0.into()).is_err());
        assert!(read_with(|value| value["limits"]["open_files"] = 3.into()).is_err());
    }

    #[test]
    fn a_network_is_a_namespace_and_a_resolver_of_a_launcher_that_is_root() {
        let with = |namespace: &str, resolver: &str| {
            read_with(|value| value["network"] = serde_json::json!({"namespace": namespace, "resolver": resolver}))
        };
        assert_eq!(with("/run/netns/eph-a", "169.254.1.1").is_ok(), nix::unistd::geteuid().is_root());
        assert!(with("eph-a", "169.254.1.1").is_err());
        assert!(with("/run/netns/eph-a", "localhost").is_err());
    }

    #[test]
    fn one_uid_alone_is_refused() {
        assert!(
            read_with(|value| value["sandbox_uid"] = serde_json::Value::Null).is_err()
                || !nix::unistd::geteuid().is_root()
        );
        assert!(read_with(|value| value["supervisor_uid"] = 5.into()).is_ok() == nix::unistd::geteuid().is_root());
    }

    #[test]
    fn an_endless_configuration_is_refused() {
        assert!(LaunchConfig::read(std::io::repeat(b' ')).unwrap_err().contains("longer"));
    }
}
