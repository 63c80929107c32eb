//! The parent of commands. It lives in the `work` control groups and in the commands' Landlock domain, so that a
//! command is born there and needs no move, which costs the kernel a grace period. Commands are made siblings, so
//! that init reaps them. It runs with the commands' rights and can be killed by them; init then forks another.

use crate::confine;
use crate::confine::landlock::command_domain;
use crate::confine::seccomp::{Shared, for_commands};
use crate::control::{self, Command, FromSpawner, StartStep};
use crate::init::Setting;
use crate::sys::packet::{self, Packet};
use crate::sys::process::{self, Forked, Image, exit_now};
use crate::sys::seccomp::Filter;
use crate::sys::terminal;
use crate::{cgroup, minder, workspace};
use nix::fcntl::{AT_FDCWD, FcntlArg, OFlag, OpenHow, ResolveFlag, fcntl, openat2};
use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// Tells a minder to kill its command with all descendants.
pub const KILL_TREE_SIGNAL: i32 = libc::SIGUSR1;

/// Where a long shell command is read from.
pub const SCRIPT_DESCRIPTOR: RawFd = 3;

const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Descriptors are first moved up here, out of the way of the numbers that the command sees.
const PARKING_DESCRIPTOR_MIN: RawFd = 16;

/// Serves init through `socket`, in a process that init just forked. Never returns.
pub fn run(setting: &Setting, socket: OwnedFd) -> ! {
    process::exit_with(|| i32::from(Spawner::new(setting, socket).and_then(|spawner| spawner.serve()).is_err()))
}

struct Spawner<'a> {
    setting: &'a Setting,
    socket: OwnedFd,
    filter: Filter,
    workspace: PathBuf,
    /// The limit of processes of the user, where no control group limits them.
    processes_max: Option<u64>,
}

impl<'a> Spawner<'a> {
    fn new(setting: &'a Setting, socket: OwnedFd) -> io::Result<Self> {
        setting.groups.join_work()?;
        process::close_all_except(&[0, 1, 2, socket.as_raw_fd()])?;
        if let Some(domain) = command_domain(setting.plan.landlock_abi)? {
            crate::sys::landlock::restrict_self(domain.as_fd())?;
        }
        let counted = setting.config.cgroup.as_ref().is_some_and(cgroup::limits_processes);
        Ok(Self {
            setting,
            socket,
            filter: for_commands(Shared { network: !setting.plan.own_network, ipc: !setting.plan.namespaces }),
            workspace: confine::workspace_inside(&setting.config, &setting.plan),
            processes_max: (!counted).then_some(setting.config.limits.max_processes),
        })
    }

    fn serve(&self) -> io::Result<()> {
        while let Some(packet) = packet::receive(self.socket.as_fd())? {
            if let Err(error) = self.spawn(packet) {
                let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                control::send(self.socket.as_fd(), &FromSpawner::Errno(errno))?;
            }
        }
        Ok(())
    }

    /// Forks a command, which says itself that it is there. So a command that init has not heard of has not run,
    /// whatever was killed on the way, and never will once init has closed the socket.
    fn spawn(&self, packet: Packet) -> io::Result<()> {
        let command: Command = control::decode(&packet.body)?;
        let (has_leaf, kill_group) = (command.has_leaf, command.kill_group);
        let descriptors = Descriptors::take(packet.descriptors, &command)?;
        let is_of_minder = command.has_terminal && !has_leaf;
        let terminal = is_of_minder.then(|| descriptors.standard[0].try_clone()).transpose()?;
        match process::fork_sibling(descriptors.leaf.as_ref().map(AsFd::as_fd))? {
            Forked::Parent(_) => Ok(()),
            Forked::Child => process::exit_with(|| {
                if control::send(self.socket.as_fd(), &FromSpawner::Pid(nix::unistd::getpid().as_raw())).is_err() {
                    return 127;
                }
                let become_command = move || self.become_command(&command, descriptors);
                if has_leaf { become_command() } else { minder::run(kill_group, terminal, become_command) }
            }),
        }
    }

    /// Ends as the command, or with the reason on the status pipe.
    fn become_command(&self, command: &Command, descriptors: Descriptors) -> ! {
        let mut status: Option<std::fs::File> = None;
        let (step, error) = match descriptors.park() {
            Err(error) => (StartStep::Setup, error),
            Ok(parked) => {
                let failed = self.start(command, &parked);
                status = Some(parked.status.into());
                failed
            }
        };
        let message = step.encode(error.raw_os_error().unwrap_or(libc::EINVAL));
        // Without the pipe the supervisor sees a command that ended with 127.
        let _ = status.map(|mut status| status.write_all(&message));
        exit_now(127)
    }

    fn start(&self, command: &Command, descriptors: &Descriptors) -> (StartStep, io::Error) {
        let entered = enter_directory(&self.workspace, command.cwd.as_deref());
        if let Err(error) = entered {
            return (StartStep::WorkingDirectory, error);
        }
        let image = match self.set_up(command, descriptors) {
            Ok(image) => image,
            Err(error) => return (StartStep::Setup, error),
        };
        let path = self.environment(command).into_iter().find(|(name, _)| name == "PATH").map(|(_, value)| value);
        (StartStep::Execute, execute(&image, &command.argv[0], path.as_deref().unwrap_or("")))
    }

    /// Everything between the fork and execve; the filter last, because it refuses some of the calls before it.
    fn set_up(&self, command: &Command, descriptors: &Descriptors) -> io::Result<Image> {
        // A minded command is in its minder's session, so that signals to that group reach it.
        if command.has_leaf {
            nix::unistd::setsid()?;
            if command.has_terminal {
                terminal::control(&descriptors.standard[0])?;
            }
        }
        descriptors.place()?;
        self.limit_resources()?;
        process::reset_signals()?;
        let argv = command.argv.iter().map(|word| c_string(word)).collect::<io::Result<_>>()?;
        let env = self.environment(command).into_iter().map(|(name, value)| c_string(&format!("{name}={value}")));
        let image = Image::new(argv, env.collect::<io::Result<_>>()?);
        self.filter.install()?;
        Ok(image)
    }

    fn environment(&self, command: &Command) -> Vec<(String, String)> {
        let workspace = self.workspace.to_string_lossy().into_owned();
        let mut env: Vec<(String, String)> =
            [("PATH", PATH_DEFAULT.to_owned()), ("HOME", workspace.clone()), ("WORKSPACE", workspace)]
                .map(|(name, value)| (name.to_owned(), value))
                .into();
        for (name, value) in &command.env {
            env.retain(|(existing, _)| existing != name);
            env.push((name.clone(), value.clone()));
        }
        env
    }

    fn limit_resources(&self) -> io::Result<()> {
        let limits = &self.setting.config.limits;
        process::limit(libc::RLIMIT_CORE, 0, 0)?;
        process::limit(libc::RLIMIT_NOFILE, limits.open_files, limits.open_files)?;
        if let Some(seconds) = limits.cpu_seconds {
            // The signal at the soft limit can be caught; the kill a second later cannot.
            process::limit(libc::RLIMIT_CPU, seconds, seconds.saturating_add(1))?;
        }
        if let Some(bytes) = limits.file_size_max_bytes {
            process::limit(libc::RLIMIT_FSIZE, bytes, bytes)?;
        }
        if limits.address_space {
            let bytes = limits.memory_mib.saturating_mul(1 << 20);
            process::limit(libc::RLIMIT_AS, bytes, bytes)?;
        }
        if let Some(count) = self.processes_max {
            process::limit(libc::RLIMIT_NPROC, count, count)?;
        }
        Ok(())
    }
}

/// The descriptors of one command.
struct Descriptors {
    standard: [OwnedFd; 3],
    status: OwnedFd,
    script: Option<OwnedFd>,
    leaf: Option<OwnedFd>,
}

impl Descriptors {
    fn take(descriptors: Vec<OwnedFd>, command: &Command) -> io::Result<Self> {
        let mut next = descriptors.into_iter();
        let mut take = || next.next().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF));
        Ok(Self {
            standard: [take()?, take()?, take()?],
            status: take()?,
            script: command.has_script.then(&mut take).transpose()?,
            leaf: command.has_leaf.then(&mut take).transpose()?,
        })
    }

    /// Moves all to high numbers, marked to be closed by execve.
    fn park(self) -> io::Result<Self> {
        let park = |descriptor: OwnedFd| -> io::Result<OwnedFd> {
            let raw = fcntl(&descriptor, FcntlArg::F_DUPFD_CLOEXEC(PARKING_DESCRIPTOR_MIN))?;
            process::adopt_descriptor(raw)
        };
        let [input, output, error] = self.standard;
        Ok(Self {
            standard: [park(input)?, park(output)?, park(error)?],
            status: park(self.status)?,
            script: self.script.map(park).transpose()?,
            leaf: None,
        })
    }

    /// Gives them the numbers that the command expects and lets it see no other.
    fn place(&self) -> io::Result<()> {
        for (target, descriptor) in self.standard.iter().enumerate() {
            process::duplicate_to(descriptor.as_fd(), target as RawFd)?;
        }
        process::close_on_exec_from(SCRIPT_DESCRIPTOR)?;
        if let Some(script) = &self.script {
            process::duplicate_to(script.as_fd(), SCRIPT_DESCRIPTOR)?;
        }
        Ok(())
    }
}

/// Changes to `directory` below `workspace`; links out of it are refused by the kernel.
fn enter_directory(workspace: &Path, directory: Option<&str>) -> io::Result<()> {
    workspace::enter(workspace)?;
    let relative = directory.map_or("", |path| path.trim_start_matches('/'));
    if relative.is_empty() {
        return Ok(());
    }
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let target = openat2(AT_FDCWD, relative, how)?;
    Ok(nix::unistd::fchdir(&target)?)
}

/// Becomes `program`, looked up in `path` when it is a bare name. Returns the reason it could not.
fn execute(image: &Image, program: &str, path: &str) -> io::Error {
    if program.contains('/') {
        return attempt(image, program);
    }
    let mut reason = io::Error::from_raw_os_error(libc::ENOENT);
    for directory in path.split(':').filter(|directory| !directory.is_empty()) {
        let error = attempt(image, &format!("{directory}/{program}"));
        // A name that exists but may not run says more than one that does not exist.
        if error.raw_os_error() != Some(libc::ENOENT) {
            reason = error;
        }
    }
    reason
}

fn attempt(image: &Image, path: &str) -> io::Error {
    match c_string(path).and_then(|path| image.execute(&path)) {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
