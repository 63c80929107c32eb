//! The control protocol: one JSON object a line each way, `action` in and `status` out.

use crate::config::BootConfig;
use serde::{Deserialize, Serialize};
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
    /// Write memory, state and disk of the machine to four files that begin with the path.
    SnapshotSave {
        /// Where to.
        path: PathBuf,
    },
    /// Replace memory, state and disk by those of a snapshot.
    SnapshotRestore {
        /// Where from.
        path: PathBuf,
    },
    /// Read the balloon, or set how much it is to take.
    Balloon {
        /// How much the balloon is to take, in MiB.
        balloon_mib: Option<u64>,
    },
    /// What the machine is.
    Metrics,
}

/// What is answered.
#[derive(Debug, PartialEq, Eq, Serialize)]
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
    Metrics {
        /// Its RAM.
        memory_mib: u64,
        /// Its vCPUs.
        vcpus: u64,
        /// The word for its state.
        lifecycle: String,
    },
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
            (r#"{"action":"snapshot_save"}"#, false),
            (r#"{"action":"fly"}"#, false),
            (r#"{"action":"boot","kernel":"/k","memory_mib":64,"vcpus":2,"engine":"firecracker"}"#, false),
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
