//! Pid 1 of the sandbox. It is confined like a command, has one thread, forks the spawner and the workers, reaps
//! what ends, and goes when the supervisor goes. Everything below it goes with it.

use crate::cgroup::Memberships;
use crate::config::LaunchConfig;
use crate::confine::{self, Launcher};
use crate::control::{self, FromInit, FromSpawner, ToInit, WorkerKind};
use crate::limits::*;
use crate::minder;
use crate::plan::Plan;
use crate::port_worker;
use crate::spawner;
use crate::sys::packet::{self, Packet};
use crate::sys::process::{self, Forked, Reaped};
use crate::worker;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Everything that init and what it forks need to know.
pub struct Setting {
    pub config: LaunchConfig,
    pub plan: Plan,
    pub groups: Memberships,
    pub launcher: Launcher,
}

/// Becomes the sandbox's init, in a process that was just forked into its namespaces, with a devpts that is not attached
/// yet; without one it makes its own. Tells the supervisor through `control` whether confinement succeeded, serves it,
/// and never returns.
pub fn run(setting: Setting, terminals: Option<OwnedFd>, control: OwnedFd) -> ! {
    process::exit_with(|| live(setting, terminals, control))
}

fn live(setting: Setting, terminals: Option<OwnedFd>, control: OwnedFd) -> i32 {
    let signals = match prepare(&setting, terminals, &control) {
        Ok(signals) => signals,
        Err(message) => {
            let told = control::send(control.as_fd(), &FromInit::Failed { message });
            return if told.is_ok() { 1 } else { 2 };
        }
    };
    let mut init = Init {
        setting,
        control,
        signals,
        spawner: None,
        executions: HashMap::new(),
        workers: HashMap::new(),
        deadline: None,
    };
    let ended = init.serve();
    init.signal_everything(libc::SIGKILL);
    i32::from(ended.is_err())
}

/// Cuts every tie to the launcher's surroundings and enters confinement.
fn prepare(setting: &Setting, terminals: Option<OwnedFd>, control: &OwnedFd) -> Result<SignalFd, String> {
    crate::launch::detach_standard_streams()?;
    let keep: Vec<_> = [0, 1, 2, control.as_raw_fd()]
        .into_iter()
        .chain(setting.groups.descriptors())
        .chain(terminals.as_ref().map(AsRawFd::as_raw_fd))
        .collect();
    process::close_all_except(&keep).map_err(confine::during("closing descriptors"))?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    confine::enter(&setting.config, &setting.plan, &setting.groups, setting.launcher, terminals)?;
    if !setting.plan.namespaces {
        process::adopt_orphans().map_err(confine::during("adopting orphans"))?;
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).map_err(confine::during("blocking signals"))?;
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(confine::during("watching children"))
}

struct Execution {
    id: u64,
    /// Its pid is that of a minder, which answers to [`spawner::KILL_TREE_SIGNAL`].
    minded: bool,
    /// When its minder, which was told to kill it, counts as stopped.
    kill_by: Option<Instant>,
}

struct Spawner {
    pid: Pid,
    socket: OwnedFd,
}

struct Init {
    setting: Setting,
    control: OwnedFd,
    signals: SignalFd,
    spawner: Option<Spawner>,
    /// Running commands by the pid of their main process.
    executions: HashMap<Pid, Execution>,
    /// Workers by pid.
    workers: HashMap<Pid, u64>,
    /// When a shutdown stops waiting.
    deadline: Option<Instant>,
}

impl Init {
    /// Serves until the supervisor is gone or a shutdown is over.
    fn serve(&mut self) -> io::Result<()> {
        // The spawner is ready before the first command asks for it.
        self.start_spawner()?;
        control::send(self.control.as_fd(), &FromInit::Up)?;
        loop {
            if self.deadline.is_some_and(|deadline| self.executions.is_empty() || deadline <= Instant::now()) {
                return Ok(());
            }
            self.kill_overdue();
            let (control_ready, children_ready) = self.wait()?;
            // First the dead, so that a command never goes to a spawner that is gone.
            if children_ready {
                while self.signals.read_signal()?.is_some() {}
                self.reap()?;
            }
            if control_ready {
                match packet::receive(self.control.as_fd()) {
                    Ok(Some(packet)) => self.handle(packet)?,
                    Ok(None) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => (),
                    Err(error) => return Err(error),
                }
            }
        }
    }

    fn wait(&self) -> io::Result<(bool, bool)> {
        let overdue = self.executions.values().filter_map(|execution| execution.kill_by);
        let timeout = match self.deadline.into_iter().chain(overdue).min() {
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        let mut watched = [
            PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut watched, timeout) {
            Err(Errno::EINTR) => return Ok((false, false)),
            other => other?,
        };
        Ok((watched[0].any().unwrap_or(true), watched[1].any().unwrap_or(true)))
    }

    /// Does what the supervisor asks. What makes no sense, or has no target any more, is nothing to end for.
    fn handle(&mut self, packet: Packet) -> io::Result<()> {
        let Ok(message) = control::decode(&packet.body) else { return Ok(()) };
        match message {
            ToInit::Spawn { execution, command } => return self.spawn(execution, &command, &packet.descriptors),
            ToInit::StartWorker { worker, kind } => self.start_worker(worker, kind, packet.descriptors),
            ToInit::KillWorker { worker } => {
                let pid = self.workers.iter().find(|(_, id)| **id == worker).map(|(pid, _)| *pid);
                let _ = pid.map(|pid| process::signal(pid.as_raw(), libc::SIGKILL));
            }
            // A minder's group must not lose its minder.
            ToInit::Signal { execution, signal: libc::SIGKILL } => self.kill_tree(execution),
            ToInit::Signal { execution, signal } => {
                let _ = self.pid_of(execution).map(|pid| process::signal(-pid.as_raw(), signal));
            }
            ToInit::KillTree { execution } => self.kill_tree(execution),
            ToInit::Shutdown { grace_ms } => {
                // Daemons too; the sandbox's own helpers block it.
                self.signal_everything(libc::SIGTERM);
                let grace = Duration::from_millis(grace_ms.min(SHUTDOWN_GRACE_MS_MAX));
                self.deadline = Some(Instant::now() + grace);
            }
        }
        Ok(())
    }

    fn kill_tree(&mut self, execution: u64) {
        let Some((pid, it)) = self.executions.iter_mut().find(|(_, it)| it.id == execution) else { return };
        let _ = if it.minded {
            it.kill_by.get_or_insert_with(|| Instant::now() + Duration::from_millis(MINDER_KILL_MS_MAX));
            // A stopped minder would not hear it.
            process::queue_signal(*pid, spawner::KILL_TREE_SIGNAL)
                .and_then(|()| process::signal(pid.as_raw(), libc::SIGCONT))
        } else {
            process::signal(-pid.as_raw(), libc::SIGKILL)
        };
    }

    /// A command that stops its minder again and again is killed with everything else, like one that killed it.
    fn kill_overdue(&mut self) {
        let now = Instant::now();
        if self.executions.values().any(|it| it.kill_by.is_some_and(|kill_by| kill_by <= now)) {
            self.signal_everything(libc::SIGKILL);
            self.executions.values_mut().for_each(|it| it.kill_by = None);
        }
    }

    fn pid_of(&self, execution: u64) -> Option<Pid> {
        self.executions.iter().find(|(_, it)| it.id == execution).map(|(pid, _)| *pid)
    }

    /// Hands a command to the spawner and tells the supervisor what came of it.
    fn spawn(&mut self, execution: u64, command: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
        let Ok(control::Command { has_leaf, .. }) = control::decode(command) else {
            return control::send(self.control.as_fd(), &FromInit::NotSpawned { execution, errno: libc::EINVAL });
        };
        let minded = !has_leaf;
        let answer = match self.ask_spawner(command, descriptors) {
            Ok(FromSpawner::Pid(pid)) => {
                self.executions.insert(Pid::from_raw(pid), Execution { id: execution, minded, kill_by: None });
                FromInit::Spawned { execution, pid }
            }
            Ok(FromSpawner::Errno(errno)) => FromInit::NotSpawned { execution, errno },
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EINTR);
                FromInit::NotSpawned { execution, errno }
            }
        };
        control::send(self.control.as_fd(), &answer)
    }

    /// One question, one answer. A command of the sandbox may have killed or stopped the spawner, which runs with
    /// its rights; it is replaced then and asked again, which is safe because the command itself gives the answer.
    fn ask_spawner(&mut self, command: &[u8], descriptors: &[OwnedFd]) -> io::Result<FromSpawner> {
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut failure = io::Error::from_raw_os_error(libc::EINTR);
        for _ in 0..SPAWNER_ATTEMPTS_MAX {
            if self.spawner.is_none() {
                self.start_spawner()?;
            }
            let socket = &self.spawner.as_ref().expect("just started").socket;
            let asked = packet::send(socket.as_fd(), command, &borrowed);
            match asked.and_then(|()| packet::receive_body(socket.as_fd())) {
                Ok(Some(answer)) => return control::decode(&answer),
                Ok(None) => (),
                Err(error) => failure = error,
            }
            self.stop_spawner();
        }
        Err(failure)
    }

    fn start_spawner(&mut self) -> io::Result<()> {
        let (own, theirs) = packet::pair()?;
        let wait = nix::sys::time::TimeVal::new(
            (SPAWNER_ANSWER_MS_MAX / 1000) as libc::time_t,
            (SPAWNER_ANSWER_MS_MAX % 1000 * 1000) as libc::suseconds_t,
        );
        nix::sys::socket::setsockopt(&own, nix::sys::socket::sockopt::ReceiveTimeout, &wait)?;
        nix::sys::socket::setsockopt(&own, nix::sys::socket::sockopt::SendTimeout, &wait)?;
        match process::fork()? {
            Forked::Child => spawner::run(&self.setting, theirs),
            Forked::Parent(pid) => self.spawner = Some(Spawner { pid, socket: own }),
        }
        Ok(())
    }

    fn stop_spawner(&mut self) {
        if let Some(spawner) = self.spawner.take() {
            // It may be dead already and is reaped like any child.
            let _ = process::signal(spawner.pid.as_raw(), libc::SIGKILL);
        }
    }

    fn start_worker(&mut self, worker: u64, kind: WorkerKind, mut descriptors: Vec<OwnedFd>) {
        // The supervisor sees a worker that was not started by the end of its socket.
        let Some(socket) = descriptors.pop() else { return };
        match process::fork() {
            Ok(Forked::Child) => match kind {
                WorkerKind::Files => {
                    worker::run(socket, &confine::workspace_inside(&self.setting.config, &self.setting.plan))
                }
                WorkerKind::Ports => port_worker::run(socket, self.setting.plan.network()),
            },
            Ok(Forked::Parent(pid)) => drop(self.workers.insert(pid, worker)),
            Err(_) => (),
        }
    }

    /// Takes every child that has ended, and tells of those the supervisor waits for.
    fn reap(&mut self) -> io::Result<()> {
        while let Reaped::Child(pid, status) = process::reap(None)? {
            if let Some(execution) = self.executions.remove(&pid) {
                let told = if execution.minded { minder::command_status(status) } else { Some(status) };
                let status = told.unwrap_or_else(|| {
                    // What a killed minder leaves has no name: everything goes, workers and spawner too, which are
                    // forked anew when needed.
                    self.signal_everything(libc::SIGKILL);
                    status
                });
                control::send(self.control.as_fd(), &FromInit::Exited { execution: execution.id, status })?;
            } else if self.spawner.as_ref().is_some_and(|spawner| spawner.pid == pid) {
                self.spawner = None;
            } else {
                self.workers.remove(&pid);
            }
        }
        Ok(())
    }

    /// Signals all there is but init. Without a pid namespace it is the Landlock domain that bounds whom it reaches.
    fn signal_everything(&self, signal: i32) {
        let bounded = self.setting.plan.namespaces || self.setting.plan.landlock_abi >= 6;
        assert!(bounded, "the plan refuses a sandbox whose signals could leave it");
        let _ = process::signal(-1, signal);
    }
}
