//! From an OPEN frame to its answer: END or ERROR, whatever happens to the operation in between.

use super::stream::Stream;
use super::{Table, exec, executions, files, ports, transfer};
use crate::guest::Guest;
use crate::server::Server;
use serde::de::DeserializeOwned;
use std::rc::Rc;
use tokio::task::spawn_local;
use wire::frame::{Frame, Kind};
use wire::message::{Empty, Failure};
use wire::request::*;
use wire::{ErrorCode, Fault};

/// An operation with its arguments.
pub enum Operation {
    Ping,
    Exec(ExecRequest),
    Signal(SignalRequest),
    Execution(executions::Operation),
    File(files::Operation),
    Port(ports::Operation),
    ReadFile(ReadFileRequest),
    WriteFile(WriteFileRequest),
    Manifest(ManifestRequest),
    ResetIdentity(ResetIdentityRequest),
    SetClock(SetClockRequest),
    Shutdown(ShutdownRequest),
}

impl Operation {
    /// Whether it sends as much as it is let, and loses nothing by waiting.
    fn sends_much(&self) -> bool {
        matches!(
            self,
            Self::Exec(_) | Self::File(files::Operation::Download(_)) | Self::ReadFile(_) | Self::Manifest(_)
        )
    }
}

/// The operation that a frame asks for. Errors `UNKNOWN_OP`, `BAD_ARGUMENT`: they end the stream, not the
/// connection.
pub fn operation(op: &str, frame: &Frame<'_>) -> Result<Operation, Fault> {
    if let Some(operation) = executions::operation(op, frame) {
        return operation.map(Operation::Execution);
    }
    if let Some(operation) = ports::operation(op, frame) {
        return operation.map(Operation::Port);
    }
    if let Some(operation) = files::operation(op, frame) {
        return operation.map(Operation::File);
    }
    Ok(match op {
        "ping" => Operation::Ping,
        "exec" => Operation::Exec(arguments(frame)?),
        "signal" => Operation::Signal(arguments(frame)?),
        "read-file" => Operation::ReadFile(arguments(frame)?),
        "write-file" => Operation::WriteFile(arguments(frame)?),
        "manifest" => Operation::Manifest(arguments(frame)?),
        "reset-identity" => Operation::ResetIdentity(arguments(frame)?),
        "set-clock" => Operation::SetClock(arguments(frame)?),
        "shutdown" => Operation::Shutdown(arguments(frame)?),
        _ => return Err(Fault::new(ErrorCode::UnknownOp, "this guest agent does not know the operation")),
    })
}

/// The arguments of a frame's operation. Error `BAD_ARGUMENT`.
pub fn arguments<T: DeserializeOwned>(frame: &Frame<'_>) -> Result<T, Fault> {
    frame.message().map_err(|fault| Fault { code: ErrorCode::BadArgument, ..fault })
}

/// Performs `operation` and answers on `stream`.
pub async fn answer<G: Guest>(
    server: Rc<Server<G>>,
    table: Table,
    stream: Rc<Stream>,
    operation: Result<Operation, Fault>,
) {
    let performing = spawn_local(perform(server, table.clone(), stream.clone(), operation));
    let failed = match performing.await {
        Ok(Ok(())) => None,
        Ok(Err(fault)) => Some(fault),
        Err(_panicked) => Some(Fault::new(ErrorCode::Internal, "the operation failed inside the guest agent")),
    };
    if let Some(fault) = failed {
        stream.message(Kind::Error, &Failure::from(fault)).await;
    }
    table.borrow_mut().remove(&stream.id());
}

/// Sends END itself when all went well.
async fn perform<G: Guest>(
    server: Rc<Server<G>>,
    table: Table,
    stream: Rc<Stream>,
    operation: Result<Operation, Fault>,
) -> Result<(), Fault> {
    let guest = &server.guest;
    let operation = operation?;
    if operation.sends_much() {
        stream.be_patient();
    }
    match operation {
        Operation::Ping => stream.message(Kind::End, &Empty {}).await,
        Operation::Exec(request) => exec::perform(&server, &stream, request).await?,
        Operation::Signal(request) => {
            let running = table.borrow().get(&request.exec).cloned();
            let running = running.ok_or_else(|| Fault::new(ErrorCode::NotFound, "no such stream is open"))?;
            if !(1..=64).contains(&request.signal) {
                return Err(Fault::bad_argument(format!("no signal {}", request.signal)));
            }
            running.control()?.signal(request.signal)?;
            stream.message(Kind::End, &Empty {}).await;
        }
        Operation::Execution(operation) => executions::perform(&server, &stream, operation).await?,
        Operation::Port(operation) => ports::perform(&server, &stream, operation).await?,
        Operation::File(operation) => files::perform(guest, &stream, operation).await?,
        Operation::ReadFile(request) => transfer::read_file(guest, &stream, request).await?,
        Operation::WriteFile(request) => transfer::write_file(guest, &stream, request).await?,
        Operation::Manifest(request) => transfer::manifest(guest, &stream, request).await?,
        Operation::ResetIdentity(request) => {
            let identity = guest.identity();
            let identity =
                identity.ok_or_else(|| Fault::new(ErrorCode::UnknownOp, "this guest has no identity to reset"))?;
            stream.message(Kind::End, &identity.reset_identity(request)).await;
        }
        Operation::SetClock(request) => {
            let clock = guest.clock();
            let clock = clock.ok_or_else(|| Fault::new(ErrorCode::UnknownOp, "this guest has no clock of its own"))?;
            clock.set_clock(request)?;
            stream.message(Kind::End, &Empty {}).await;
        }
        Operation::Shutdown(request) => {
            stream.message(Kind::End, &Empty {}).await;
            stream.flush().await;
            server.hang_up();
            guest.shutdown(request);
        }
    }
    Ok(())
}
