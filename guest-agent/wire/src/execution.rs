//! Executions: the arguments of the operations on them, and what the guest says about one. Fields are those of
//! PROTOCOL.md.

use crate::fault::Fault;
use crate::limits::*;
use crate::message::ExecStatus;
use crate::request::ExecRequest;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;

/// Start an execution. Exactly one of `command` and `argv` is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutionStartRequest {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// A controlling terminal instead of pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TerminalSize>,
    /// Whether the host will send input. A terminal takes it in any case.
    #[serde(default)]
    pub stdin: bool,
    /// 0 = no limit.
    #[serde(default)]
    pub timeout_ms: u64,
    /// Bytes of each channel that are kept until they are acknowledged.
    pub ring_max: u64,
    /// Hold the command up when that many are kept, instead of dropping the oldest.
    #[serde(default)]
    pub block: bool,
}

impl ExecutionStartRequest {
    /// Checks what is this request's own; `ExecRequest::program` checks the rest. Error `BAD_ARGUMENT`.
    pub fn check(&self) -> Result<(), Fault> {
        check_id(&self.id)?;
        if !(1..=RING_MAX).contains(&self.ring_max) {
            return Err(Fault::bad_argument(format!("ring_max is not from 1 to {RING_MAX}")));
        }
        Ok(())
    }

    /// What is to run, for a guest. The output is the execution's affair, and so is what the command leaves behind.
    pub fn exec_request(&self) -> ExecRequest {
        ExecRequest {
            command: self.command.clone(),
            argv: self.argv.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            timeout_ms: self.timeout_ms,
            output_max: 0,
            stdin: self.stdin,
            kill_group: false,
        }
    }
}

/// Error `BAD_ARGUMENT` for what cannot be the id of an execution.
pub fn check_id(id: &str) -> Result<(), Fault> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if id.is_empty() || id.len() > EXECUTION_ID_MAX || !id.bytes().all(fits) {
        return Err(Fault::bad_argument("an id has 1 to 64 letters, digits, - or _"));
    }
    Ok(())
}

/// In characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub cols: u16,
    pub rows: u16,
}

/// Absolute offsets of both channels: where to begin, or what is safe at the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutionOffsets {
    pub id: String,
    #[serde(default)]
    pub stdout: u64,
    #[serde(default)]
    pub stderr: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutionModeRequest {
    pub id: String,
    pub block: bool,
}

/// Bytes of input from an absolute offset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutionStdinRequest {
    pub id: String,
    pub offset: u64,
    #[serde(rename = "d", default)]
    pub content: ByteBuf,
    /// The input ends behind these bytes.
    #[serde(default)]
    pub eof: bool,
}

impl ExecutionStdinRequest {
    /// The offset behind the content. Error `BAD_ARGUMENT` for too much content or an offset beyond any use.
    pub fn end(&self) -> Result<u64, Fault> {
        if self.content.len() > STDIN_PIECE_MAX {
            return Err(Fault::bad_argument(format!("more than {STDIN_PIECE_MAX} bytes of input at once")));
        }
        let end = self.offset.checked_add(self.content.len() as u64);
        end.ok_or_else(|| Fault::bad_argument("an offset beyond any input"))
    }
}

/// END of `execution-stdin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionStdinEnd {
    pub accepted: u64,
    pub closed: bool,
    /// The offset was beyond `accepted`; nothing was taken.
    pub gap: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutionSignalRequest {
    pub id: String,
    pub signal: i32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutionResizeRequest {
    pub id: String,
    pub cols: u16,
    pub rows: u16,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutionForgetRequest {
    pub id: String,
}

/// What the guest says about an execution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutionState {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    pub pid: u32,
    pub tty: bool,
    /// Unix time in milliseconds.
    pub started_at_ms: u64,
    /// Unix time in milliseconds; none while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited_at_ms: Option<u64>,
    #[serde(flatten)]
    pub status: ExecStatus,
    pub output_open: bool,
    pub block: bool,
    pub stdout: KeptOutput,
    pub stderr: KeptOutput,
    pub stdin: StdinState,
}

/// Absolute offsets of the bytes that are kept: the first, and the one behind the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOutput {
    pub base: u64,
    pub end: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinState {
    pub accepted: u64,
    pub closed: bool,
}

/// END of `execution-start`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutionStartEnd {
    pub execution: ExecutionState,
    /// The id was known already.
    pub existing: bool,
}

/// END of `execution-attach` and `execution-mode`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutionEnd {
    pub execution: ExecutionState,
}

/// END of `execution-list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutionListEnd {
    pub executions: Vec<ExecutionState>,
}

/// An EVENT of `execution-attach`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ExecutionEvent {
    Exited { execution: ExecutionState, wrote: Wrote },
}

/// The offset behind what a command itself had written to each channel when it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrote {
    pub stdout: u64,
    pub stderr: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Kind, encode};

    #[test]
    fn ids() {
        for good in ["a", "A-b_9", &"x".repeat(EXECUTION_ID_MAX)] {
            assert!(check_id(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "..", "é", &"x".repeat(EXECUTION_ID_MAX + 1)] {
            assert!(check_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_longest_list_fits_a_frame() {
        let state = ExecutionState {
            id: "x".repeat(EXECUTION_ID_MAX),
            command: Some("y".repeat(LISTED_COMMAND_MAX)),
            pid: u32::MAX,
            started_at_ms: u64::MAX,
            exited_at_ms: Some(u64::MAX),
            status: ExecStatus { exit_code: Some(i32::MIN), ..Default::default() },
            stdout: KeptOutput { base: u64::MAX, end: u64::MAX },
            stderr: KeptOutput { base: u64::MAX, end: u64::MAX },
            stdin: StdinState { accepted: u64::MAX, closed: false },
            ..Default::default()
        };
        encode(1, Kind::End, &ExecutionListEnd { executions: vec![state; EXECUTIONS_KNOWN_MAX] });
    }

    #[test]
    fn input_that_cannot_be_is_refused() {
        let piece = |offset, size| ExecutionStdinRequest {
            offset,
            content: ByteBuf::from(vec![0; size]),
            ..Default::default()
        };
        assert_eq!(piece(7, STDIN_PIECE_MAX).end(), Ok(7 + STDIN_PIECE_MAX as u64));
        assert!(piece(0, STDIN_PIECE_MAX + 1).end().is_err());
        assert!(piece(u64::MAX, 1).end().is_err());
    }
}
