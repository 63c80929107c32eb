//! TCP ports of the sandbox through its port worker, which connects inside and relays: descriptors go down only. The
//! worker is started when it is first needed. What it says is the sandbox's claim.

use super::channel;
use super::workers::{Worker, Workers, confused, interrupted};
use crate::control::{self, WorkerKind};
use crate::limits::*;
use crate::port_worker::{Piece, PortJob, PortReply};
use crate::sys::packet;
use service::{BorrowingFuture, LocalFuture, PortConnection};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;
use wire::limits::{PORT_CONNECT_MS_MAX, PORTS_LISTED_MAX};
use wire::port::ListeningPort;
use wire::{ErrorCode, Fault};

/// The ports of the sandbox; copies are one.
#[derive(Clone)]
pub struct Ports(Rc<Shared>);

struct Shared {
    workers: Workers,
    worker: RefCell<Option<Rc<Worker>>>,
}

impl Ports {
    pub fn new(workers: Workers) -> Self {
        Self(Rc::new(Shared { workers, worker: RefCell::default() }))
    }

    async fn list(self) -> Result<Vec<ListeningPort>, Fault> {
        let answer = self.ask(PortJob::List).await?;
        let mut listening = Vec::new();
        loop {
            match answer.hear(PORT_LIST_MS_MAX).await? {
                PortReply::Listening(part) if part.is_empty() => return Ok(listening),
                PortReply::Listening(part) => listening.extend(part),
                PortReply::Failed(fault) => return Err(fault),
                PortReply::Taken | PortReply::Connected => return Err(confused()),
            }
            if listening.len() > PORTS_LISTED_MAX {
                return Err(confused());
            }
        }
    }

    async fn wait(self, port: u16) -> Result<ListeningPort, Fault> {
        let answer = self.ask(PortJob::Wait { port }).await?;
        match answer.hear_reply().await? {
            PortReply::Listening(mut found) if found.len() == 1 => Ok(found.remove(0)),
            PortReply::Failed(fault) => Err(fault),
            _ => Err(confused()),
        }
    }

    async fn connect(self, port: u16) -> Result<Box<dyn PortConnection>, Fault> {
        let answer = self.ask(PortJob::Connect { port }).await?;
        // It tries two addresses.
        match answer.hear(2 * PORT_CONNECT_MS_MAX + PORT_LIST_MS_MAX).await? {
            PortReply::Connected => Ok(Box::new(answer)),
            PortReply::Failed(fault) => Err(fault),
            PortReply::Taken | PortReply::Listening(_) => Err(confused()),
        }
    }

    /// A worker that was killed or stopped inside the sandbox is found out here and replaced, once. One that was killed
    /// may still look alive, for as long as its kernel has not come to its end; that it has not taken the job tells.
    async fn ask(&self, job: PortJob) -> Result<Answer, Fault> {
        let worker = self.worker()?;
        if let Ok(answer) = Answer::of(worker.clone(), job).await {
            return Ok(answer);
        }
        // Another request may have replaced it already.
        self.0.worker.borrow_mut().take_if(|kept| Rc::ptr_eq(kept, &worker));
        Answer::of(self.worker()?, job).await
    }

    fn worker(&self) -> Result<Rc<Worker>, Fault> {
        let mut kept = self.0.worker.borrow_mut();
        if let Some(worker) = kept.as_ref().filter(|worker| worker.is_alive()) {
            return Ok(worker.clone());
        }
        let worker = Rc::new(self.0.workers.start(WorkerKind::Ports)?);
        *kept = Some(worker.clone());
        Ok(worker)
    }
}

impl service::Ports for Ports {
    fn list(&self) -> LocalFuture<Result<Vec<ListeningPort>, Fault>> {
        Box::pin(self.clone().list())
    }

    fn wait(&self, port: u16) -> LocalFuture<Result<ListeningPort, Fault>> {
        Box::pin(self.clone().wait(port))
    }

    fn connect(&self, port: u16) -> LocalFuture<Result<Box<dyn PortConnection>, Fault>> {
        Box::pin(self.clone().connect(port))
    }
}

/// The supervisor's end of one request: its answer, then the bytes of a connection.
struct Answer {
    socket: AsyncFd<OwnedFd>,
    worker: Rc<Worker>,
}

impl Answer {
    /// Hands a job over, and waits until the worker has taken it.
    async fn of(worker: Rc<Worker>, job: PortJob) -> Result<Self, Fault> {
        let (socket, theirs) = channel::pair()?;
        let sent = packet::send_watched(worker.socket(), &control::encode(&job), &[theirs]).await;
        sent.map_err(|_| interrupted())?;
        let answer = Self { socket, worker };
        match answer.hear(PORT_LIST_MS_MAX).await? {
            PortReply::Taken => Ok(answer),
            _ => Err(confused()),
        }
    }

    /// As [`Self::hear_reply`], within `timeout_ms`: a stopped worker is given up with all that it carries.
    async fn hear(&self, timeout_ms: u64) -> Result<PortReply, Fault> {
        match timeout(Duration::from_millis(timeout_ms), self.hear_reply()).await {
            Ok(reply) => reply,
            Err(_) => {
                self.worker.kill();
                Err(interrupted())
            }
        }
    }

    async fn hear_reply(&self) -> Result<PortReply, Fault> {
        match packet::receive_body_watched(&self.socket).await {
            Ok(Some(body)) => control::decode(&body).map_err(|_| confused()),
            Ok(None) | Err(_) => Err(interrupted()),
        }
    }

    async fn send(&self, bytes: &[u8]) -> Result<(), Fault> {
        if Piece::send(&self.socket, bytes).await.is_ok() {
            return Ok(());
        }
        // The worker has closed this socket because the connection broke, or with all others because it ends. Whoever
        // reads is told which; where nobody reads any more, this is how it shows.
        tokio::time::sleep(Duration::from_millis(WORKER_END_MS)).await;
        Err(if self.worker.is_alive() { broken() } else { interrupted() })
    }
}

impl PortConnection for Answer {
    fn read(&self) -> BorrowingFuture<'_, Result<Vec<u8>, Fault>> {
        Box::pin(async {
            match Piece::receive(&self.socket).await {
                // Only an end has no bytes.
                Ok(Some(Piece::Bytes(bytes))) if bytes.is_empty() => Err(confused()),
                Ok(Some(Piece::Bytes(bytes))) => Ok(bytes),
                Ok(Some(Piece::End)) => Ok(Vec::new()),
                Ok(Some(Piece::Broken)) => Err(broken()),
                Ok(Some(Piece::Finished)) => Err(confused()),
                Ok(None) | Err(_) => Err(interrupted()),
            }
        })
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> BorrowingFuture<'a, Result<(), Fault>> {
        Box::pin(async {
            for piece in bytes.chunks(PORT_PIECE_SIZE) {
                self.send(piece).await?;
            }
            Ok(())
        })
    }

    fn end(&self) -> BorrowingFuture<'_, Result<(), Fault>> {
        Box::pin(self.send(&[]))
    }

    fn finish(&self) -> BorrowingFuture<'_, Result<(), Fault>> {
        Box::pin(async {
            match Piece::receive(&self.socket).await {
                Ok(Some(Piece::Finished)) => Ok(()),
                Ok(Some(Piece::Broken)) => Err(broken()),
                Ok(Some(_)) => Err(confused()),
                Ok(None) | Err(_) => Err(interrupted()),
            }
        })
    }
}

fn broken() -> Fault {
    Fault::new(ErrorCode::Broken, "the connection broke off")
}
