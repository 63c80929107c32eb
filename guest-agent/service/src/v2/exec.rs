//! The `exec` operation: a command whose output travels as DATA within credit and whose input comes the same way.

use super::stream::{Arrival, Stream};
use crate::drive::{Sink, Trailing, drive};
use crate::guest::{Control, Ended, ExitStatus, Guest};
use crate::server::Server;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use wire::Fault;
use wire::frame::Kind;
use wire::message::{CHANNEL_ERR, CHANNEL_OUT, Event, ExecEnd, ExecStatus};
use wire::request::ExecRequest;

pub async fn perform<G: Guest>(server: &Rc<Server<G>>, stream: &Rc<Stream>, request: ExecRequest) -> Result<(), Fault> {
    request.program()?;
    let _slot = server.execution_slot()?;
    let timeout = (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms));
    let trailing = if request.kill_group { Trailing::GiveUp } else { Trailing::Wait };
    let output_max = request.output_max;
    let mut execution = server.guest.exec(request).await?;
    let control: Rc<dyn Control> = execution.control.into();
    execution.control = Box::new(Shared(control.clone()));
    stream.set_control(Some(control));
    stream.message(Kind::Event, &Event::Started { pid: execution.pid }).await;
    let stdin = execution.stdin.take();
    let mut out = Channel { stream, number: CHANNEL_OUT, left: output_max };
    let mut err = Channel { stream, number: CHANNEL_ERR, left: output_max };
    let exited = async |ended: Ended| {
        stream.set_control(None);
        stream.message(Kind::Event, &Event::Exited(status(ended, false))).await;
    };
    let driving = drive(execution, timeout, trailing, (&mut out, &mut err), exited);
    let finished = tokio::select! {
        finished = driving => finished?,
        never = feed(stdin, stream) => match never {},
    };
    let end = ExecEnd {
        status: status(finished.ended, finished.timed_out),
        stdout_len: finished.stdout_len,
        stderr_len: finished.stderr_len,
    };
    stream.message(Kind::End, &end).await;
    Ok(())
}

fn status(ended: Ended, timed_out: bool) -> ExecStatus {
    let (exit_code, signal) = match ended.status {
        ExitStatus::Code(code) => (Some(code), None),
        ExitStatus::Signal(signal) => (None, Some(signal)),
    };
    ExecStatus { exit_code, signal, timed_out, oom_killed: ended.oom_killed }
}

/// Passes standard input on until the host has sent everything or has gone, then closes it. Never returns.
async fn feed(stdin: Option<pipe::Sender>, stream: &Stream) -> std::convert::Infallible {
    let mut stdin = stdin;
    while let Arrival::Bytes(bytes) = stream.receive().await {
        if let Some(pipe) = &mut stdin
            && pipe.write_all(&bytes).await.is_err()
        {
            // The command reads no more; what comes now is taken and dropped, so that the host is not held up.
            stdin = None;
        }
    }
    drop(stdin);
    std::future::pending().await
}

/// One output channel of a command.
struct Channel<'a> {
    stream: &'a Stream,
    number: u8,
    /// Bytes of the head that are still to be sent.
    left: u64,
}

impl Sink for Channel<'_> {
    async fn room(&mut self) -> usize {
        match self.left {
            0 => 0,
            left => (self.stream.room().await as u64).min(left) as usize,
        }
    }

    async fn put(&mut self, bytes: &[u8]) {
        self.left -= bytes.len() as u64;
        self.stream.send_data(self.number, bytes).await;
    }
}

/// A control that the driver and the `signal` operation both hold.
struct Shared(Rc<dyn Control>);

impl Control for Shared {
    fn signal(&self, signal: i32) -> Result<(), Fault> {
        self.0.signal(signal)
    }

    fn kill_all(&self) {
        self.0.kill_all();
    }
}
