//! Operations on the TCP ports of the guest's loopback.

use super::open::arguments;
use super::stream::{Arrival, Stream};
use super::transfer::cancelled;
use crate::guest::{Guest, PortConnection};
use crate::server::Server;
use serde_bytes::Bytes;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use wire::frame::{Frame, Kind};
use wire::limits::{PORT_CONNECTIONS_MAX, PORT_WAITS_MAX};
use wire::message::{CHANNEL_OUT, Data, Empty, Event};
use wire::port::{PortListEnd, PortRequest, PortWaitRequest, check_port};
use wire::{ErrorCode, Fault};

/// An operation with its arguments.
pub enum Operation {
    List,
    Wait(PortWaitRequest),
    Connect(PortRequest),
}

/// The operation that a frame asks for; `None` when it is none of these. Error `BAD_ARGUMENT`.
pub fn operation(op: &str, frame: &Frame<'_>) -> Option<Result<Operation, Fault>> {
    Some(match op {
        "port-list" => Ok(Operation::List),
        "port-wait" => arguments(frame).map(Operation::Wait),
        "port-connect" => arguments(frame).map(Operation::Connect),
        _ => return None,
    })
}

/// Sends END itself when all went well.
pub async fn perform<G: Guest>(server: &Server<G>, stream: &Stream, operation: Operation) -> Result<(), Fault> {
    let ports = server.guest.ports();
    let ports = ports.ok_or_else(|| Fault::new(ErrorCode::UnknownOp, "this guest agent knows nothing of ports"))?;
    match operation {
        Operation::List => {
            let ports = unless_abandoned(stream, ports.list()).await?;
            stream.message(Kind::End, &PortListEnd { ports }).await;
        }
        Operation::Wait(PortWaitRequest { port, timeout_ms }) => {
            let _slot = slot(&server.port_waits, "waits for ports", PORT_WAITS_MAX)?;
            let finding = ports.wait(check_port(port)?);
            let found = tokio::select! {
                // What is there at the deadline counts.
                biased;
                found = unless_abandoned(stream, finding) => found?,
                _ = tokio::time::sleep(Duration::from_millis(timeout_ms)) => {
                    return Err(Fault::new(ErrorCode::TimedOut, format!("nothing has come to listen on port {port}")));
                }
            };
            stream.message(Kind::End, &found).await;
        }
        Operation::Connect(PortRequest { port }) => {
            let _slot = slot(&server.port_connections, "connections to ports", PORT_CONNECTIONS_MAX)?;
            let connection = unless_abandoned(stream, ports.connect(check_port(port)?)).await?;
            stream.message(Kind::Event, &Event::Connected {}).await;
            let relaying = async {
                tokio::try_join!(to_host(&*connection, stream), to_server(&*connection, stream))?;
                connection.finish().await
            };
            unless_abandoned(stream, relaying).await?;
            stream.message(Kind::End, &Empty {}).await;
        }
    }
    Ok(())
}

async fn unless_abandoned<T>(stream: &Stream, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    tokio::select! {
        biased;
        done = work => done,
        _ = stream.abandoned() => Err(cancelled()),
    }
}

fn slot<'a>(slots: &'a Semaphore, what: &str, max: usize) -> Result<SemaphorePermit<'a>, Fault> {
    slots.try_acquire().map_err(|_| Fault::new(ErrorCode::Limit, format!("there are {max} {what}")))
}

/// Reads only when the host can take it, so that the credit reaches the server as back-pressure.
async fn to_host(connection: &dyn PortConnection, stream: &Stream) -> Result<(), Fault> {
    loop {
        if stream.room().await == 0 {
            return Err(cancelled());
        }
        let bytes = connection.read().await?;
        if bytes.is_empty() {
            let end = Data { channel: CHANNEL_OUT, content: Bytes::new(&[]), eof: true };
            stream.message(Kind::Data, &end).await;
            return Ok(());
        }
        stream.send_data(CHANNEL_OUT, &bytes).await;
    }
}

async fn to_server(connection: &dyn PortConnection, stream: &Stream) -> Result<(), Fault> {
    loop {
        match stream.receive().await {
            Arrival::Bytes(bytes) => connection.write(&bytes).await?,
            Arrival::Complete => return connection.end().await,
            Arrival::Abandoned => return Err(cancelled()),
        }
    }
}
