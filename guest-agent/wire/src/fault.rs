//! How an operation fails on the wire: a code for programs and a message for people.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// The codes of PROTOCOL.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    Unauthorized,
    Protocol,
    UnknownOp,
    BadArgument,
    TooManyStreams,
    NotFound,
    NotRegular,
    NotDirectory,
    NotEmpty,
    OffsetMismatch,
    Symlink,
    Denied,
    TooLarge,
    NoSpace,
    WalkFailed,
    Limit,
    ProgramNotFound,
    ProgramDenied,
    SpawnFailed,
    Exists,
    Superseded,
    Ended,
    Busy,
    Refused,
    TimedOut,
    Broken,
    Capability,
    Cancelled,
    Interrupted,
    Gone,
    Internal,
}

/// A failed operation. The message names the object and the cause; it never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub code: ErrorCode,
    pub message: String,
}

impl Fault {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The program of a command could not be run.
    pub fn not_executed(program: &str, error: &io::Error) -> Self {
        const EXEC_FORMAT: i32 = 8;
        let code = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorCode::ProgramNotFound,
            io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => ErrorCode::ProgramDenied,
            _ if error.raw_os_error() == Some(EXEC_FORMAT) => ErrorCode::ProgramDenied,
            _ => ErrorCode::SpawnFailed,
        };
        Self::new(code, format!("{program}: {error}"))
    }

    /// The exit code that a shell gives for this failure, where it has one.
    pub fn shell_exit_code(&self) -> Option<i32> {
        match self.code {
            ErrorCode::ProgramNotFound => Some(127),
            ErrorCode::ProgramDenied => Some(126),
            _ => None,
        }
    }

    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Protocol, message)
    }

    pub fn bad_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadArgument, message)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}
