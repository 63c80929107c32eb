//! What a guest can do, as the server needs it. The VM agent and the process-sandbox supervisor implement this;
//! bytes always travel through pipes, so that the doer may be another process.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use tokio::net::unix::pipe;
use wire::execution::TerminalSize;
use wire::file_request::*;
use wire::limits::OUTPUT_KEPT_MAX;
use wire::port::ListeningPort;
use wire::request::*;
use wire::{ErrorCode, Fault};

/// A future that lives on the server's single thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The guest behind the server. One value serves every connection; methods are called concurrently on one
/// thread inside a `tokio::task::LocalSet`, and dropping a returned future must leave nothing behind.
#[allow(async_fn_in_trait)]
pub trait Guest: 'static {
    /// What WELCOME says about this guest.
    fn description(&self) -> Description;

    /// Starts a command (`request.program()` has been checked). Returns once it runs. Errors:
    /// `PROGRAM_NOT_FOUND`, `PROGRAM_DENIED`, `SPAWN_FAILED`, `NOT_FOUND` (cwd), `GONE`.
    async fn exec(&self, request: ExecRequest) -> Result<Execution, Fault>;

    /// Starts a command as the leader of a session that has a terminal of its own. Errors as of `exec`, `LIMIT` when
    /// there are no more terminals, `CAPABILITY` where there are none at all.
    async fn exec_on_terminal(&self, _: ExecRequest, _: TerminalSize) -> Result<TerminalExecution, Fault> {
        Err(Fault::new(ErrorCode::Capability, "this guest has no terminals"))
    }

    /// Bytes of output that all executions may keep for a host that is away.
    fn output_kept_max(&self) -> u64 {
        OUTPUT_KEPT_MAX
    }

    /// Opens a regular file and begins to send its content.
    async fn read_file(&self, request: ReadFileRequest) -> Result<FileDownload, Fault>;

    /// Begins to take a file's content.
    async fn write_file(&self, request: WriteFileRequest) -> Result<FileUpload, Fault>;

    /// Begins an operation on files whose bytes, possibly none, go to the host. Returns when what it is about was
    /// found. Errors: those of `files::perform`, `INTERRUPTED`, `LIMIT` (too many of its kind), `GONE`.
    async fn file(&self, request: FileRequest) -> Result<Download, Fault>;

    /// Begins an operation on files that takes bytes from the host. Errors as of `file`; most come at the end.
    async fn file_upload(&self, request: FileUploadRequest) -> Result<Upload, Fault>;

    /// Begins a walk. A walk that fails before its first byte may say so here or in `ended`.
    async fn manifest(&self, request: ManifestRequest) -> Result<ManifestDownload, Fault>;

    /// Stops the guest and returns at once. Called after the answer has been sent; there is no later error.
    fn shutdown(&self, request: ShutdownRequest);

    /// Facet: the guest has an identity of its own that can be reset.
    fn identity(&self) -> Option<&dyn ResetIdentity> {
        None
    }

    /// Facet: the guest has a wall clock of its own that can be set.
    fn clock(&self) -> Option<&dyn SetClock> {
        None
    }

    /// Facet: the folders that the host shares with the guest are there.
    fn has_shared_folders(&self) -> bool {
        false
    }

    /// Facet: interactive shells on a terminal.
    fn shells(&self) -> Option<&dyn OpenShell> {
        None
    }

    /// Facet: TCP ports of the guest's loopback.
    fn ports(&self) -> Option<&dyn Ports> {
        None
    }
}

/// Who answers.
#[derive(Clone, Debug)]
pub struct Description {
    /// Program and version, such as `fluxvm-guest-agent/0.1.0`.
    pub agent: String,
    /// `vm` or `procbox`.
    pub mode: &'static str,
    /// Differs whenever the guest agent process is a different one.
    pub boot: String,
}

/// A running command. Dropping it stops neither the command nor what it started.
pub struct Execution {
    pub pid: u32,
    /// Present when `request.stdin` asked for it. Dropping it is end-of-file for the command.
    pub stdin: Option<pipe::Sender>,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub control: Box<dyn Control>,
    /// Ready when the command's main process has ended and, with `request.kill_group`, everything that it left
    /// behind has been killed. `GONE` when the guest ended under it.
    pub ended: LocalFuture<Result<Ended, Fault>>,
}

/// A running command on a terminal. Dropping it hangs the terminal up.
pub struct TerminalExecution {
    pub pid: u32,
    /// The terminal's master side, non-blocking.
    pub master: OwnedFd,
    pub control: Box<dyn Control>,
    /// As of [`Execution`].
    pub ended: LocalFuture<Result<Ended, Fault>>,
}

/// How to act on a running command. Both are no-ops once it has ended.
pub trait Control {
    /// Sends `signal` (1 … 64) to the command's process group. Error `BAD_ARGUMENT`, or `GONE`.
    fn signal(&self, signal: i32) -> Result<(), Fault>;

    /// Kills everything the command started, as far as this guest can tell (group, control group).
    fn kill_all(&self);
}

/// How a command ended. The guest's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub status: ExitStatus,
    pub oom_killed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

/// A file on its way to the host: `bytes` until end-of-file, then `ended`, with the number of bytes sent.
pub struct FileDownload {
    /// Bytes it had when it was opened.
    pub size: u64,
    /// Its permission bits and set-id bits (07777).
    pub mode: u32,
    pub bytes: pipe::Receiver,
    pub ended: LocalFuture<Result<u64, Fault>>,
}

/// A file on its way into the guest. `bytes` takes the form of `wire::chunks`: u32 big-endian length and that
/// many bytes, again and again; length 0 commits. End-of-file before that leaves the old content in place.
pub struct FileUpload {
    pub bytes: pipe::Sender,
    /// The size of the file now in place.
    pub ended: LocalFuture<Result<u64, Fault>>,
}

/// Bytes on their way to the host, until end-of-file; then `ended`. Dropping it stops what makes them.
pub struct Download {
    pub opened: Opened,
    pub bytes: pipe::Receiver,
    pub ended: LocalFuture<Result<FileSummary, Fault>>,
}

/// Bytes on their way into the guest, in the form of a [`FileUpload`].
pub struct Upload {
    pub bytes: pipe::Sender,
    pub ended: LocalFuture<Result<FileSummary, Fault>>,
}

/// A listing on its way to the host: `bytes` until end-of-file, then `ended`. Dropping it stops the walk.
pub struct ManifestDownload {
    pub bytes: pipe::Receiver,
    pub ended: LocalFuture<Result<ManifestSummary, Fault>>,
}

/// Facet of a guest that is cloned with its memory.
pub trait ResetIdentity {
    /// Does what it can and reports the rest.
    fn reset_identity(&self, request: ResetIdentityRequest) -> IdentityReport;
}

/// Facet of a guest whose wall clock is not the host's, and stands still while the guest does.
pub trait SetClock {
    /// Error `BAD_ARGUMENT` for a time that the clock does not have, `CAPABILITY` without the right to set it.
    fn set_clock(&self, request: SetClockRequest) -> Result<(), Fault>;
}

/// Facet of a guest with terminals.
pub trait OpenShell {
    /// Starts a login shell of `cols` × `rows`. Error `SPAWN_FAILED`.
    fn open_shell(&self, cols: u16, rows: u16) -> Result<Shell, Fault>;
}

/// A shell on a terminal. Dropping it hangs the terminal up.
pub struct Shell {
    /// The terminal's master side, non-blocking.
    pub master: OwnedFd,
    /// Ready when the shell has ended.
    pub ended: LocalFuture<()>,
}

/// Facet of a guest whose TCP ports can be seen and connected to. Ports are from 1. Dropping a future ends what it is about.
pub trait Ports {
    /// By port, then address. Errors `CAPABILITY`, `LIMIT`, `INTERRUPTED`, `GONE`.
    fn list(&self) -> LocalFuture<Result<Vec<ListeningPort>, Fault>>;

    /// Ready when something listens on the port of the loopback; nothing is connected to find out. Errors as of `list`.
    fn wait(&self, port: u16) -> LocalFuture<Result<ListeningPort, Fault>>;

    /// Connects to the port of the loopback. Errors `REFUSED`, `TIMED_OUT`, and as of `list`.
    fn connect(&self, port: u16) -> LocalFuture<Result<Box<dyn PortConnection>, Fault>>;
}

/// A future that borrows what made it.
pub type BorrowingFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A connection to a port. Each direction ends by itself; dropping it before it is finished breaks it off, which the
/// server can tell from an end. Errors `BROKEN`, `INTERRUPTED`.
pub trait PortConnection {
    /// The next bytes from the server, none after its last.
    fn read(&self) -> BorrowingFuture<'_, Result<Vec<u8>, Fault>>;

    /// Ready when more may be written.
    fn write<'a>(&'a self, bytes: &'a [u8]) -> BorrowingFuture<'a, Result<(), Fault>>;

    /// Nothing more is written.
    fn end(&self) -> BorrowingFuture<'_, Result<(), Fault>>;

    /// To be called when both directions have ended: ready when nothing is on the way any more.
    fn finish(&self) -> BorrowingFuture<'_, Result<(), Fault>>;
}
