//! Version 2: one connection with many streams. This file reads the frames and hands each to its stream.

mod exec;
mod executions;
mod files;
mod open;
mod outbox;
mod ports;
mod stream;
mod transfer;

use crate::guest::Guest;
use crate::server::{HANDSHAKE_TIMEOUT, Server};
use outbox::Outbox;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use stream::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::spawn_local;
use tokio::time::timeout;
use wire::frame::{Frame, Kind, encode, parse};
use wire::limits::*;
use wire::message::{Beat, CreditGrant, Data, Failure, Hello, Open, Welcome};
use wire::preamble::Nonce;
use wire::{ErrorCode, Fault};

const READ_SIZE: usize = 128 << 10;
/// Room for what a host says first.
const HELLO_SIZE: usize = 1 << 10;

/// Streams that are open, by id.
type Table = Rc<RefCell<HashMap<u32, Rc<Stream>>>>;

/// The frame that says who serves, and what it can do.
pub fn welcome<G: Guest>(guest: &G) -> Vec<u8> {
    let description = guest.description();
    let mut features = vec!["exec", "executions", "files", "file-streams", "manifest"];
    features.extend(guest.ports().is_some().then_some("ports"));
    features.extend(guest.shells().is_some().then_some("shell"));
    features.extend(guest.identity().is_some().then_some("identity"));
    features.extend(guest.clock().is_some().then_some("clock"));
    features.extend(guest.has_shared_folders().then_some("shared-folders"));
    let welcome = Welcome {
        version: 2,
        agent: description.agent,
        mode: description.mode.into(),
        boot: description.boot,
        features: features.into_iter().map(Into::into).collect(),
    };
    encode(0, Kind::Welcome, &welcome)
}

/// Serves a connection whose preamble has been read.
pub async fn serve<G: Guest>(
    server: Rc<Server<G>>,
    nonce: Nonce,
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin + 'static,
) {
    let mut buffer = Vec::with_capacity(HELLO_SIZE);
    // Without what streams need: on a machine that has just begun, a host waits for every piece of code that runs here.
    let greeting = greet(&server, nonce, &mut reader, &mut buffer, &mut writer);
    match timeout(HANDSHAKE_TIMEOUT, greeting).await.unwrap_or_else(|_| Err(Fault::protocol("no HELLO in time"))) {
        Ok(true) => {}
        Ok(false) => return,
        Err(fault) => {
            let last_words = encode(0, Kind::Error, &Failure::from(fault));
            // A host that does not read does not learn what it did wrong.
            let _ = timeout(HANDSHAKE_TIMEOUT, send(&mut writer, &last_words)).await;
            return;
        }
    }
    let (outbox, queue) = outbox::channel();
    let writing = spawn_local(queue.write_to(writer));
    let mut connection = Connection { server, outbox, table: Table::default(), stream_last: 0 };
    if let Err(fault) = connection.run(buffer, reader).await {
        let last_words = async {
            connection.outbox.message(0, Kind::Error, &Failure::from(fault)).await;
            connection.outbox.flush().await;
        };
        let _ = timeout(HANDSHAKE_TIMEOUT, last_words).await;
    }
    for stream in connection.table.take().into_values() {
        stream.detach();
    }
    // Operations that still run hold the outbox too, and there is nobody to read what they would say.
    writing.abort();
    // Until then it may hold the writer, which on a device the next connection uses.
    let _ = writing.await;
}

/// Answers the preamble and HELLO; `false` when the host left. What follows HELLO stays in `buffer`.
async fn greet<G: Guest>(
    server: &Server<G>,
    nonce: Nonce,
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<bool, Fault> {
    if send(writer, &nonce.line()).await.is_err() {
        return Ok(false);
    }
    loop {
        if let Some((frame, size)) = parse(buffer)? {
            admit(server, frame)?;
            buffer.drain(..size);
            return Ok(send(writer, &server.welcome).await.is_ok());
        }
        if !matches!(reader.read_buf(buffer).await, Ok(count) if count > 0) {
            return Ok(false);
        }
    }
}

fn admit<G>(server: &Server<G>, frame: Frame<'_>) -> Result<(), Fault> {
    if (frame.stream, frame.kind) != (0, Kind::Hello) {
        return Err(Fault::protocol("the first frame is not HELLO"));
    }
    let hello: Hello = frame.message()?;
    server.authority.admit(Some(&hello.token))?;
    if !hello.versions.contains(&2) {
        return Err(Fault::protocol("no version in common; this guest agent speaks 2"));
    }
    Ok(())
}

async fn send(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
}

struct Connection<G> {
    server: Rc<Server<G>>,
    outbox: Outbox,
    table: Table,
    /// Highest stream id opened; ids are never used again.
    stream_last: u32,
}

impl<G: Guest> Connection<G> {
    /// Goes on behind what was read already. Ends with `Ok` when the host left, with a fault when it broke the protocol.
    async fn run(&mut self, mut buffer: Vec<u8>, mut reader: impl AsyncRead + Unpin) -> Result<(), Fault> {
        loop {
            let mut taken = 0;
            while let Some((frame, size)) = parse(&buffer[taken..])? {
                self.take(frame).await?;
                taken += size;
            }
            buffer.drain(..taken);
            if !fill(&mut reader, &mut buffer).await {
                return Ok(());
            }
        }
    }

    async fn take(&mut self, frame: Frame<'_>) -> Result<(), Fault> {
        match (frame.stream, frame.kind) {
            (0, Kind::Ping) => {
                let beat: Beat = frame.message()?;
                self.outbox.message(0, Kind::Pong, &beat).await;
                Ok(())
            }
            (0, Kind::Pong) => Ok(()),
            (id @ 1.., Kind::Open) => self.open(id, frame).await,
            (id @ 1.., Kind::Data | Kind::Credit | Kind::Cancel) => {
                if id > self.stream_last {
                    return Err(Fault::protocol(format!("stream {id} was never opened")));
                }
                match self.table.borrow().get(&id) {
                    Some(stream) => pass(stream, frame),
                    None => Ok(()),
                }
            }
            (id, kind) => Err(Fault::protocol(format!("an unexpected {kind:?} frame on stream {id}"))),
        }
    }

    async fn open(&mut self, id: u32, frame: Frame<'_>) -> Result<(), Fault> {
        if id <= self.stream_last {
            return Err(Fault::protocol(format!("stream id {id} was used before")));
        }
        self.stream_last = id;
        if self.table.borrow().len() >= STREAMS_MAX {
            let fault = Fault::new(ErrorCode::TooManyStreams, format!("{STREAMS_MAX} streams are open"));
            self.outbox.message(id, Kind::Error, &Failure::from(fault)).await;
            return Ok(());
        }
        let Open { op } = frame.message()?;
        let operation = open::operation(op, &frame);
        let stream = Rc::new(Stream::new(id, self.outbox.clone()));
        self.table.borrow_mut().insert(id, stream.clone());
        spawn_local(open::answer(self.server.clone(), self.table.clone(), stream, operation));
        Ok(())
    }
}

fn pass(stream: &Stream, frame: Frame<'_>) -> Result<(), Fault> {
    match frame.kind {
        Kind::Data => {
            let data: Data<'_> = frame.message()?;
            data.check()?;
            stream.take_data(&data)
        }
        Kind::Credit => {
            let grant: CreditGrant = frame.message()?;
            stream.take_credit(grant.n)
        }
        _ => {
            stream.cancel();
            Ok(())
        }
    }
}

/// Reads more; `false` at the end of the connection.
async fn fill(reader: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> bool {
    buffer.reserve(READ_SIZE);
    matches!(reader.read_buf(buffer).await, Ok(count) if count > 0)
}
