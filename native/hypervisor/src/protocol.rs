//! The control protocol: one JSON object a line each way, `action` in and `status` out.

use crate::config::BootConfig;
use crate::snapshot_files::Place;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::PathBuf;

/// A longer line is no request.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// What can be asked.
#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Request {
    /// Whether somebody is there.
    Ping,
    /// Make a machine and let it run.
    Boot(Box<BootConfig>),
    /// Bring all vCPUs and devices to rest.
    Pause,
    /// Go on.
    Resume,
    /// Press the power button.
    PowerButton,
    /// End the machine and this process.
    Shutdown,
    /// Write memory, state and disk of the machine to files.
    SnapshotSave(Place),
    /// Replace memory, state and disk by those of such files.
    SnapshotRestore(Place),
    /// Take a point to which the machine can go back in a moment.
    Checkpoint,
    /// Go back to it, which ends it.
    Revert,
    /// Keep all that happened since, which ends it.
    Commit,
    /// As a snapshot, in a directory that is made.
    MigrateExport {
        /// The directory.
        path: PathBuf,
    },
    /// Replace memory, state and disk by those of such a directory.
    MigrateImport {
        /// The directory.
        path: PathBuf,
    },
    /// Give the guest more of the vCPUs that were made for it.
    HotplugCpu {
        /// How many more.
        add: u32,
    },
    /// Look whether a file could be a disk; nothing is attached.
    HotplugDisk {
        /// The file.
        path: PathBuf,
    },
    /// Limit the disk that the guest boots from in another way.
    LimitDisk {
        /// Mbit a second; 0 is no limit, and without it the limit stays.
        blk_mbit_limit: Option<u32>,
        /// Operations a second, likewise.
        blk_ops_limit: Option<u32>,
    },
    /// Read the balloon, or set how much it is to take.
    Balloon {
        /// How much the balloon is to take, in MiB.
        balloon_mib: Option<u64>,
    },
    /// What the machine is.
    Metrics,
}

impl Request {
    /// Gives it the files that came with it; false when it has no use for them.
    pub(crate) fn take_files(&mut self, files: Vec<File>) -> bool {
        match self {
            Self::SnapshotSave(place) | Self::SnapshotRestore(place) => place.files = files,
            _ if !files.is_empty() => return false,
            _ => (),
        }
        true
    }
}

/// What a machine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Its RAM.
    pub memory_mib: u64,
    /// vCPUs that its guest was given.
    pub vcpus: u64,
    /// The word for its state.
    pub lifecycle: &'static str,
    /// vCPUs that its guest may be given.
    pub max_vcpus: u64,
    /// Whether the process is in its jail.
    pub jailed: bool,
    /// Requests of the guest to its disks that wait because the host has no room for what they write.
    pub blk_waiting_for_room: u64,
    /// Who moves the frames of the network, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_datapath: Option<&'static str>,
    /// Why the kernel does not move them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_datapath_reason: Option<String>,
}

impl Metrics {
    /// Those of a service without a machine.
    pub const NONE: Self = Self {
        memory_mib: 0,
        vcpus: 0,
        lifecycle: "created",
        max_vcpus: 0,
        jailed: false,
        blk_waiting_for_room: 0,
        net_datapath: None,
        net_datapath_reason: None,
    };
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Reply {
    /// Done.
    Ok {
        /// More about it.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// Done, and the machine now is this.
    State {
        /// The word for it.
        lifecycle: String,
    },
    /// What the machine is.
    Metrics(Metrics),
    /// Not done.
    Error {
        /// Why.
        message: String,
    },
}

impl Reply {
    /// Done, with nothing to add.
    pub const OK: Self = Self::Ok { message: None };

    /// Not done: an error with all its causes.
    pub fn error(error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            message = format!("{message}: {error}");
            cause = error.source();
        }
        Self::Error { message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_have_the_form_of_the_contract() {
        let boot = r#"{"action":"boot","kernel":"/k","memory_mib":64,"vcpus":2,"engine":"kvm"}"#;
        assert!(matches!(serde_json::from_str(boot), Ok(Request::Boot(config)) if config.vcpus == 2));
        for (line, good) in [
            (r#"{"action":"ping"}"#, true),
            (r#"{"action":"snapshot_save","path":"/s"}"#, true),
            (r#"{"action":"balloon"}"#, true),
            (r#"{"action":"snapshot_save"}"#, true),
            (r#"{"action":"snapshot_save","path":1}"#, false),
            (r#"{"action":"hotplug_cpu","add":1}"#, true),
            (r#"{"action":"hotplug_cpu","add":-1}"#, false),
            (r#"{"action":"hotplug_disk","path":"/d"}"#, true),
            (r#"{"action":"migrate_export","path":"/d"}"#, true),
            (r#"{"action":"limit_disk","blk_ops_limit":0}"#, true),
            (r#"{"action":"fly"}"#, false),
            (r#"{"action":"boot","kernel":"/k","memory_mib":64,"vcpus":2,"engine":"zeppelin"}"#, false),
            (r#"{"action":"boot","kernel":"/k","memory_mib":-1,"vcpus":2}"#, false),
            ("[]", false),
        ] {
            assert_eq!(serde_json::from_str::<Request>(line).is_ok(), good, "{line}");
        }
        let text = |reply: &Reply| serde_json::to_string(reply).unwrap();
        assert_eq!(text(&Reply::OK), r#"{"status":"ok"}"#);
        assert_eq!(text(&Reply::State { lifecycle: "paused".into() }), r#"{"status":"state","lifecycle":"paused"}"#);
        let error = Reply::error(&std::io::Error::other("no"));
        assert_eq!(text(&error), r#"{"status":"error","message":"no"}"#);
    }
}
