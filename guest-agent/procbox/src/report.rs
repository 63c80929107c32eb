//! What the launcher and the supervisor tell the agent: one line on standard output at launch, and the exit
//! record at the end.

use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, faccessat};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// The one line of a launch.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum LaunchReport {
    Ready(Box<Ready>),
    Failed(Failure),
}

/// The sandbox runs. Pid, start time (clock ticks since boot) and boot id identify each process for ever.
#[derive(Debug, Serialize)]
pub struct Ready {
    pub ok: bool,
    pub supervisor_pid: i32,
    pub supervisor_start: u64,
    pub init_pid: i32,
    pub init_start: u64,
    pub boot_id: String,
    /// The workspace as commands see it.
    pub workspace: String,
    pub enforcement: Enforcement,
}

/// Nothing runs and nothing is left.
#[derive(Debug, Serialize)]
pub struct Failure {
    pub ok: bool,
    pub code: FailureCode,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailureCode {
    /// This host cannot enforce what was asked for.
    ConfinementUnavailable,
    LaunchFailed,
    BadConfig,
}

impl Failure {
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { ok: false, code, message: message.into() }
    }

    pub fn launch(message: impl Into<String>) -> Self {
        Self::new(FailureCode::LaunchFailed, message)
    }
}

/// What holds for every command of the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Enforcement {
    pub landlock_abi: u32,
    pub filesystem: bool,
    pub tcp_connect: bool,
    pub tcp_bind: bool,
    pub scope_abstract_unix: bool,
    pub scope_signal: bool,
    pub seccomp: bool,
    pub uid_dropped: bool,
    pub namespaces: bool,
    pub network_isolated: bool,
    pub seccomp_sockets: bool,
    pub not_enforced: Vec<String>,
}

/// Why and when a sandbox ended.
#[derive(Debug, Serialize)]
pub struct ExitRecord {
    pub ended_at_unix_ms: u64,
    pub reason: EndReason,
    pub init_status: Option<InitStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The agent asked for it.
    Shutdown,
    /// Init ended by itself or was killed from outside.
    InitDied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InitStatus {
    ExitCode(i32),
    Signal(i32),
}

/// Where the exit record will be. Its directory is opened by the launcher, so that the supervisor needs no right
/// to the directories above it.
pub struct ExitRecordPlace {
    directory: OwnedFd,
    name: OsString,
}

impl ExitRecordPlace {
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let directory = open(directory, OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        Ok(Self { directory, name })
    }

    /// Whether this process may write there.
    pub fn check(&self) -> io::Result<()> {
        let access = AccessFlags::W_OK | AccessFlags::X_OK;
        Ok(faccessat(&self.directory, ".", access, AtFlags::empty())?)
    }

    /// Writes the record whole or not at all.
    pub fn write(&self, record: &ExitRecord) -> io::Result<()> {
        let mut beside = self.name.clone();
        beside.push(".new");
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let mut file = fs::File::from(openat(&self.directory, beside.as_os_str(), flags, mode)?);
        serde_json::to_writer(&mut file, record)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        Ok(renameat(&self.directory, beside.as_os_str(), &self.directory, self.name.as_os_str())?)
    }
}

/// Start time of process `pid` in clock ticks since boot.
pub fn start_ticks(pid: i32) -> io::Result<u64> {
    const START_TIME_AFTER_NAME: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold spaces and parentheses; the fields after the last one are plain.
    stat.rsplit_once(')')
        .and_then(|(_, fields)| fields.split_ascii_whitespace().nth(START_TIME_AFTER_NAME))
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable /proc stat"))
}

/// A value that differs for every boot of this host.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_ticks_of_this_process() {
        assert!(start_ticks(std::process::id() as i32).unwrap() > 0);
        assert!(start_ticks(-5).is_err());
    }

    #[test]
    fn the_exit_record_has_the_agreed_form() {
        let path = std::env::temp_dir().join(format!("exit-record-{}.json", std::process::id()));
        let record =
            ExitRecord { ended_at_unix_ms: 5, reason: EndReason::InitDied, init_status: Some(InitStatus::Signal(9)) };
        let place = ExitRecordPlace::open(&path).unwrap();
        place.check().unwrap();
        place.write(&record).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(text, "{\"ended_at_unix_ms\":5,\"reason\":\"init_died\",\"init_status\":{\"signal\":9}}\n");
    }
}
