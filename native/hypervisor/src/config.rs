//! The boot configuration: what a caller may say about a machine. Refusals name the field and what to do.

use fluxvm_engine::error::Error as EngineError;
use fluxvm_engine::virtio::net::PAIRS_MAX;
use serde::Deserialize;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// A configuration is a few paths and numbers; more is no configuration.
pub const CONFIG_BYTES_MAX: u64 = 64 << 10;

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The bytes are no configuration.
    #[error("the boot configuration cannot be read")]
    Form(#[source] serde_json::Error),
    /// There are too many of them.
    #[error("the boot configuration is larger than 64 KiB")]
    TooLarge,
    /// A file that the configuration names cannot be used.
    #[error("{field}: {path} cannot be opened")]
    Open {
        /// The field that names it.
        field: &'static str,
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A value that makes no sense or is not supported.
    #[error("{0}: {1}")]
    Field(&'static str, &'static str),
    /// A path that the machine in its jail does not see.
    #[error("{field}: {path} lies neither in jail.directory nor in jail.sockets, so the machine cannot see it")]
    Outside {
        /// The field or parameter.
        field: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// Memory for the guest cannot be had.
    #[error("memory for the guest cannot be made")]
    Memory(#[source] io::Error),
    /// A device cannot be made.
    #[error("{0}: the device cannot be made")]
    Device(&'static str, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What a machine is made of.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootConfig {
    /// An ELF kernel with a PVH entry, or a bzImage.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// The whole command line of the kernel.
    pub kernel_args: Option<String>,

    /// RAM in MiB.
    pub memory_mib: u64,
    /// A file of exactly that size as RAM; the caller may unlink it once the machine runs. Otherwise memory of the process.
    pub ram: Option<PathBuf>,
    /// vCPUs that the guest begins with.
    pub vcpus: u32,
    /// vCPUs that it may have by hotplug; otherwise as many as it begins with.
    pub max_vcpus: Option<u32>,

    /// The disk that the guest boots from.
    pub rootfs: Option<PathBuf>,
    /// How to read it.
    #[serde(default)]
    pub rootfs_format: DiskFormat,
    /// Size of the disk where it is larger than the image.
    pub rootfs_bytes: Option<u64>,
    /// A file that takes all writes to the disk, which is then only read; made when it is absent.
    pub rootfs_layer: Option<PathBuf>,
    /// A second disk, raw, that is only read.
    pub config_disk: Option<PathBuf>,
    /// Further disks, raw.
    #[serde(default)]
    pub data_disks: Vec<DataDisk>,
    /// Images that the guest finds in its address space and only reads; machines with the same image share its pages.
    #[serde(default)]
    pub pmem: Vec<PathBuf>,
    /// Bandwidth of the boot disk, in Mbit a second; 0 is no limit, as for the others.
    pub blk_mbit_limit: Option<u32>,
    /// Operations of the boot disk a second.
    pub blk_ops_limit: Option<u32>,

    /// The tap device of the network card.
    pub tap: Option<String>,
    /// In place of a name: open queues of the tap device, by their descriptors in this process.
    #[serde(default)]
    pub tap_descriptors: Vec<RawFd>,
    /// Queue pairs of the network card; more than one needs a tap device that was made with several queues.
    pub tap_queues: Option<usize>,
    /// The address of the network card.
    pub mac: Option<String>,
    /// Bandwidth of the network each way, in Mbit a second.
    pub net_mbit_limit: Option<u32>,
    /// Packets each way a second.
    pub net_pps_limit: Option<u32>,

    /// The context id of the guest, 3 where nothing else is said.
    pub vsock_cid: Option<u32>,
    /// The unix socket by which programs of the host reach the guest, and with `_PORT` the other way.
    pub vsock_uds: Option<PathBuf>,
    /// Where the first serial port prints; otherwise to the standard output.
    pub console: Option<PathBuf>,
    /// A unix socket by which one program at a time reads what that port prints, and types.
    pub serial_uds: Option<PathBuf>,
    /// A unix socket by which one program at a time reads what the guest prints to its virtio console (`hvc0`), which it has
    /// only then, and types.
    pub hvc_uds: Option<PathBuf>,

    /// A snapshot from which the machine begins, instead of by booting.
    pub restore: Option<PathBuf>,
    /// The jail of the process; otherwise it keeps the rights that it was started with.
    pub jail: Option<JailConfig>,

    /// Which engine to use; here only to be checked.
    #[serde(default)]
    engine: Engine,
    seccomp: Option<bool>,
    seed: Option<serde::de::IgnoredAny>,
    shared_folders: Option<Vec<serde::de::IgnoredAny>>,
    cpu_template: Option<serde::de::IgnoredAny>,
}

/// How an image is to be read.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// The bytes of the disk.
    #[default]
    Raw,
    /// A qcow2 image that needs no other.
    Qcow2,
}

/// A disk beside the one that the guest boots from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataDisk {
    /// Its file, raw.
    pub path: PathBuf,
    /// Whether the guest only reads it.
    #[serde(default)]
    pub read_only: bool,
}

/// The jail of the process.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JailConfig {
    /// Its user, which nobody else has.
    pub uid: u32,
    /// Its group, which nobody else has.
    pub gid: u32,
    /// The directory of the disk layer and of snapshots; the user's.
    pub directory: PathBuf,
    /// The directory of sockets; the user's.
    pub sockets: PathBuf,
    /// Where what the process prints goes; otherwise to its standard output and error.
    pub log: Option<PathBuf>,
    /// The cgroup to join, a directory of cgroup version 2.
    pub cgroup: Option<PathBuf>,
    /// What it may use up.
    #[serde(default)]
    pub limits: JailLimits,
}

/// Resource limits; what is left out follows from the machine.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JailLimits {
    /// Open descriptors.
    pub descriptors: Option<u64>,
    /// Threads, those of the kernel's rings included.
    pub threads: Option<u64>,
    /// Length of a file that it writes, in bytes.
    pub file_bytes: Option<u64>,
    /// Length of `console` and of `log`, in bytes. One that is full is moved to its path with `.1`, and begins again.
    pub log_bytes: Option<u64>,
}

/// Engines by name.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Engine {
    /// The one of this crate.
    #[default]
    Kvm,
    /// Another program.
    Firecracker,
}

impl BootConfig {
    /// Reads a configuration, which anyone may have written, and checks all that can be checked without opening anything.
    ///
    /// # Errors
    /// [`ConfigError::TooLarge`], [`ConfigError::Form`] or [`ConfigError::Field`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        if bytes.len() as u64 > CONFIG_BYTES_MAX {
            return Err(ConfigError::TooLarge);
        }
        let config: Self = serde_json::from_slice(bytes).map_err(ConfigError::Form)?;
        config.check()?;
        Ok(config)
    }

    /// vCPUs that the machine is made with.
    #[must_use]
    pub fn vcpus_made(&self) -> u32 {
        self.max_vcpus.unwrap_or(self.vcpus)
    }

    /// Queue pairs that the network card is made with.
    #[must_use]
    pub fn tap_queues_made(&self) -> usize {
        if self.tap.is_some() { self.tap_queues.unwrap_or(1) } else { self.tap_descriptors.len() }
    }

    /// What [`BootConfig::parse`] checks beside the form.
    ///
    /// # Errors
    /// [`ConfigError::Field`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let has_jail = self.jail.is_some();
        let rules: [(bool, &'static str, &'static str); 15] = [
            (self.engine == Engine::Kvm, "engine", "this program has only kvm; leave it out"),
            (self.seed.is_none(), "seed", "not supported; give the guest its configuration by config_disk"),
            (
                self.shared_folders.as_ref().is_none_or(Vec::is_empty),
                "shared_folders",
                "not supported; use data_disks or the guest agent's files",
            ),
            (self.cpu_template.is_none(), "cpu_template", "not supported; leave it out to have the host's features"),
            (self.seccomp != Some(false) || !has_jail, "seccomp", "cannot be turned off in a jail; leave out either"),
            (self.seccomp != Some(true) || has_jail, "seccomp", "is a part of the jail; describe one in jail"),
            (self.vcpus >= 1, "vcpus", "there must be at least one"),
            (self.max_vcpus.is_none_or(|most| most >= self.vcpus), "max_vcpus", "must not be less than vcpus"),
            (
                self.tap_queues.is_none_or(|queues| self.tap.is_some() && (1..=PAIRS_MAX).contains(&queues)),
                "tap_queues",
                "must be 1 to 8, beside a tap",
            ),
            (
                self.tap_descriptors.is_empty() || (self.tap.is_none() && self.tap_descriptors.len() <= PAIRS_MAX),
                "tap_descriptors",
                "must be 8 at most, and without a tap",
            ),
            (self.rootfs.is_some() || self.rootfs_layer.is_none(), "rootfs_layer", "needs a rootfs below it"),
            (self.rootfs_bytes.is_none() || self.rootfs_layer.is_some(), "rootfs_bytes", "needs a rootfs_layer"),
            (
                self.rootfs_format == DiskFormat::Raw || self.rootfs_layer.is_some(),
                "rootfs_format",
                "a qcow2 image is only read; give a rootfs_layer for writes",
            ),
            (
                self.jail.as_ref().is_none_or(|jail| jail.uid != 0 && jail.gid != 0),
                "jail",
                "uid and gid must not be root's",
            ),
            (
                self.jail.as_ref().is_none_or(|jail| jail.limits.log_bytes != Some(0)),
                "jail",
                "limits.log_bytes must be at least 1",
            ),
        ];
        match rules.into_iter().find(|(holds, ..)| !holds) {
            Some((_, field, why)) => Err(ConfigError::Field(field, why)),
            None => Ok(()),
        }
    }
}

/// For `map_err` on opening what a field names.
pub(crate) fn opening(field: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConfigError {
    move |source| ConfigError::Open { field, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(fields: &str) -> String {
        let text = format!(r#"{{"kernel":"/k","memory_mib":64,"vcpus":2{fields}}}"#);
        BootConfig::parse(text.as_bytes()).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn refusals_name_the_field_and_the_remedy() {
        assert_eq!(refusal(""), "");
        assert_eq!(refusal(r#","engine":"kvm","seccomp":false,"shared_folders":[],"max_vcpus":2"#), "");
        let jail = r#","jail":{"uid":7,"gid":7,"directory":"/d","sockets":"/s"}"#;
        assert_eq!(refusal(jail), "");
        for (fields, field, remedy) in [
            (r#","engine":"firecracker""#.to_owned(), "engine", "kvm"),
            (r#","seed":"/s""#.to_owned(), "seed", "config_disk"),
            (r#","shared_folders":["/x"]"#.to_owned(), "shared_folders", "data_disks"),
            (r#","cpu_template":"T2""#.to_owned(), "cpu_template", "leave it out"),
            (format!(r#"{jail},"seccomp":false"#), "seccomp", "jail"),
            (r#","seccomp":true"#.to_owned(), "seccomp", "jail"),
            (r#","max_vcpus":1"#.to_owned(), "max_vcpus", "vcpus"),
            (r#","tap_queues":2"#.to_owned(), "tap_queues", "tap"),
            (r#","tap":"t","tap_queues":9"#.to_owned(), "tap_queues", "8"),
            (r#","tap":"t","tap_descriptors":[3]"#.to_owned(), "tap_descriptors", "tap"),
            (r#","tap_descriptors":[3,4,5,6,7,8,9,10,11]"#.to_owned(), "tap_descriptors", "8"),
            (r#","rootfs_layer":"/l""#.to_owned(), "rootfs_layer", "rootfs"),
            (r#","rootfs":"/r","rootfs_bytes":4096"#.to_owned(), "rootfs_bytes", "rootfs_layer"),
            (r#","rootfs":"/r","rootfs_format":"qcow2""#.to_owned(), "rootfs_format", "rootfs_layer"),
            (r#","jail":{"uid":0,"gid":7,"directory":"/d","sockets":"/s"}"#.to_owned(), "jail", "root"),
            (jail.replace(r#""/s""#, r#""/s","limits":{"log_bytes":0}"#), "jail", "log_bytes"),
        ] {
            let said = refusal(&fields);
            assert!(said.starts_with(&format!("{field}: ")) && said.contains(remedy), "{fields}: {said}");
        }
        for fields in [r#","wings":2"#, r#","vcpus":1"#, r#","jail":{"uid":7}"#, r#","memory_mib":-1"#] {
            assert!(refusal(fields).contains("cannot be read"), "{fields}");
        }
        assert!(refusal(&" ".repeat(64 << 10)).contains("64 KiB"));
    }
}
