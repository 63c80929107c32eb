//! The supervisor's end of the control pair: messages to init are queued and never block; what init says is heard
//! until its end.

use super::{gone, internal};
use crate::control::{self, FromInit, ToInit};
use crate::sys::packet;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use wire::{ErrorCode, Fault};

/// Messages that may wait for init, which takes each within microseconds unless it hangs.
const QUEUE_LENGTH_MAX: usize = 2048;

struct Outgoing {
    body: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// A handle; all copies are one channel.
#[derive(Clone)]
pub struct Channel {
    socket: Rc<AsyncFd<OwnedFd>>,
    queue: mpsc::Sender<Outgoing>,
}

impl Channel {
    /// Takes the socket over. Must be called inside a `LocalSet`.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = Rc::new(packet::watched(socket)?);
        let (queue, outgoing) = mpsc::channel(QUEUE_LENGTH_MAX);
        tokio::task::spawn_local(send_all(socket.clone(), outgoing));
        Ok(Self { socket, queue })
    }

    /// Queues a message. Errors: `GONE`, `LIMIT` when init takes none.
    pub fn send(&self, message: &ToInit, descriptors: Vec<OwnedFd>) -> Result<(), Fault> {
        let outgoing = Outgoing { body: control::encode(message), descriptors };
        self.queue.try_send(outgoing).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Fault::new(ErrorCode::Limit, "the sandbox does not answer"),
            mpsc::error::TrySendError::Closed(_) => gone(),
        })
    }

    /// Hears init until it ends or says something unreadable.
    pub async fn hear(&self, mut heard: impl FnMut(FromInit)) {
        while let Ok(Some(body)) = packet::receive_body_watched(&self.socket).await {
            let Ok(message) = control::decode(&body) else { return };
            heard(message);
        }
    }
}

async fn send_all(socket: Rc<AsyncFd<OwnedFd>>, mut outgoing: mpsc::Receiver<Outgoing>) {
    while let Some(Outgoing { body, descriptors }) = outgoing.recv().await {
        if packet::send_watched(&socket, &body, &descriptors).await.is_err() {
            return;
        }
    }
}

/// An end for the supervisor and one for a process of the sandbox.
pub fn pair() -> Result<(AsyncFd<OwnedFd>, OwnedFd), Fault> {
    let (own, theirs) = packet::pair().map_err(internal)?;
    Ok((packet::watched(own).map_err(internal)?, theirs))
}
