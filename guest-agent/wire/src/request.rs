//! The arguments of each operation, checked: what a `Guest` is asked to do. Fields are those of PROTOCOL.md.

use crate::fault::Fault;
use crate::limits::*;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;

/// Run a command. Exactly one of `command` and `argv` is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// 0 = no limit.
    #[serde(default)]
    pub timeout_ms: u64,
    /// Bytes of each channel that are sent, from the head.
    #[serde(default = "output_max_default")]
    pub output_max: u64,
    /// Whether the host will send standard input; otherwise it is `/dev/null`.
    #[serde(default)]
    pub stdin: bool,
    /// Kill what the command left behind when it ends.
    #[serde(default)]
    pub kill_group: bool,
}

fn output_max_default() -> u64 {
    V1_OUTPUT_MAX
}

/// What an `ExecRequest` runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Program<'a> {
    Shell(&'a str),
    Argv(&'a [String]),
}

impl ExecRequest {
    /// Checks bounds and form and says what is to run. Error `BAD_ARGUMENT` or `TOO_LARGE`.
    pub fn program(&self) -> Result<Program<'_>, Fault> {
        self.check_environment()?;
        if let Some(cwd) = &self.cwd {
            check_string("cwd", cwd, PATH_MAX)?;
        }
        match (&self.command, &self.argv) {
            (Some(command), None) => {
                check_string("command", command, COMMAND_MAX)?;
                Ok(Program::Shell(command))
            }
            (None, Some(argv)) => {
                if argv.first().is_none_or(String::is_empty) {
                    return Err(Fault::bad_argument("argv is empty"));
                }
                if argv.len() > ARGV_COUNT_MAX || argv.iter().map(|word| word.len() + 1).sum::<usize>() > COMMAND_MAX {
                    return Err(too_large("argv"));
                }
                argv.iter().try_for_each(|word| check_string("argv", word, ARGUMENT_MAX))?;
                Ok(Program::Argv(argv))
            }
            _ => Err(Fault::bad_argument("exactly one of command and argv is needed")),
        }
    }

    fn check_environment(&self) -> Result<(), Fault> {
        let bytes: usize = self.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        if self.env.len() > ENVIRONMENT_COUNT_MAX || bytes > ENVIRONMENT_MAX {
            return Err(too_large("env"));
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(Fault::bad_argument("env has an unusable name"));
            }
            check_string("env", value, ARGUMENT_MAX)?;
        }
        Ok(())
    }
}

fn too_large(what: &str) -> Fault {
    Fault::new(crate::ErrorCode::TooLarge, format!("{what} is too long"))
}

fn check_string(what: &str, value: &str, max: usize) -> Result<(), Fault> {
    if value.len() > max {
        return Err(too_large(what));
    }
    if value.contains('\0') {
        return Err(Fault::bad_argument(format!("{what} holds a NUL")));
    }
    Ok(())
}

/// Signal the process group of a running command of the same connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignalRequest {
    /// Stream id of its `exec`.
    pub exec: u32,
    pub signal: i32,
}

/// Read a regular file whole. `TOO_LARGE` when it has more than `max` bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadFileRequest {
    pub path: ByteBuf,
    pub max: u64,
}

/// Write a file: beside its name, then renamed over it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteFileRequest {
    pub path: ByteBuf,
    /// Permission bits; only those of 0777 count.
    pub mode: u32,
    /// Make missing parent directories (0755).
    #[serde(default)]
    pub parents: bool,
    pub max: u64,
}

/// List and fingerprint trees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManifestRequest {
    pub paths: Vec<ByteBuf>,
    /// Regular files; more is `LIMIT`.
    pub files_max: u64,
    /// Bytes of the encoded listing; more is `LIMIT`.
    pub listing_max: u64,
    /// Digest of a listing the host holds; a delta against it is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ByteBuf>,
}

/// What a manifest's END says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManifestSummary {
    /// SHA-256 of the full listing.
    pub digest: ByteBuf,
    pub entries: u64,
    pub files: u64,
    pub delta: bool,
    pub mode: String,
    /// Regular files equal in `base` and now; 0 without a delta.
    pub unchanged: u64,
}

/// Give a cloned guest an identity of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResetIdentityRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(default)]
    pub regenerate_machine_id: bool,
    #[serde(default)]
    pub reseed_entropy: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy_base64: Option<String>,
}

/// What was done, and what was not and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IdentityReport {
    pub applied: Vec<String>,
    pub failures: Vec<String>,
}

/// Set the wall clock, in milliseconds since 1970 began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetClockRequest {
    pub unix_ms: u64,
}

/// Stop the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShutdownRequest {
    /// How long what runs may take to end by itself.
    #[serde(default)]
    pub grace_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(command: &str) -> ExecRequest {
        ExecRequest { command: Some(command.into()), ..Default::default() }
    }

    #[test]
    fn exactly_one_program() {
        assert_eq!(shell("id").program(), Ok(Program::Shell("id")));
        assert!(ExecRequest::default().program().is_err());
        let both = ExecRequest { argv: Some(vec!["id".into()]), ..shell("id") };
        assert!(both.program().is_err());
        let empty = ExecRequest { argv: Some(vec![]), ..Default::default() };
        assert!(empty.program().is_err());
    }

    #[test]
    fn bounds_hold_at_their_edges() {
        assert!(shell(&"x".repeat(COMMAND_MAX)).program().is_ok());
        let code = shell(&"x".repeat(COMMAND_MAX + 1)).program().unwrap_err().code;
        assert_eq!(code, crate::ErrorCode::TooLarge);
        let argv = ExecRequest { argv: Some(vec!["x".repeat(ARGUMENT_MAX + 1)]), ..Default::default() };
        assert_eq!(argv.program().unwrap_err().code, crate::ErrorCode::TooLarge);
    }

    #[test]
    fn strings_that_exec_cannot_carry_are_refused() {
        assert!(shell("a\0b").program().is_err());
        for name in ["", "A=B", "A\0"] {
            let request = ExecRequest { env: [(name.to_string(), String::new())].into(), ..shell("id") };
            assert!(request.program().is_err(), "{name:?}");
        }
        let request = ExecRequest { cwd: Some("/a\0".into()), ..shell("id") };
        assert!(request.program().is_err());
    }
}
