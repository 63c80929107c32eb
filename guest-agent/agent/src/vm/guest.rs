//! What a virtual machine can do, for the server: commands as children of this process, file operations on
//! threads with this process's rights.

use super::command::{self, Running};
use super::options::Options;
use super::ports::MachinePorts;
use super::{clock, identity, power, shell};
use files::{Links, Manifests, Root};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use service::*;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::task::{JoinError, spawn_blocking};
use wire::chunks::ChunkReader;
use wire::execution::TerminalSize;
use wire::file_request::{FileRequest, FileUploadRequest};
use wire::limits::OUTPUT_KEPT_MAX;
use wire::request::*;
use wire::{ErrorCode, Fault};

const WORKER_PIPE_SIZE: usize = 1 << 20;

/// What executions keep for a host that is away is at most this part of the machine's memory.
const OUTPUT_MEMORY_SHARE: u64 = 8;

pub struct VmGuest {
    boot: String,
    root_path: PathBuf,
    root: Arc<Root>,
    manifests: Arc<Mutex<Manifests>>,
    running: Rc<Running>,
    /// Whether this is the machine's own service, so that stopping the guest means switching it off.
    owns_machine: bool,
    /// Whether every folder that the host shares with the machine is mounted.
    pub has_shared_folders: bool,
}

impl VmGuest {
    /// The message says what about the root directory is wrong.
    pub fn new(options: &Options) -> Result<Self, String> {
        let root = || {
            rustix::fs::open(&options.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map(|directory| Root::new(directory, Links::Follow))
                .map_err(|errno| format!("{}: {errno}", options.root.display()))
        };
        Ok(Self {
            boot: identity::random_hex().map_err(|errno| format!("no random numbers: {errno}"))?,
            root_path: options.root.clone(),
            root: Arc::new(root()?),
            manifests: Arc::new(Mutex::new(Manifests::new(root()?, Manifests::threads_default()))),
            running: Rc::default(),
            owns_machine: options.owns_machine(),
            has_shared_folders: false,
        })
    }
}

impl Guest for VmGuest {
    fn description(&self) -> Description {
        Description { agent: crate::NAME.into(), mode: "vm", boot: self.boot.clone() }
    }

    async fn exec(&self, request: ExecRequest) -> Result<Execution, Fault> {
        command::start(&self.running, &request)
    }

    async fn exec_on_terminal(&self, request: ExecRequest, size: TerminalSize) -> Result<TerminalExecution, Fault> {
        command::start_on_terminal(&self.running, &request, size)
    }

    fn output_kept_max(&self) -> u64 {
        let memory = rustix::system::sysinfo();
        let bytes = u64::from(memory.mem_unit).saturating_mul(memory.totalram as u64);
        (bytes / OUTPUT_MEMORY_SHARE).min(OUTPUT_KEPT_MAX)
    }

    async fn read_file(&self, request: ReadFileRequest) -> Result<FileDownload, Fault> {
        let root = self.root.clone();
        let file = spawn_blocking(move || files::open_file(&root, &request)).await.map_err(panicked)??;
        let (bytes, mut filler) = from_worker()?;
        let (size, mode) = (file.size, file.mode);
        let sending = spawn_blocking(move || file.send(&mut filler));
        Ok(FileDownload { size, mode, bytes, ended: Box::pin(async { sending.await.map_err(panicked)? }) })
    }

    async fn write_file(&self, request: WriteFileRequest) -> Result<FileUpload, Fault> {
        let root = self.root.clone();
        let (bytes, source) = to_worker()?;
        let writing = spawn_blocking(move || files::write_file(&root, &request, &mut ChunkReader::new(source)));
        Ok(FileUpload { bytes, ended: Box::pin(async { writing.await.map_err(panicked)? }) })
    }

    async fn file(&self, request: FileRequest) -> Result<Download, Fault> {
        let root = self.root.clone();
        let (bytes, filler) = from_worker()?;
        let (told, opened) = oneshot::channel();
        let working = spawn_blocking(move || {
            if matches!(request, FileRequest::Watch(_)) {
                own_directory()?;
            }
            let tell = |opened| told.send(opened).map_err(|_| Fault::new(ErrorCode::Cancelled, "nobody waits"));
            files::perform(&root, &request, tell, filler)
        });
        match opened.await {
            Ok(opened) => Ok(Download { opened, bytes, ended: Box::pin(async { working.await.map_err(panicked)? }) }),
            Err(_) => Err(match working.await.map_err(panicked)? {
                Ok(_) => Fault::new(ErrorCode::Internal, "an operation that never began has ended"),
                Err(fault) => fault,
            }),
        }
    }

    async fn file_upload(&self, request: FileUploadRequest) -> Result<Upload, Fault> {
        let root = self.root.clone();
        let (bytes, source) = to_worker()?;
        let working = spawn_blocking(move || files::perform_upload(&root, &request, &mut ChunkReader::new(source)));
        Ok(Upload { bytes, ended: Box::pin(async { working.await.map_err(panicked)? }) })
    }

    async fn manifest(&self, request: ManifestRequest) -> Result<ManifestDownload, Fault> {
        let (bytes, mut filler) = from_worker()?;
        let cancel = CancelOnDrop::default();
        let cancelled = cancel.0.clone();
        let manifests = self.manifests.clone();
        let walking = spawn_blocking(move || {
            // A walk that panicked has left the cache as it was before.
            let mut manifests = manifests.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            manifests.run(&request, &cancelled, &mut filler)
        });
        let ended = Box::pin(async move {
            let _cancel = cancel;
            walking.await.map_err(panicked)?
        });
        Ok(ManifestDownload { bytes, ended })
    }

    fn shutdown(&self, request: ShutdownRequest) {
        tokio::task::spawn_local(power::stop(self.running.clone(), request.grace_ms, self.owns_machine));
    }

    fn identity(&self) -> Option<&dyn ResetIdentity> {
        Some(self)
    }

    fn has_shared_folders(&self) -> bool {
        self.has_shared_folders
    }

    fn clock(&self) -> Option<&dyn SetClock> {
        self.owns_machine.then_some(self)
    }

    fn shells(&self) -> Option<&dyn OpenShell> {
        Some(self)
    }

    fn ports(&self) -> Option<&dyn Ports> {
        Some(&MachinePorts)
    }
}

impl ResetIdentity for VmGuest {
    fn reset_identity(&self, request: ResetIdentityRequest) -> IdentityReport {
        identity::reset(&self.root, &self.root_path, &request)
    }
}

impl SetClock for VmGuest {
    fn set_clock(&self, request: SetClockRequest) -> Result<(), Fault> {
        clock::set(request)
    }
}

impl OpenShell for VmGuest {
    fn open_shell(&self, cols: u16, rows: u16) -> Result<Shell, Fault> {
        shell::open(cols, rows)
    }
}

/// Gives a walk up when nobody waits for it any more.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives the calling thread a working directory that no other thread shares.
fn own_directory() -> Result<(), Fault> {
    // SAFETY: only the working directory, the root and the umask of this thread become its own; descriptors stay shared.
    let unshared = unsafe { unshare_unsafe(UnshareFlags::FS) };
    unshared.map_err(|errno| Fault::new(ErrorCode::Internal, format!("no working directory of its own: {errno}")))
}

/// The fault of a task that panicked.
pub fn panicked(_: JoinError) -> Fault {
    Fault::new(ErrorCode::Internal, "the operation failed inside the guest agent")
}

/// A pipe that a worker fills.
fn from_worker() -> Result<(pipe::Receiver, File), Fault> {
    let (reader, writer) = new_pipe()?;
    // Fewer changes between the two sides; where so much is not allowed the usual size does too.
    let _ = fcntl_setpipe_size(&writer, WORKER_PIPE_SIZE);
    Ok((pipe::Receiver::from_owned_fd(reader).map_err(no_pipe)?, writer.into()))
}

/// A pipe that a worker empties.
fn to_worker() -> Result<(pipe::Sender, File), Fault> {
    let (reader, writer) = new_pipe()?;
    Ok((pipe::Sender::from_owned_fd(writer).map_err(no_pipe)?, reader.into()))
}

/// A pipe: reading end, writing end.
pub fn new_pipe() -> Result<(OwnedFd, OwnedFd), Fault> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|errno| no_pipe(errno.into()))
}

/// The fault of a pipe that could not be had.
pub fn no_pipe(error: std::io::Error) -> Fault {
    Fault::new(ErrorCode::Internal, format!("no pipe: {error}"))
}
