//! Version 2 messages: what the payload of each frame kind holds, apart from an operation's own arguments.

use crate::fault::{ErrorCode, Fault};
use crate::file_request::Opened;
use crate::limits::DATA_MAX;
use serde::{Deserialize, Serialize};
use serde_bytes::Bytes;

/// DATA channels.
pub const CHANNEL_IN: u8 = 0;
pub const CHANNEL_OUT: u8 = 1;
pub const CHANNEL_ERR: u8 = 2;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub versions: Vec<u32>,
    #[serde(default)]
    pub token: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    pub version: u32,
    pub agent: String,
    pub mode: String,
    pub boot: String,
    pub features: Vec<String>,
}

/// The part of OPEN that says which operation's arguments the rest is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open<'a> {
    pub op: &'a str,
}

/// OPEN with its arguments, for the side that sends it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OpenWith<'a, T> {
    pub op: &'a str,
    #[serde(flatten)]
    pub arguments: &'a T,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data<'a> {
    #[serde(rename = "c")]
    pub channel: u8,
    #[serde(rename = "d", borrow)]
    pub content: &'a Bytes,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub eof: bool,
}

impl Data<'_> {
    /// Error `PROTOCOL` when the content is longer than a frame may carry.
    pub fn check(&self) -> Result<(), Fault> {
        if self.content.len() > DATA_MAX {
            return Err(Fault::protocol("a DATA frame beyond the limit"));
        }
        Ok(())
    }
}

/// DATA of `execution-attach`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output<'a> {
    #[serde(rename = "c")]
    pub channel: u8,
    /// Absolute offset of the first byte of the content.
    #[serde(rename = "o")]
    pub offset: u64,
    #[serde(rename = "d", borrow)]
    pub content: &'a Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreditGrant {
    pub n: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    pub t: u64,
}

/// ERROR.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub code: ErrorCode,
    pub message: String,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self { code: fault.code, message: fault.message }
    }
}

/// A message without fields: END {} and CANCEL {}.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Empty {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// `exec`: the command runs.
    Started { pid: u32 },
    /// `exec`: the command has ended but something else still holds its output open; END follows.
    Exited(ExecStatus),
    /// `read-file`: the file was opened.
    File { size: u64, mode: u32 },
    /// Another operation on files: what it is about was found, and its bytes follow.
    Opened(Opened),
    /// `port-connect`: the connection is made, and bytes may go both ways.
    Connected {},
}

/// How a command ended: `exit_code` or `signal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub timed_out: bool,
    pub oom_killed: bool,
}

/// END of `exec`. The lengths count what the command wrote, sent or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    #[serde(flatten)]
    pub status: ExecStatus,
    pub stdout_len: u64,
    pub stderr_len: u64,
}

/// END of `read-file` and `write-file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEnd {
    pub size: u64,
}
