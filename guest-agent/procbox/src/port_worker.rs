//! The port worker: a process of the sandbox, with its rights and no more, that looks at the sandbox's sockets and
//! connects to them for the supervisor. Each request brings a socket of its own, on which the answer and then the bytes
//! of a connection travel; so nothing that one of them does holds up another.

use crate::control;
use crate::limits::*;
use crate::sys::packet::{self, Packet};
use crate::sys::process;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ports::{Connection, Network};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;
use wire::port::ListeningPort;
use wire::{ErrorCode, Fault};

/// What the worker is asked. The other end of the answer's socket comes along.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum PortJob {
    List,
    Wait { port: u16 },
    Connect { port: u16 },
}

/// What it answers: `Taken` first. `Listening` may come again and again, the last time empty; after `Connected` each
/// packet is a [`Piece`].
#[derive(Debug, Serialize, Deserialize)]
pub enum PortReply {
    Taken,
    Listening(Vec<ListeningPort>),
    Connected,
    Failed(Fault),
}

/// What goes through a connection. The last from the worker is `Finished` or `Broken`; a socket that is closed before
/// means that the other process has left or given up.
pub enum Piece {
    Bytes(Vec<u8>),
    /// This direction has ended.
    End,
    /// Both directions have ended, and the server has everything.
    Finished,
    /// The connection broke, in both directions.
    Broken,
}

/// First byte of a packet that is a piece.
const BYTES: u8 = 0;
const END: u8 = 1;
const FINISHED: u8 = 2;
const BROKEN: u8 = 3;

impl Piece {
    /// Sends bytes, or the end when there are none.
    pub async fn send(socket: &AsyncFd<OwnedFd>, bytes: &[u8]) -> io::Result<()> {
        let kind = if bytes.is_empty() { END } else { BYTES };
        packet::send_watched(socket, &[&[kind], bytes].concat(), &[]).await
    }

    /// The next piece; none when the other process has left.
    pub async fn receive(socket: &AsyncFd<OwnedFd>) -> io::Result<Option<Self>> {
        let Some(mut body) = packet::receive_body_watched(socket).await? else { return Ok(None) };
        Ok(Some(match body.first() {
            Some(&BYTES) => {
                body.remove(0);
                Self::Bytes(body)
            }
            Some(&END) => Self::End,
            Some(&FINISHED) => Self::Finished,
            Some(&BROKEN) => Self::Broken,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }))
    }
}

/// Serves the supervisor through `socket`, in a process that init just forked. Never returns.
pub fn run(socket: OwnedFd, network: Network) -> ! {
    process::exit_with(|| i32::from(serve(socket, network).is_err()))
}

fn serve(socket: OwnedFd, network: Network) -> io::Result<()> {
    process::close_all_except(&[0, 1, 2, socket.as_raw_fd()])?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(PORT_LOOKS_MAX).build()?;
    LocalSet::new().block_on(&runtime, listen(socket, network))
}

async fn listen(socket: OwnedFd, network: Network) -> io::Result<()> {
    let socket = packet::watched(socket)?;
    while let Some(Packet { body, mut descriptors }) = packet::receive_watched(&socket).await? {
        let (job, content) = (control::decode(&body)?, descriptors.pop().ok_or(io::ErrorKind::InvalidData)?);
        let answer = packet::watched(content)?;
        tokio::task::spawn_local(async move {
            // Whoever asked may have left.
            let _ = perform(network, job, &answer).await;
        });
    }
    Ok(())
}

async fn perform(network: Network, job: PortJob, answer: &AsyncFd<OwnedFd>) -> Result<(), Fault> {
    say(answer, &PortReply::Taken).await?;
    let result = tokio::select! {
        result = begin(network, job) => result,
        () = left(answer) => return Ok(()),
    };
    match result {
        Ok(Begun::Found(ports)) => {
            for part in ports.chunks(PORTS_IN_PACKET_MAX) {
                say(answer, &PortReply::Listening(part.to_vec())).await?;
            }
            say(answer, &PortReply::Listening(Vec::new())).await
        }
        Ok(Begun::Connected(connection)) => {
            say(answer, &PortReply::Connected).await?;
            let relaying =
                async { tokio::try_join!(to_supervisor(&connection, answer), to_server(&connection, answer)) };
            let last = tokio::select! {
                relayed = relaying => if relayed.is_ok() { FINISHED } else { BROKEN },
                // Whatever the server does: it may read nothing, and it may say nothing for ever.
                () = left(answer) => return Ok(()),
            };
            packet::send_watched(answer, &[last], &[]).await.map_err(abandoned)
        }
        Err(fault) => say(answer, &PortReply::Failed(fault)).await,
    }
}

enum Begun {
    Found(Vec<ListeningPort>),
    Connected(Connection),
}

async fn begin(network: Network, job: PortJob) -> Result<Begun, Fault> {
    Ok(match job {
        PortJob::List => Begun::Found(network.list().await?),
        PortJob::Wait { port } => Begun::Found(vec![network.wait(port).await?]),
        PortJob::Connect { port } => Begun::Connected(network.connect(port).await?),
    })
}

async fn say(answer: &AsyncFd<OwnedFd>, reply: &PortReply) -> Result<(), Fault> {
    packet::send_watched(answer, &control::encode(reply), &[]).await.map_err(abandoned)
}

async fn to_supervisor(connection: &Connection, socket: &AsyncFd<OwnedFd>) -> Result<(), Fault> {
    loop {
        let bytes = connection.read().await?;
        Piece::send(socket, &bytes).await.map_err(abandoned)?;
        if bytes.is_empty() {
            return Ok(());
        }
    }
}

async fn to_server(connection: &Connection, socket: &AsyncFd<OwnedFd>) -> Result<(), Fault> {
    loop {
        let bytes = match Piece::receive(socket).await.map_err(abandoned)? {
            Some(Piece::Bytes(bytes)) => bytes,
            Some(Piece::End) => return connection.end(),
            _ => return Err(abandoned(io::ErrorKind::ConnectionReset.into())),
        };
        connection.write(&bytes).await?;
    }
}

/// Ready soon after the other end of `socket` was closed, whatever still lies in it unread.
async fn left(socket: &AsyncFd<OwnedFd>) {
    loop {
        tokio::time::sleep(Duration::from_millis(ABANDONED_LOOK_MS)).await;
        let mut watched = [PollFd::new(socket.get_ref().as_fd(), PollFlags::empty())];
        // A hang-up is reported without being asked for.
        if poll(&mut watched, PollTimeout::ZERO).is_ok() && watched[0].any().unwrap_or(true) {
            return;
        }
    }
}

fn abandoned(error: io::Error) -> Fault {
    Fault::new(ErrorCode::Cancelled, format!("the supervisor has left: {error}"))
}
