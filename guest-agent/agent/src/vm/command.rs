//! Commands of a virtual machine: children in process groups of their own.

use super::guest::{new_pipe, no_pipe, panicked};
use super::{oom, terminal};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use service::{Control, Ended, Execution, ExitStatus, LocalFuture, TerminalExecution};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::rc::Rc;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::task::spawn_local;
use wire::execution::TerminalSize;
use wire::limits::ARGUMENT_MAX;
use wire::request::{ExecRequest, Program};
use wire::{ErrorCode, Fault};

const SHELL: &str = "/bin/sh";
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The process groups of the commands that run.
#[derive(Default)]
pub struct Running {
    groups: RefCell<BTreeSet<u32>>,
}

impl Running {
    pub fn is_empty(&self) -> bool {
        self.groups.borrow().is_empty()
    }

    pub fn signal_all(&self, signal: i32) {
        for group in self.groups.borrow().iter() {
            signal_group(*group, signal);
        }
    }
}

/// Starts the command of `request`. Errors: `PROGRAM_NOT_FOUND`, `PROGRAM_DENIED`, `SPAWN_FAILED`, and `NOT_FOUND` or
/// `NOT_DIRECTORY` for its directory.
pub fn start(running: &Rc<Running>, request: &ExecRequest) -> Result<Execution, Fault> {
    let (mut command, script) = prepare(request)?;
    let (stdout, child_stdout) = new_pipe()?;
    let (stderr, child_stderr) = new_pipe()?;
    let (stdin, child_stdin) = if request.stdin {
        let (reader, writer) = new_pipe()?;
        (Some(pipe::Sender::from_owned_fd(writer).map_err(no_pipe)?), Stdio::from(reader))
    } else {
        (None, Stdio::null())
    };
    command.stdin(child_stdin).stdout(child_stdout).stderr(child_stderr).process_group(0);
    let (pid, control, ended) = spawn(running, request, command, script)?;
    Ok(Execution {
        pid,
        stdin,
        stdout: pipe::Receiver::from_owned_fd(stdout).map_err(no_pipe)?,
        stderr: pipe::Receiver::from_owned_fd(stderr).map_err(no_pipe)?,
        control,
        ended,
    })
}

/// As [`start`], on a terminal. Further errors: `CAPABILITY`, `LIMIT`.
pub fn start_on_terminal(
    running: &Rc<Running>,
    request: &ExecRequest,
    size: TerminalSize,
) -> Result<TerminalExecution, Fault> {
    let (mut command, script) = prepare(request)?;
    let (master, name) = terminal::open(size).map_err(|errno| {
        let code = match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => ErrorCode::Capability,
            Errno::NOSPC => ErrorCode::Limit,
            _ => ErrorCode::SpawnFailed,
        };
        Fault::new(code, format!("no terminal: {errno}"))
    })?;
    terminal::give(&mut command, name);
    let (pid, control, ended) = spawn(running, request, command, script)?;
    Ok(TerminalExecution { pid, master, control, ended })
}

/// The command in its directory and with its environment, and what must stay open until it was started.
fn prepare(request: &ExecRequest) -> Result<(Command, Option<File>), Fault> {
    let directory = request.cwd.as_deref().unwrap_or("/");
    check_directory(directory)?;
    let (mut command, script) = program(request)?;
    command.current_dir(directory);
    set_environment(&mut command, request);
    Ok((command, script))
}

type Spawned = (u32, Box<dyn Control>, LocalFuture<Result<Ended, Fault>>);

fn spawn(
    running: &Rc<Running>,
    request: &ExecRequest,
    mut command: Command,
    script: Option<File>,
) -> Result<Spawned, Fault> {
    let name = request.argv.as_ref().map_or(SHELL, |argv| &argv[0]);
    let mut child = command.spawn().map_err(|error| Fault::not_executed(name, &error))?;
    drop((command, script));
    let pid = child.id().expect("it has just been started");
    oom::expose(pid);
    let alive = Rc::new(Cell::new(true));
    running.groups.borrow_mut().insert(pid);
    let control = Group { id: pid, alive: alive.clone() };
    let (running, kill_group) = (running.clone(), request.kill_group);
    // A task of its own waits for it, so that a command that nobody follows leaves no zombie.
    let waiting = spawn_local(async move {
        let waited = child.wait().await;
        if kill_group {
            signal_group(pid, libc::SIGKILL);
        }
        alive.set(false);
        running.groups.borrow_mut().remove(&pid);
        let status = waited.map_err(|error| Fault::new(ErrorCode::Internal, format!("cannot wait: {error}")))?;
        let status = match (status.code(), status.signal()) {
            (Some(code), _) => ExitStatus::Code(code),
            (None, signal) => ExitStatus::Signal(signal.unwrap_or(0)),
        };
        Ok(Ended { status, oom_killed: false })
    });
    let ended = Box::pin(async { waiting.await.map_err(panicked)? });
    Ok((pid, Box::new(control), ended))
}

fn check_directory(directory: &str) -> Result<(), Fault> {
    match std::fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Fault::new(ErrorCode::NotDirectory, format!("cwd {directory}: not a directory"))),
        Err(error) => Err(Fault::new(ErrorCode::NotFound, format!("cwd {directory}: {error}"))),
    }
}

/// The command, and the descriptor that must stay open until it was started.
fn program(request: &ExecRequest) -> Result<(Command, Option<File>), Fault> {
    match request.program()? {
        Program::Argv(argv) => {
            let mut command = Command::new(&argv[0]);
            command.args(&argv[1..]);
            Ok((command, None))
        }
        Program::Shell(text) if text.len() <= ARGUMENT_MAX => {
            let mut command = Command::new(SHELL);
            command.arg("-c").arg(text);
            Ok((command, None))
        }
        Program::Shell(text) => {
            // Longer than one argument may be: the shell reads it from a descriptor that it inherits.
            let script =
                script(text).map_err(|error| Fault::new(ErrorCode::SpawnFailed, format!("no script: {error}")))?;
            let mut command = Command::new(SHELL);
            command.arg(format!("/proc/self/fd/{}", script.as_raw_fd()));
            Ok((command, Some(script)))
        }
    }
}

fn script(text: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("command", MemfdFlags::empty())?);
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// Ours, without what is ours only, and the request's.
fn set_environment(command: &mut Command, request: &ExecRequest) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLUXVM_") {
            command.env_remove(name);
        }
    }
    for (name, value) in [("PATH", PATH_DEFAULT), ("HOME", "/root")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command.envs(&request.env);
}

struct Group {
    id: u32,
    alive: Rc<Cell<bool>>,
}

impl Control for Group {
    fn signal(&self, signal: i32) -> Result<(), Fault> {
        if self.alive.get() {
            signal_group(self.id, signal);
        }
        Ok(())
    }

    fn kill_all(&self) {
        let _ = self.signal(libc::SIGKILL);
    }
}

/// A group without members is no error: it has ended.
fn signal_group(group: u32, signal: i32) {
    // SAFETY: killpg takes no pointers; the group is that of a child which this process has not forgotten.
    unsafe { libc::killpg(group as libc::pid_t, signal) };
}
