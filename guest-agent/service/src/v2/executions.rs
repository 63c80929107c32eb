//! The operations on executions: from their arguments to END or ERROR.

use super::open::arguments;
use super::stream::Stream;
use crate::executions::{CHANNELS, Excerpt, Retained};
use crate::guest::Guest;
use crate::server::Server;
use std::rc::Rc;
use wire::execution::*;
use wire::frame::{Frame, Kind};
use wire::message::{CHANNEL_ERR, CHANNEL_OUT, Empty};
use wire::{ErrorCode, Fault};

/// DATA channels in the order of [`CHANNELS`].
const DATA_CHANNELS: [u8; 2] = [CHANNEL_OUT, CHANNEL_ERR];

pub enum Operation {
    Start(Box<ExecutionStartRequest>),
    Attach(ExecutionOffsets),
    Acknowledge(ExecutionOffsets),
    Mode(ExecutionModeRequest),
    Stdin(ExecutionStdinRequest),
    Signal(ExecutionSignalRequest),
    Resize(ExecutionResizeRequest),
    List,
    Forget(ExecutionForgetRequest),
}

/// The operation that a frame asks for; none when it is not on executions. Error `BAD_ARGUMENT`.
pub fn operation(op: &str, frame: &Frame<'_>) -> Option<Result<Operation, Fault>> {
    Some(match op.strip_prefix("execution-")? {
        "start" => arguments(frame).map(Box::new).map(Operation::Start),
        "attach" => arguments(frame).map(Operation::Attach),
        "ack" => arguments(frame).map(Operation::Acknowledge),
        "mode" => arguments(frame).map(Operation::Mode),
        "stdin" => arguments(frame).map(Operation::Stdin),
        "signal" => arguments(frame).map(Operation::Signal),
        "resize" => arguments(frame).map(Operation::Resize),
        "list" => Ok(Operation::List),
        "forget" => arguments(frame).map(Operation::Forget),
        _ => return None,
    })
}

/// Sends END itself when all went well.
pub async fn perform<G: Guest>(server: &Rc<Server<G>>, stream: &Stream, operation: Operation) -> Result<(), Fault> {
    let executions = &server.executions;
    match operation {
        Operation::Start(request) => {
            let (retained, existing) = executions.start(server, *request).await?;
            stream.message(Kind::End, &ExecutionStartEnd { execution: retained.state(), existing }).await;
        }
        Operation::Attach(from) => {
            let retained = executions.get(&from.id)?;
            attach(&retained, stream, [from.stdout, from.stderr]).await?;
        }
        Operation::Acknowledge(safe) => {
            executions.get(&safe.id)?.acknowledge([safe.stdout, safe.stderr]);
            stream.message(Kind::End, &Empty {}).await;
        }
        Operation::Mode(request) => {
            let retained = executions.get(&request.id)?;
            retained.set_block(request.block);
            stream.message(Kind::End, &ExecutionEnd { execution: retained.state() }).await;
        }
        Operation::Stdin(request) => {
            let retained = executions.get(&request.id)?;
            let end = take_input(&retained, stream, request).await?;
            stream.message(Kind::End, &end).await;
        }
        Operation::Signal(request) => {
            if !(1..=64).contains(&request.signal) {
                return Err(Fault::bad_argument(format!("no signal {}", request.signal)));
            }
            executions.get(&request.id)?.signal(request.signal)?;
            stream.message(Kind::End, &Empty {}).await;
        }
        Operation::Resize(request) => {
            let size = TerminalSize { cols: request.cols, rows: request.rows };
            executions.get(&request.id)?.resize(size)?;
            stream.message(Kind::End, &Empty {}).await;
        }
        Operation::List => {
            stream.message(Kind::End, &ExecutionListEnd { executions: executions.list() }).await;
        }
        Operation::Forget(request) => {
            executions.forget(&request.id)?;
            stream.message(Kind::End, &Empty {}).await;
        }
    }
    Ok(())
}

/// Takes input, as long as somebody waits for the answer.
async fn take_input(
    retained: &Retained,
    stream: &Stream,
    request: ExecutionStdinRequest,
) -> Result<ExecutionStdinEnd, Fault> {
    if request.eof && retained.has_terminal() {
        return Err(Fault::bad_argument("the input of a terminal has no end"));
    }
    tokio::select! {
        end = retained.input.take(&request) => end,
        () = stream.abandoned() => Err(cancelled()),
    }
}

fn cancelled() -> Fault {
    Fault::new(ErrorCode::Cancelled, "the host has lost interest")
}

/// Sends output from `offsets` on until there will be no more.
async fn attach(retained: &Retained, stream: &Stream, mut offsets: [u64; 2]) -> Result<(), Fault> {
    let number = retained.attach();
    if retained.is_block() {
        stream.be_patient();
    }
    let mut told_end = false;
    loop {
        let (changed, heard) = (retained.changed(), stream.changed());
        retained.check_attached(number)?;
        let room = stream.room_now().ok_or_else(cancelled)?;
        if let (Some(end), false) = (retained.end(), told_end) {
            told_end = true;
            let wrote = Wrote { stdout: end.wrote[0], stderr: end.wrote[1] };
            stream.message(Kind::Event, &ExecutionEvent::Exited { execution: retained.state(), wrote }).await;
            continue;
        }
        if retained.is_finished(offsets) {
            retained.check_guest()?;
            stream.message(Kind::End, &ExecutionEnd { execution: retained.state() }).await;
            return Ok(());
        }
        match next_output(retained, &mut offsets, room) {
            Some((index, offset, content)) => stream.output(DATA_CHANNELS[index], offset, content).await,
            None => tokio::select! {
                () = changed => {}
                () = heard => {}
            },
        }
    }
}

/// What is next and fits into `room` bytes of credit: its channel, its offset and itself.
fn next_output(retained: &Retained, offsets: &mut [u64; 2], room: usize) -> Option<(usize, u64, Excerpt)> {
    if room == 0 {
        return None;
    }
    CHANNELS.into_iter().find_map(|index| {
        let (offset, content) = retained.read(index, offsets[index], room)?;
        offsets[index] = offset + content.len() as u64;
        Some((index, offset, content))
    })
}
