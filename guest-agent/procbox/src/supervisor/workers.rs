//! File operations and manifests through worker processes of the sandbox. A worker can be killed or stopped by
//! the sandbox at any moment, and what it says is the sandbox's claim; each operation has one to itself.

use super::channel::{self, Channel};
use super::{internal, pipes};
use crate::control::{self, ToInit, WorkerKind};
use crate::limits::*;
use crate::sys::packet;
use crate::worker::{Job, Reply};
use service::{Download, FileDownload, FileUpload, ManifestDownload, Upload};
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use wire::file_request::{Duration, FileRequest, FileSummary, FileUploadRequest};
use wire::request::{ManifestRequest, ManifestSummary, ReadFileRequest, WriteFileRequest};
use wire::{ErrorCode, Fault};

/// How long a worker may take to notice that nobody wants its job any more, before it is killed.
const CANCEL: std::time::Duration = std::time::Duration::from_secs(5);

/// The workers of the sandbox; copies are one pool.
#[derive(Clone)]
pub struct Workers(Rc<Pool>);

struct Pool {
    channel: Channel,
    next: Cell<u64>,
    slots: Arc<Semaphore>,
    /// Of what lasts as long as a client likes: nobody waits for one, so a client cannot hold the others up.
    transfer_slots: Arc<Semaphore>,
    watch_slots: Arc<Semaphore>,
    idle: RefCell<Vec<Worker>>,
    /// The one that remembers fingerprints and listings; it is kept as long as it lives.
    lister: Arc<Mutex<Option<Worker>>>,
}

impl Workers {
    pub fn new(channel: Channel) -> Self {
        Self(Rc::new(Pool {
            channel,
            next: Cell::new(1),
            slots: Arc::new(Semaphore::new(FILE_WORKERS_MAX)),
            transfer_slots: Arc::new(Semaphore::new(TRANSFERS_MAX)),
            watch_slots: Arc::new(Semaphore::new(WATCHES_MAX)),
            idle: RefCell::default(),
            lister: Arc::default(),
        }))
    }

    /// Opens a file for reading. Errors: those of `files::open_file`, `INTERRUPTED`, `GONE`.
    pub async fn read_file(&self, request: ReadFileRequest) -> Result<FileDownload, Fault> {
        let slot = self.slot().await?;
        let (bytes, theirs) = pipes::from_sandbox().map_err(internal)?;
        let worker = self.begin(&Job::Read(request), theirs).await?;
        let (size, mode) = match worker.hear().await? {
            Reply::Opened { size, mode } => (size, mode & 0o7777),
            Reply::Failed(fault) => {
                self.give_back(worker, slot);
                return Err(fault);
            }
            _ => return Err(confused()),
        };
        let ended = self.finish(worker, slot, |reply| match reply {
            Reply::Moved { size } => Some(size),
            _ => None,
        });
        Ok(FileDownload { size, mode, bytes, ended: Box::pin(ended) })
    }

    /// Begins to write a file. Errors: `INTERRUPTED`, `GONE`; those of `files::write_file` come at the end.
    pub async fn write_file(&self, request: WriteFileRequest) -> Result<FileUpload, Fault> {
        let slot = self.slot().await?;
        let (bytes, theirs) = pipes::to_sandbox().map_err(internal)?;
        let worker = self.begin(&Job::Write(request), theirs).await?;
        let ended = self.finish(worker, slot, |reply| match reply {
            Reply::Moved { size } => Some(size),
            _ => None,
        });
        Ok(FileUpload { bytes, ended: Box::pin(ended) })
    }

    /// Begins an operation on files. Errors: those of `files::perform` up to where it begins, `LIMIT`, `INTERRUPTED`,
    /// `GONE`.
    pub async fn file(&self, request: FileRequest) -> Result<Download, Fault> {
        let slot = match request.duration() {
            Duration::Short => self.slot().await?,
            Duration::Transfer => slot_of(&self.0.transfer_slots, "transfers")?,
            Duration::Watch => slot_of(&self.0.watch_slots, "watches")?,
        };
        let (bytes, theirs) = pipes::from_sandbox().map_err(internal)?;
        let worker = self.begin(&Job::File(request), theirs).await?;
        let opened = match worker.hear().await? {
            Reply::Begun(opened) => opened,
            Reply::Failed(fault) => {
                self.give_back(worker, slot);
                return Err(fault);
            }
            _ => return Err(confused()),
        };
        Ok(Download { opened, bytes, ended: Box::pin(self.finish(worker, slot, summary)) })
    }

    /// Begins to take bytes. Errors: `LIMIT`, `INTERRUPTED`, `GONE`; those of `files::perform_upload` come at the end.
    pub async fn file_upload(&self, request: FileUploadRequest) -> Result<Upload, Fault> {
        let slot = slot_of(&self.0.transfer_slots, "transfers")?;
        let (bytes, theirs) = pipes::to_sandbox().map_err(internal)?;
        let worker = self.begin(&Job::Upload(request), theirs).await?;
        Ok(Upload { bytes, ended: Box::pin(self.finish(worker, slot, summary)) })
    }

    /// Begins a walk. One at a time; the next waits. Errors: `INTERRUPTED`, `GONE`; those of the walk come at the
    /// end.
    pub async fn manifest(&self, request: ManifestRequest) -> Result<ManifestDownload, Fault> {
        let mut lister = self.0.lister.clone().lock_owned().await;
        let (bytes, theirs) = pipes::from_sandbox().map_err(internal)?;
        let worker = self.begin_with(|| lister.take(), &Job::Manifest(request), theirs).await?;
        let (sender, ended) = oneshot::channel();
        tokio::task::spawn_local(list(worker, lister, sender));
        Ok(ManifestDownload { bytes, ended: Box::pin(received(ended)) })
    }

    async fn slot(&self) -> Result<OwnedSemaphorePermit, Fault> {
        self.0.slots.clone().acquire_owned().await.map_err(internal)
    }

    /// Begins a job in an idle worker, or in a new one.
    async fn begin(&self, job: &Job, content: OwnedFd) -> Result<Worker, Fault> {
        self.begin_with(|| self.0.idle.borrow_mut().pop(), job, content).await
    }

    /// Begins a job in the first worker of `kept` that takes it, or in a new one. One that was killed may still look
    /// alive, for as long as its kernel has not come to its end; that it has not taken the job tells.
    async fn begin_with(
        &self,
        mut kept: impl FnMut() -> Option<Worker>,
        job: &Job,
        content: OwnedFd,
    ) -> Result<Worker, Fault> {
        let job = control::encode(job);
        let content = [content];
        while let Some(worker) = kept() {
            if worker.is_alive() && worker.ask(&job, &content).await.is_ok() {
                return Ok(worker);
            }
        }
        let worker = self.start(WorkerKind::Files)?;
        worker.ask(&job, &content).await?;
        Ok(worker)
    }

    /// Starts a worker, which init forks when it hears of it. Errors: `GONE`, `LIMIT`.
    pub fn start(&self, kind: WorkerKind) -> Result<Worker, Fault> {
        let (own, theirs) = channel::pair()?;
        let id = self.0.next.replace(self.0.next.get() + 1);
        let worker = Worker { id, socket: own, channel: self.0.channel.clone() };
        self.0.channel.send(&ToInit::StartWorker { worker: id, kind }, vec![theirs])?;
        Ok(worker)
    }

    /// Keeps a worker that has done its job for the next one, or lets it end.
    fn give_back(&self, worker: Worker, slot: OwnedSemaphorePermit) {
        let mut idle = self.0.idle.borrow_mut();
        if idle.len() < FILE_WORKERS_IDLE_MAX {
            idle.push(worker);
        }
        drop(slot);
    }

    /// Waits for the end of a file job in a task of its own, so that the worker is taken care of in any case.
    fn finish<T: 'static>(
        &self,
        worker: Worker,
        slot: OwnedSemaphorePermit,
        pick: fn(Reply) -> Option<T>,
    ) -> impl Future<Output = Result<T, Fault>> + use<T> {
        let (mut sender, ended) = oneshot::channel();
        let pool = self.clone();
        tokio::task::spawn_local(async move {
            let Some(reply) = worker.hear_while(&mut sender).await else { return };
            let result = match reply {
                Ok(Reply::Failed(fault)) => {
                    pool.give_back(worker, slot);
                    Err(fault)
                }
                Ok(reply) => match pick(reply) {
                    Some(value) => {
                        pool.give_back(worker, slot);
                        Ok(value)
                    }
                    None => Err(confused()),
                },
                Err(fault) => Err(fault),
            };
            let _ = sender.send(result);
        });
        received(ended)
    }
}

fn summary(reply: Reply) -> Option<FileSummary> {
    match reply {
        Reply::Done(summary) => Some(summary),
        _ => None,
    }
}

fn slot_of(slots: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit, Fault> {
    slots.clone().try_acquire_owned().map_err(|_| Fault::new(ErrorCode::Limit, format!("too many {what} at once")))
}

async fn list(
    worker: Worker,
    mut lister: OwnedMutexGuard<Option<Worker>>,
    mut sender: oneshot::Sender<Result<ManifestSummary, Fault>>,
) {
    let Some(reply) = worker.hear_while(&mut sender).await else { return };
    let result = match reply {
        Ok(Reply::Listed(summary)) => Ok(summary),
        Ok(Reply::Failed(fault)) => Err(fault),
        Ok(_) => Err(confused()),
        Err(fault) => Err(fault),
    };
    *lister = Some(worker);
    drop(lister);
    let _ = sender.send(result);
}

async fn received<T>(ended: oneshot::Receiver<Result<T, Fault>>) -> Result<T, Fault> {
    ended.await.unwrap_or_else(|_| Err(interrupted()))
}

/// A worker process, ended when it is dropped.
pub struct Worker {
    id: u64,
    socket: AsyncFd<OwnedFd>,
    channel: Channel,
}

impl Worker {
    /// Hands over an encoded job, and waits until the worker has taken it.
    async fn ask(&self, job: &[u8], content: &[OwnedFd]) -> Result<(), Fault> {
        packet::send_watched(&self.socket, job, content).await.map_err(|_| interrupted())?;
        match self.hear().await? {
            Reply::Taken => Ok(()),
            _ => Err(confused()),
        }
    }

    async fn hear(&self) -> Result<Reply, Fault> {
        match packet::receive_body_watched(&self.socket).await {
            Ok(Some(body)) => control::decode(&body).map_err(|_| confused()),
            Ok(None) | Err(_) => Err(interrupted()),
        }
    }

    /// Hears the end of a job; `None` when nobody waits for it any more and the worker did not notice in time.
    async fn hear_while<T>(&self, sender: &mut oneshot::Sender<T>) -> Option<Result<Reply, Fault>> {
        let mut hearing = std::pin::pin!(self.hear());
        tokio::select! {
            reply = &mut hearing => Some(reply),
            () = sender.closed() => timeout(CANCEL, hearing).await.ok(),
        }
    }

    /// Where it is asked.
    pub fn socket(&self) -> &AsyncFd<OwnedFd> {
        &self.socket
    }

    pub fn kill(&self) {
        // A full queue belongs to an ending sandbox.
        let _ = self.channel.send(&ToInit::KillWorker { worker: self.id }, Vec::new());
    }

    /// Whether its socket is still open. A worker that is dead is found out here or by its next job.
    pub fn is_alive(&self) -> bool {
        let mut watched = [nix::poll::PollFd::new(self.socket.get_ref().as_fd(), nix::poll::PollFlags::POLLIN)];
        // Between jobs a live worker says nothing.
        matches!(nix::poll::poll(&mut watched, nix::poll::PollTimeout::ZERO), Ok(0))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Its socket closes as well, which ends it unless it is stopped.
        self.kill();
    }
}

pub fn interrupted() -> Fault {
    Fault::new(ErrorCode::Interrupted, "the worker of this operation was killed inside the sandbox")
}

pub fn confused() -> Fault {
    Fault::new(ErrorCode::Interrupted, "the worker of this operation answered nonsense")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::packet::Packet;

    type Socket = AsyncFd<OwnedFd>;

    /// Runs `test` with workers, of which one is kept, its own end of that one's socket, and init's of the channel.
    fn run(test: impl AsyncFnOnce(Workers, Socket, Socket)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let (init, theirs) = channel::pair().unwrap();
            let channel = Channel::new(theirs).unwrap();
            let (kept, own) = channel::pair().unwrap();
            let workers = Workers::new(channel.clone());
            workers.0.idle.borrow_mut().push(Worker { id: 1000, socket: kept, channel });
            test(workers, packet::watched(own).unwrap(), init).await;
        });
    }

    async fn receive(socket: &Socket) -> Packet {
        packet::receive_watched(socket).await.unwrap().unwrap()
    }

    fn request() -> ReadFileRequest {
        ReadFileRequest { path: b"/file".to_vec().into(), max: 1 }
    }

    #[test]
    fn a_worker_that_ends_before_it_takes_its_job_is_replaced() {
        run(async |workers, kept, init| {
            let played = async {
                receive(&kept).await;
                drop(kept);
                let mut packet = receive(&init).await;
                if matches!(control::decode(&packet.body).unwrap(), ToInit::KillWorker { worker: 1000 }) {
                    packet = receive(&init).await;
                }
                assert!(matches!(control::decode(&packet.body).unwrap(), ToInit::StartWorker { .. }));
                let new = packet::watched(packet.descriptors.pop().unwrap()).unwrap();
                assert!(matches!(control::decode(&receive(&new).await.body).unwrap(), Job::Read(_)));
                for reply in [Reply::Taken, Reply::Opened { size: 7, mode: 0o600 }] {
                    control::send(new.get_ref().as_fd(), &reply).unwrap();
                }
                new
            };
            let (read, _new) = tokio::join!(workers.read_file(request()), played);
            assert_eq!(read.unwrap().size, 7);
        });
    }

    #[test]
    fn a_job_that_was_taken_is_not_begun_again() {
        run(async |workers, kept, init| {
            let played = async {
                receive(&kept).await;
                control::send(kept.get_ref().as_fd(), &Reply::Taken).unwrap();
                drop(kept);
            };
            let (read, ()) = tokio::join!(workers.read_file(request()), played);
            assert_eq!(read.err().unwrap().code, ErrorCode::Interrupted);
            let next = control::decode(&receive(&init).await.body).unwrap();
            assert!(matches!(next, ToInit::KillWorker { worker: 1000 }), "{next:?}");
        });
    }
}
