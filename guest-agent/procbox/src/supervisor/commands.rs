//! Commands from the request to the end: their pipes, their leaf, what init says about them, and that whatever
//! happens on the way leaves nothing running unseen.

use super::channel::Channel;
use super::terminals::Terminals;
use super::{gone, internal, pipes};
use crate::cgroup::{Leaf, Leaves, OomCounter};
use crate::control::{self, Command, FromInit, StartStep, Status, ToInit};
use crate::limits::*;
use crate::spawner::SCRIPT_DESCRIPTOR;
use crate::sys::packet::sealed_file;
use crate::sys::terminal::Terminal;
use serde_bytes::ByteBuf;
use service::{Control, Ended, Execution, ExitStatus, LocalFuture, TerminalExecution};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::timeout;
use wire::execution::TerminalSize;
use wire::limits::EXECUTIONS_MAX;
use wire::request::{ExecRequest, Program};
use wire::{ErrorCode, Fault};

/// A command that runs: its pid, how to act on it, and its end.
type Run = (u32, Box<dyn Control>, LocalFuture<Result<Ended, Fault>>);

/// All commands of the sandbox; copies are one table.
#[derive(Clone)]
pub struct Commands(Rc<Table>);

struct Table {
    channel: Channel,
    leaves: Option<Leaves>,
    oom_counter: OomCounter,
    terminals: Terminals,
    next: Cell<u64>,
    is_gone: Cell<bool>,
    running: RefCell<HashMap<u64, Running>>,
}

/// A command that init has been told of and has not told the end of.
struct Running {
    leaf: Option<Rc<Leaf>>,
    started: Option<oneshot::Sender<Result<i32, i32>>>,
    ended: Option<oneshot::Sender<Status>>,
}

impl Commands {
    pub fn new(channel: Channel, leaves: Option<Leaves>, oom_counter: OomCounter, terminals: Terminals) -> Self {
        Self(Rc::new(Table {
            channel,
            leaves,
            oom_counter,
            terminals,
            next: Cell::new(1),
            is_gone: Cell::new(false),
            running: RefCell::default(),
        }))
    }

    /// Takes what init says.
    pub fn heard(&self, message: FromInit) {
        let mut running = self.0.running.borrow_mut();
        match message {
            FromInit::Spawned { execution, pid } => {
                let started = running.get_mut(&execution).and_then(|it| it.started.take());
                let _ = started.map(|started| started.send(Ok(pid)));
            }
            FromInit::NotSpawned { execution, errno } => {
                // Without its `ended` the watcher cleans up.
                let Some(it) = running.get_mut(&execution) else { return };
                it.ended = None;
                let _ = it.started.take().map(|started| started.send(Err(errno)));
            }
            FromInit::Exited { execution, status } => {
                let ended = running.get_mut(&execution).and_then(|it| it.ended.take());
                let _ = ended.map(|ended| ended.send(status));
            }
            FromInit::Up | FromInit::Failed { .. } => (),
        }
    }

    /// The sandbox has ended: everything that is waited for is told so.
    pub fn gone(&self) {
        self.0.is_gone.set(true);
        self.0.running.borrow_mut().clear();
    }

    /// Starts a command. Errors: `BAD_ARGUMENT`, `LIMIT`, `NOT_FOUND` (the working directory), `PROGRAM_NOT_FOUND`,
    /// `PROGRAM_DENIED`, `SPAWN_FAILED`, `GONE`.
    pub async fn start(&self, request: ExecRequest) -> Result<Execution, Fault> {
        let (streams, theirs) = Streams::open(request.stdin).map_err(internal)?;
        let (pid, control, ended) = self.run(&request, theirs, false).await?;
        Ok(Execution { pid, stdin: streams.stdin, stdout: streams.stdout, stderr: streams.stderr, control, ended })
    }

    /// As [`Self::start`], on a terminal. Further errors: `CAPABILITY`, `LIMIT` when there are no more.
    pub async fn start_on_terminal(
        &self,
        request: ExecRequest,
        size: TerminalSize,
    ) -> Result<TerminalExecution, Fault> {
        let Terminal { master, slave } = self.0.terminals.open(size)?;
        let copy = || slave.try_clone().map_err(internal);
        let theirs = [copy()?, copy()?, slave];
        let (pid, control, ended) = self.run(&request, theirs, true).await?;
        Ok(TerminalExecution { pid, master, control, ended })
    }

    /// Runs a command with the standard streams `theirs`, which are closed here once it has them.
    async fn run(&self, request: &ExecRequest, theirs: [OwnedFd; 3], has_terminal: bool) -> Result<Run, Fault> {
        let (command, script) = command_of(request, self.0.leaves.is_some(), has_terminal)?;
        let program = command.argv[0].clone();
        let (mut status, their_status) = pipes::from_sandbox().map_err(internal)?;
        let descriptors = theirs.into_iter().chain([their_status]).chain(script).collect();
        let (id, started, ended) = self.hand_over(command, descriptors, request.kill_group)?;
        let mut unfinished = Unfinished { commands: self.clone(), id, armed: true };
        let pid = match timeout(Duration::from_millis(EXEC_START_MS_MAX), started).await {
            Ok(Ok(Ok(pid))) => pid,
            Ok(Ok(Err(errno))) => return Err(not_started("cannot fork", errno)),
            Ok(Err(_)) => return Err(gone()),
            Err(_) => return Err(Fault::new(ErrorCode::SpawnFailed, "the command was not forked in time")),
        };
        started_or_why(&mut status, &program).await?;
        unfinished.armed = false;
        let control = Box::new(Handle { commands: self.clone(), id });
        Ok((pid as u32, control, Box::pin(async { ended.await.map_err(|_| gone()) })))
    }

    /// Enters the command in the table, tells init, and sets a watcher on its end.
    #[allow(clippy::type_complexity)]
    fn hand_over(
        &self,
        command: Command,
        mut descriptors: Vec<OwnedFd>,
        kill_group: bool,
    ) -> Result<(u64, oneshot::Receiver<Result<i32, i32>>, oneshot::Receiver<Ended>), Fault> {
        if self.0.is_gone.get() {
            return Err(gone());
        }
        if self.0.running.borrow().len() >= EXECUTIONS_MAX {
            return Err(Fault::new(ErrorCode::Limit, format!("{EXECUTIONS_MAX} commands are running")));
        }
        let leaf = match &self.0.leaves {
            Some(leaves) => Some(Rc::new(leaves.acquire().map_err(internal)?)),
            None => None,
        };
        if let Some(leaf) = &leaf {
            descriptors.push(leaf.directory().try_clone_to_owned().map_err(internal)?);
        }
        let id = self.0.next.replace(self.0.next.get() + 1);
        let spawn = ToInit::Spawn { execution: id, command: ByteBuf::from(control::encode(&command)) };
        let (started_sender, started) = oneshot::channel();
        let (status_sender, status) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let entry = Running { leaf: leaf.clone(), started: Some(started_sender), ended: Some(status_sender) };
        self.0.running.borrow_mut().insert(id, entry);
        let kills_before = self.0.oom_counter.kills();
        let watch = self.clone().watch(id, leaf, kill_group, kills_before, status, ended_sender);
        tokio::task::spawn_local(watch);
        self.0.channel.send(&spawn, descriptors).inspect_err(|_| {
            self.0.running.borrow_mut().remove(&id);
        })?;
        Ok((id, started, ended))
    }

    /// Sees a command to its end, whether or not anybody waits for it, and gives its leaf back.
    async fn watch(
        self,
        id: u64,
        leaf: Option<Rc<Leaf>>,
        kill_group: bool,
        kills_before: u64,
        status: oneshot::Receiver<Status>,
        ended: oneshot::Sender<Ended>,
    ) {
        let status = status.await;
        if let (Some(leaf), true) = (&leaf, kill_group || status.is_err()) {
            leaf.empty().await;
        }
        self.0.running.borrow_mut().remove(&id);
        if let (Some(leaves), Some(leaf)) = (&self.0.leaves, leaf.and_then(Rc::into_inner)) {
            leaves.release(leaf);
        }
        let Ok(status) = status else { return };
        let status = match status {
            Status::Code(code) => ExitStatus::Code(code),
            Status::Signal(signal) => ExitStatus::Signal(signal),
        };
        let _ = ended.send(Ended { status, oom_killed: self.0.oom_counter.kills() > kills_before });
    }

    fn kill(&self, id: u64) {
        let leaf = self.0.running.borrow().get(&id).map(|running| running.leaf.clone());
        match leaf {
            Some(Some(leaf)) if leaf.kill().is_ok() => (),
            // A queue that is full or closed belongs to a sandbox that is ending.
            Some(_) => drop(self.0.channel.send(&ToInit::KillTree { execution: id }, Vec::new())),
            None => (),
        }
    }
}

/// Kills a command that nobody got hold of.
struct Unfinished {
    commands: Commands,
    id: u64,
    armed: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.armed {
            self.commands.kill(self.id);
        }
    }
}

struct Handle {
    commands: Commands,
    id: u64,
}

impl Control for Handle {
    fn signal(&self, signal: i32) -> Result<(), Fault> {
        if !(1..=libc::SIGRTMAX()).contains(&signal) {
            return Err(Fault::bad_argument(format!("there is no signal {signal}")));
        }
        if self.commands.0.is_gone.get() {
            return Err(gone());
        }
        self.commands.0.channel.send(&ToInit::Signal { execution: self.id, signal }, Vec::new())
    }

    fn kill_all(&self) {
        self.commands.kill(self.id);
    }
}

/// Our ends of a command's pipes.
struct Streams {
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl Streams {
    /// New pipes: our ends and theirs.
    fn open(wants_stdin: bool) -> io::Result<(Self, [OwnedFd; 3])> {
        let (stdin, their_stdin) = if wants_stdin {
            let (sender, theirs) = pipes::input()?;
            (Some(sender), theirs)
        } else {
            // Standard input of this process is /dev/null.
            (None, io::stdin().as_fd().try_clone_to_owned()?)
        };
        let (stdout, their_stdout) = pipes::output()?;
        let (stderr, their_stderr) = pipes::output()?;
        Ok((Self { stdin, stdout, stderr }, [their_stdin, their_stdout, their_stderr]))
    }
}

/// The command as the spawner takes it. A shell command too long for an argument is read from a descriptor.
fn command_of(request: &ExecRequest, has_leaf: bool, has_terminal: bool) -> Result<(Command, Option<OwnedFd>), Fault> {
    let shell = |text: &str| ["/bin/sh", "-c", text].map(str::to_owned).to_vec();
    let (argv, script) = match request.program()? {
        Program::Argv(argv) => (argv.to_vec(), None),
        Program::Shell(text) if text.len() <= INLINE_COMMAND_BYTES_MAX => (shell(text), None),
        Program::Shell(text) => {
            let script = sealed_file(text.as_bytes()).map_err(internal)?;
            let number = SCRIPT_DESCRIPTOR;
            // The text is read whole and the descriptor closed before its first command runs.
            (shell(&format!("eval \"exec {number}<&-; $(cat <&{number})\"")), Some(script))
        }
    };
    let command = Command {
        argv,
        env: request.env.clone().into_iter().collect(),
        cwd: request.cwd.clone(),
        has_script: script.is_some(),
        has_leaf,
        has_terminal,
        kill_group: request.kill_group,
    };
    Ok((command, script))
}

/// Waits until the command's execve has closed the status pipe, or tells why it did not come to that.
async fn started_or_why(status: &mut pipe::Receiver, program: &str) -> Result<(), Fault> {
    let mut message = Vec::new();
    let mut bounded = status.take(16);
    match timeout(Duration::from_millis(EXEC_START_MS_MAX), bounded.read_to_end(&mut message)).await {
        Ok(Ok(0)) => Ok(()),
        Ok(Ok(_)) => {
            let (step, errno) = StartStep::decode(&message);
            Err(match step {
                StartStep::WorkingDirectory => {
                    let code = if errno == libc::ENOENT || errno == libc::ENOTDIR {
                        ErrorCode::NotFound
                    } else {
                        ErrorCode::Denied
                    };
                    Fault::new(code, format!("cannot enter cwd: {}", describe(errno)))
                }
                StartStep::Setup => not_started("cannot prepare the command", errno),
                StartStep::Execute => Fault::not_executed(program, &describe(errno)),
            })
        }
        Ok(Err(error)) => Err(internal(error)),
        Err(_) => Err(Fault::new(ErrorCode::SpawnFailed, "the command did not start in time")),
    }
}

fn not_started(what: &str, errno: i32) -> Fault {
    Fault::new(ErrorCode::SpawnFailed, format!("{what}: {}", describe(errno)))
}

fn describe(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
