//! Version 1: one JSON object on a line each way. The token is read before the rest is looked at.

use crate::fault::{ErrorCode, Fault};
use crate::limits::V1_TIMEOUT_SECONDS_DEFAULT;
use crate::request::{ExecRequest, IdentityReport, ResetIdentityRequest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What stands beside `op` in every request.
#[derive(Debug, Deserialize)]
pub struct Envelope<'a> {
    #[serde(default, borrow)]
    pub token: Option<std::borrow::Cow<'a, str>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    Ping,
    Exec(Exec),
    PutFile { path: String, content_base64: String, mode: Option<u32> },
    GetFile { path: String },
    OpenShell { cols: Option<u16>, rows: Option<u16> },
    ResetIdentity(ResetIdentityRequest),
    Shutdown,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Exec {
    command: Option<String>,
    argv: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    timeout_seconds: Option<u64>,
}

impl Exec {
    /// The same request in the terms of version 2. It always has a time limit; what the command leaves running
    /// in the background is left alone.
    pub fn into_request(self, output_max: u64) -> ExecRequest {
        let seconds = self.timeout_seconds.filter(|seconds| *seconds > 0).unwrap_or(V1_TIMEOUT_SECONDS_DEFAULT);
        ExecRequest {
            command: self.command,
            argv: self.argv,
            env: self.env.unwrap_or_default(),
            cwd: self.cwd,
            timeout_ms: seconds.saturating_mul(1000),
            output_max,
            stdin: false,
            kill_group: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum Response {
    Pong,
    Exec { exit_code: i32, stdout: String, stderr: String },
    FileWritten,
    FileContent { content_base64: String, mode: u32 },
    ShellOpened,
    IdentityReset(IdentityReport),
    ShuttingDown,
    Error { message: String },
}

impl Response {
    /// The answer as a line, newline included.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("version 1 answers are plain JSON");
        line.push(b'\n');
        line
    }
}

impl From<Fault> for Response {
    fn from(fault: Fault) -> Self {
        let message = match fault.code {
            ErrorCode::Unauthorized => format!("unauthorized: {}", fault.message),
            _ => fault.message,
        };
        Self::Error { message }
    }
}

/// The token of a request line, if any. Error `BAD_ARGUMENT` when the line is not a JSON object.
pub fn token(line: &[u8]) -> Result<Option<String>, Fault> {
    let envelope: Envelope = parse(line)?;
    Ok(envelope.token.map(Into::into))
}

/// The request of a line. Error `BAD_ARGUMENT`.
pub fn request(line: &[u8]) -> Result<Request, Fault> {
    parse(line)
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, Fault> {
    if line.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Fault::bad_argument("malformed request: not a JSON object"));
    }
    serde_json::from_slice(line).map_err(|error| Fault::bad_argument(format!("malformed request: {}", reason(&error))))
}

/// Why a request did not parse, without the values it holds.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let named = ["missing field", "duplicate field", "unknown variant"].iter().any(|start| text.starts_with(start));
    match error.is_data() {
        true if named => text.chars().take(200).collect(),
        true => format!("a field of the wrong type at column {}", error.column()),
        false => format!("not JSON at column {}", error.column()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_unknown_fields() {
        let Ok(Request::Exec(exec)) = request(br#"{"op":"exec","command":"id","policy":null,"new":[1]}"#) else {
            panic!("exec expected");
        };
        let exec = exec.into_request(7);
        assert_eq!((exec.command.as_deref(), exec.timeout_ms, exec.output_max), (Some("id"), 30_000, 7));
        assert_eq!(request(br#" {"op":"open-shell"}"#), Ok(Request::OpenShell { cols: None, rows: None }));
    }

    #[test]
    fn errors_name_the_field_but_never_a_value() {
        let fault = request(br#"{"op":"put-file","path":"/a","token":"s3cret"}"#).unwrap_err();
        assert!(fault.message.contains("content_base64"), "{fault}");
        let fault = token(br#"{"op":"ping","token":["s3cret"]}"#).unwrap_err();
        assert!(!fault.message.contains("s3cret"), "{fault}");
        for line in ["", "[]", "{", "{}", "null", r#"{"op":"fly"}"#, "{\"op\":\"\u{0}\"}", r#"{"op":1}"#] {
            assert!(request(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_line_of_deep_nesting_is_an_error() {
        let line = format!(r#"{{"op":"ping","x":{}}}"#, "[".repeat(1 << 20));
        assert!(token(line.as_bytes()).is_err());
    }

    #[test]
    fn answers_are_tagged() {
        assert_eq!(Response::Pong.line(), b"{\"result\":\"pong\"}\n");
        let fault = Fault::new(ErrorCode::Unauthorized, "wrong token");
        assert_eq!(Response::from(fault).line(), b"{\"result\":\"error\",\"message\":\"unauthorized: wrong token\"}\n");
    }
}
