//! The trusted half of a process sandbox: it listens for the agent, has init do what is asked, and records the
//! end. It has no rights but its own user's, and nothing that happens inside the sandbox ends it.

mod channel;
mod commands;
mod pipes;
mod ports;
mod terminals;
mod workers;

use crate::cgroup::{Leaves, OomCounter};
use crate::config::LaunchConfig;
use crate::control::Status;
use crate::limits::*;
use crate::report::{EndReason, ExitRecord, ExitRecordPlace, InitStatus};
use crate::sys::process::{self, Reaped};
use channel::Channel;
use commands::Commands;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SndBuf;
use nix::unistd::Pid;
use ports::Ports;
use service::{
    Authority, Description, Download, Execution, FileDownload, FileUpload, Guest, ManifestDownload, Server,
    TerminalExecution, Upload,
};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use terminals::Terminals;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use wire::execution::TerminalSize;
use wire::file_request::{FileRequest, FileUploadRequest};
use wire::request::*;
use wire::{ErrorCode, Fault};
use workers::Workers;

/// What the launcher leaves to the supervisor.
pub struct Inheritance {
    init: Pid,
    terminals: Terminals,
    control: OwnedFd,
    listener: net::UnixListener,
    token: Vec<u8>,
    peer_uid: u32,
    leaves: Option<Leaves>,
    oom_counter: OomCounter,
    exit_record: ExitRecordPlace,
    boot: String,
}

/// Opens what the supervisor needs, with its own rights.
pub fn inherit(
    config: &LaunchConfig,
    init: Pid,
    terminals: Result<OwnedFd, String>,
    control: OwnedFd,
    listener: net::UnixListener,
    token: Vec<u8>,
    exit_record: ExitRecordPlace,
) -> io::Result<Inheritance> {
    let work = config.cgroup.as_ref().and_then(|paths| paths.work_v2.as_deref());
    let leaves = match work.map(|work| Leaves::open(work, config.sandbox_uid)) {
        Some(Err(error)) if error.kind() == io::ErrorKind::Unsupported => None,
        Some(opened) => Some(opened?),
        None => None,
    };
    listener.set_nonblocking(true)?;
    Ok(Inheritance {
        init,
        terminals: Terminals { mount: terminals },
        control,
        listener,
        token,
        peer_uid: config.peer_uid,
        leaves,
        oom_counter: OomCounter::open(config.cgroup.as_ref()),
        exit_record,
        boot: format!("{}-{}", config.id, crate::report::start_ticks(init.as_raw())?),
    })
}

/// Serves until the sandbox has ended, and records that. Gives the exit status of the process.
pub fn serve(inheritance: Inheritance) -> i32 {
    let served = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| LocalSet::new().block_on(&runtime, supervise(inheritance)));
    i32::from(served.is_err())
}

async fn supervise(inheritance: Inheritance) -> io::Result<()> {
    let Inheritance { init, terminals, control, listener, token, peer_uid, leaves, oom_counter, exit_record, boot } =
        inheritance;
    let mut terminated = signal(SignalKind::terminate())?;
    let channel = Channel::new(control)?;
    let workers = Workers::new(channel.clone());
    let sandbox = Rc::new(Sandbox {
        commands: Commands::new(channel.clone(), leaves, oom_counter, terminals),
        ports: Ports::new(workers.clone()),
        workers,
        channel,
        boot,
        stopping: Cell::new(false),
    });
    let server = Server::new(SharedSandbox(sandbox.clone()), Authority::token(&token));
    drop(token);
    let accepting = tokio::task::spawn_local(accept(UnixListener::from_std(listener)?, peer_uid, server.clone()));
    let mut hearing = std::pin::pin!(sandbox.channel.hear(|message| sandbox.commands.heard(message)));
    loop {
        tokio::select! {
            () = &mut hearing => break,
            _ = terminated.recv() => {
                server.hang_up();
                sandbox.stop(TERM_GRACE_MS);
            }
        }
    }
    sandbox.commands.gone();
    let init_status = end_of(init).await;
    let reason = if sandbox.stopping.get() { EndReason::Shutdown } else { EndReason::InitDied };
    let ended_at_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let written = exit_record.write(&ExitRecord { ended_at_unix_ms, reason, init_status });
    // Whoever waits for an operation gets its answer first.
    tokio::time::sleep(Duration::from_millis(FAREWELL_MS)).await;
    accepting.abort();
    written
}

/// Serves connections of the agent's user and closes all others.
async fn accept(listener: UnixListener, peer_uid: u32, server: Rc<Server<SharedSandbox>>) {
    let slots = std::sync::Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| peer.uid() == peer_uid) => {
                // As much as the host allows: it works with less.
                let _ = setsockopt(&stream, SndBuf, &SEND_BUFFER_SIZE);
                let server = server.clone();
                tokio::task::spawn_local(async move {
                    server.serve(stream).await;
                    drop(slot);
                });
            }
            Ok(_) => (),
            // Out of descriptors or the like: others end, then it goes on.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// How init ended. Its end-of-file came first, so it is ending; a stopped one is not waited for.
async fn end_of(init: Pid) -> Option<InitStatus> {
    for _ in 0..KILL_MS_MAX {
        match process::reap(Some(init)) {
            Ok(Reaped::Child(_, Status::Code(code))) => return Some(InitStatus::ExitCode(code)),
            Ok(Reaped::Child(_, Status::Signal(signal))) => return Some(InitStatus::Signal(signal)),
            Ok(Reaped::NoneEnded) => tokio::time::sleep(Duration::from_millis(1)).await,
            Ok(Reaped::NoChildren) | Err(_) => return None,
        }
    }
    None
}

/// The sandbox as the service sees it.
struct Sandbox {
    channel: Channel,
    commands: Commands,
    workers: Workers,
    ports: Ports,
    boot: String,
    stopping: Cell<bool>,
}

impl Sandbox {
    fn stop(&self, grace_ms: u64) {
        self.stopping.set(true);
        // A channel that is full or closed belongs to a sandbox that is ending already or hears nothing; the agent
        // kills the supervisor then, whose end is init's.
        let _ = self.channel.send(&crate::control::ToInit::Shutdown { grace_ms }, Vec::new());
    }
}

/// The fault of everything that is asked of a sandbox that has ended.
fn gone() -> Fault {
    Fault::new(ErrorCode::Gone, "the sandbox has ended")
}

fn internal(error: impl std::fmt::Display) -> Fault {
    Fault::new(ErrorCode::Internal, error.to_string())
}

/// One sandbox, shared by the server and the supervisor's own tasks.
struct SharedSandbox(Rc<Sandbox>);

impl Guest for SharedSandbox {
    fn description(&self) -> Description {
        Description {
            agent: concat!("fluxvm-guest-agent/", env!("CARGO_PKG_VERSION")).into(),
            mode: "procbox",
            boot: self.0.boot.clone(),
        }
    }

    async fn exec(&self, request: ExecRequest) -> Result<Execution, Fault> {
        self.0.commands.start(request).await
    }

    async fn exec_on_terminal(&self, request: ExecRequest, size: TerminalSize) -> Result<TerminalExecution, Fault> {
        self.0.commands.start_on_terminal(request, size).await
    }

    async fn read_file(&self, request: ReadFileRequest) -> Result<FileDownload, Fault> {
        self.0.workers.read_file(request).await
    }

    async fn write_file(&self, request: WriteFileRequest) -> Result<FileUpload, Fault> {
        self.0.workers.write_file(request).await
    }

    async fn file(&self, request: FileRequest) -> Result<Download, Fault> {
        self.0.workers.file(request).await
    }

    async fn file_upload(&self, request: FileUploadRequest) -> Result<Upload, Fault> {
        self.0.workers.file_upload(request).await
    }

    async fn manifest(&self, request: ManifestRequest) -> Result<ManifestDownload, Fault> {
        self.0.workers.manifest(request).await
    }

    fn ports(&self) -> Option<&dyn service::Ports> {
        Some(&self.0.ports)
    }

    fn shutdown(&self, request: ShutdownRequest) {
        self.0.stop(request.grace_ms.min(SHUTDOWN_GRACE_MS_MAX));
    }
}
