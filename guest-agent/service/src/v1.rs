//! Version 1: one request line, one answer line, the end; or a shell after the answer.

use crate::drive::{Head, Trailing, drive};
use crate::guest::{ExitStatus, Guest};
use crate::server::{HANDSHAKE_TIMEOUT, Server};
use crate::shell;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_bytes::ByteBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use wire::chunks::{COMMIT, prefix};
use wire::limits::*;
use wire::request::{ExecRequest, ReadFileRequest, ShutdownRequest, WriteFileRequest};
use wire::v1::{Request, Response, request, token};
use wire::{ErrorCode, Fault};

const PUT_MODE_DEFAULT: u32 = 0o644;
const SHELL_COLUMNS_DEFAULT: u16 = 80;
const SHELL_ROWS_DEFAULT: u16 = 24;
/// How long the guest's commands may take to end after `shutdown`.
const SHUTDOWN_GRACE_MS: u64 = 5_000;

/// Serves a connection whose first byte, `{`, has been read.
pub async fn serve<G: Guest>(
    server: Rc<Server<G>>,
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) {
    let (line, rest) = match read_line(&mut reader).await {
        Ok(Some(line)) => line,
        Ok(None) => return,
        Err(fault) => return answer(&mut writer, fault.into()).await,
    };
    let request = token(&line).and_then(|token| server.authority.admit(token.as_deref())).and_then(|()| request(&line));
    drop(line);
    match request {
        Ok(Request::OpenShell { cols, rows }) => {
            let size = (cols.unwrap_or(SHELL_COLUMNS_DEFAULT), rows.unwrap_or(SHELL_ROWS_DEFAULT));
            match open_shell(&server.guest, size) {
                Ok(shell) => {
                    answer(&mut writer, Response::ShellOpened).await;
                    shell::serve(shell, rest, reader, &mut writer).await;
                }
                Err(fault) => answer(&mut writer, fault.into()).await,
            }
        }
        Ok(Request::Shutdown) => {
            answer(&mut writer, Response::ShuttingDown).await;
            let _ = writer.shutdown().await;
            server.hang_up();
            server.guest.shutdown(ShutdownRequest { grace_ms: SHUTDOWN_GRACE_MS });
        }
        Ok(request) => {
            let response = perform(&server, request).await.unwrap_or_else(Into::into);
            answer(&mut writer, response).await;
        }
        Err(fault) => answer(&mut writer, fault.into()).await,
    }
    let _ = writer.shutdown().await;
}

/// The request line, its first byte put back, and what came after it; `None` when the caller left or fell silent.
async fn read_line(reader: &mut (impl AsyncRead + Unpin)) -> Result<Option<(Vec<u8>, Vec<u8>)>, Fault> {
    let mut line = vec![b'{'];
    loop {
        let searched = line.len();
        line.reserve(64 << 10);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, reader.read_buf(&mut line)).await {
            Ok(Ok(count)) if count > 0 => {}
            _ => return Ok(None),
        }
        if let Some(at) = line[searched..].iter().position(|byte| *byte == b'\n') {
            let rest = line.split_off(searched + at + 1);
            return Ok(Some((line, rest)));
        }
        if line.len() >= V1_LINE_MAX {
            return Err(Fault::new(ErrorCode::TooLarge, "the request line is too long"));
        }
    }
}

async fn answer(writer: &mut (impl AsyncWrite + Unpin), response: Response) {
    // A caller that has left does not get its answer; there is nobody else to tell.
    let _ = writer.write_all(&response.line()).await;
    let _ = writer.flush().await;
}

fn open_shell(guest: &impl Guest, (cols, rows): (u16, u16)) -> Result<crate::guest::Shell, Fault> {
    let shells = guest.shells().ok_or_else(|| unsupported("shells"))?;
    shells.open_shell(cols, rows)
}

fn unsupported(what: &str) -> Fault {
    Fault::new(ErrorCode::UnknownOp, format!("this guest has no {what}"))
}

async fn perform<G: Guest>(server: &Rc<Server<G>>, request: Request) -> Result<Response, Fault> {
    match request {
        Request::Ping => Ok(Response::Pong),
        Request::Exec(exec) => run(server, exec.into_request(V1_OUTPUT_MAX)).await,
        Request::PutFile { path, content_base64, mode } => {
            put_file(&server.guest, path, &content_base64, mode.unwrap_or(PUT_MODE_DEFAULT)).await
        }
        Request::GetFile { path } => get_file(&server.guest, path).await,
        Request::ResetIdentity(request) => {
            let identity = server.guest.identity().ok_or_else(|| unsupported("identity to reset"))?;
            Ok(Response::IdentityReset(identity.reset_identity(request)))
        }
        Request::OpenShell { .. } | Request::Shutdown => unreachable!("these need the connection and never get here"),
    }
}

async fn run<G: Guest>(server: &Rc<Server<G>>, request: ExecRequest) -> Result<Response, Fault> {
    request.program()?;
    let _slot = server.execution_slot()?;
    let timeout = Duration::from_millis(request.timeout_ms);
    let mut out = Head::new(request.output_max as usize);
    let mut err = Head::new(request.output_max as usize);
    let execution = match server.guest.exec(request).await {
        Err(fault) => match fault.shell_exit_code() {
            Some(exit_code) => {
                let stderr = format!("{}\n", fault.message);
                return Ok(Response::Exec { exit_code, stdout: String::new(), stderr });
            }
            None => return Err(fault),
        },
        Ok(execution) => execution,
    };
    let sinks = (&mut out, &mut err);
    let finished = drive(execution, Some(timeout), Trailing::GiveUp, sinks, async |_| {}).await?;
    let exit_code = match finished.ended.status {
        _ if finished.timed_out => 124,
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => 128 + signal,
    };
    let text = |head: Head| {
        String::from_utf8(head.bytes).unwrap_or_else(|bytes| String::from_utf8_lossy(bytes.as_bytes()).into())
    };
    Ok(Response::Exec { exit_code, stdout: text(out), stderr: text(err) })
}

async fn put_file(guest: &impl Guest, path: String, content_base64: &str, mode: u32) -> Result<Response, Fault> {
    let content = BASE64.decode(content_base64).map_err(|_| Fault::bad_argument("content_base64 is not base64"))?;
    if content.len() as u64 > V1_FILE_MAX {
        return Err(Fault::new(ErrorCode::TooLarge, "a file of more than 64 MiB"));
    }
    let request = WriteFileRequest { path: ByteBuf::from(path), mode, parents: true, max: V1_FILE_MAX };
    let mut upload = guest.write_file(request).await?;
    let send = async {
        for chunk in content.chunks(DATA_MAX) {
            upload.bytes.write_all(&prefix(chunk.len())).await?;
            upload.bytes.write_all(chunk).await?;
        }
        upload.bytes.write_all(&COMMIT).await
    };
    // A writer that stopped reading says why below.
    let _ = send.await;
    upload.ended.await?;
    Ok(Response::FileWritten)
}

async fn get_file(guest: &impl Guest, path: String) -> Result<Response, Fault> {
    let mut download = guest.read_file(ReadFileRequest { path: ByteBuf::from(path), max: V1_FILE_MAX }).await?;
    let mut content = Vec::new();
    let read = (&mut download.bytes).take(V1_FILE_MAX + 1).read_to_end(&mut content).await;
    drop(download.bytes);
    let size = download.ended.await?;
    if read.is_err() || size != content.len() as u64 {
        return Err(Fault::new(ErrorCode::Interrupted, "the content was cut off"));
    }
    Ok(Response::FileContent { content_base64: BASE64.encode(content), mode: download.mode })
}
