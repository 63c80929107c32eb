//! Starts a helper program of the host, such as a virtual machine monitor, with no more rights than it needs. The
//! process waits for its configuration on standard input, so that the agent can write down who it is before it does
//! anything, and then becomes the program: pid and start time stay. What goes wrong before that is told on standard
//! output; nothing there means that the program runs.

use crate::confine::{during, landlock, rights};
use crate::limits::*;
use crate::sys::process::{self, Image};
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// What the program is and what it may do. An unknown field is an error.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HelperConfig {
    /// The program, and its arguments without its own name.
    program: PathBuf,
    arguments: Vec<String>,
    env: BTreeMap<String, String>,
    /// Where it starts.
    directory: PathBuf,
    /// Its standard output and error are added here; made by the launcher.
    log: PathBuf,
    /// User and group, and supplementary groups; null when the launcher is not root.
    uid: Option<u32>,
    groups: Vec<u32>,
    /// `cgroup.procs` files to join.
    cgroups: Vec<PathBuf>,
    /// A network namespace of its own, with nothing in it.
    own_network: bool,
    /// May be read and executed.
    read_paths: Vec<PathBuf>,
    /// May be read and written.
    write_paths: Vec<PathBuf>,
    open_files: u64,
}

/// `helper`: see the module. Gives the exit status when the program was not reached.
pub fn run() -> i32 {
    let outcome = adopt_output().and_then(|output| become_program().map_err(|message| tell(&output, &message)));
    i32::from(outcome.is_err())
}

/// Standard output, out of the way of the program and closed by its start.
fn adopt_output() -> Result<OwnedFd, ()> {
    let copy = std::io::stdout().as_fd().try_clone_to_owned();
    copy.map_err(|_| ())
}

fn tell(output: &OwnedFd, message: &str) {
    if let Ok(copy) = output.try_clone() {
        let _ = std::fs::File::from(copy).write_all(message.as_bytes());
    }
}

/// Returns only when the program could not be reached.
fn become_program() -> Result<std::convert::Infallible, String> {
    let config = read_config()?;
    // The agent may already have made this process a session leader.
    let _ = nix::unistd::setsid();
    umask(Mode::from_bits_truncate(0o077));
    for procs in &config.cgroups {
        let joined = OpenOptions::new().write(true).open(procs).and_then(|mut file| file.write_all(b"0"));
        joined.map_err(during(format!("joining {}", procs.display())))?;
    }
    std::env::set_current_dir(&config.directory).map_err(during("entering the directory"))?;
    redirect(&config)?;
    process::close_on_exec_from(3).map_err(during("closing descriptors"))?;
    limit(&config)?;
    enter_namespaces(&config)?;
    rights::give_up(config.uid, &config.groups)?;
    landlock::restrict_to(&config.read_paths, &config.write_paths)?;
    process::reset_signals().map_err(during("resetting signals"))?;
    let image = Image::new(arguments(&config)?, environment(&config)?);
    let program = c_string(&config.program.to_string_lossy())?;
    let Err(error) = image.execute(&program);
    Err(format!("running {}: {error}", config.program.display()))
}

/// An input that ends without a configuration is an agent that died before it could write this process down.
fn read_config() -> Result<HelperConfig, String> {
    let mut bytes = Vec::new();
    let mut input = std::io::stdin().lock().take(CONFIG_BYTES_MAX + 1);
    input.read_to_end(&mut bytes).map_err(during("reading the configuration"))?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(format!("the configuration is longer than {CONFIG_BYTES_MAX} bytes"));
    }
    serde_json::from_slice(&bytes).map_err(during("the configuration"))
}

fn redirect(config: &HelperConfig) -> Result<(), String> {
    let null = OpenOptions::new().read(true).open("/dev/null").map_err(during("opening /dev/null"))?;
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let log = open(&config.log, flags, Mode::from_bits_truncate(0o600)).map_err(during("opening the log"))?;
    process::duplicate_to(null.as_fd(), 0).map_err(during("closing standard input"))?;
    for target in [1, 2] {
        process::duplicate_to(log.as_fd(), target).map_err(during("redirecting to the log"))?;
    }
    Ok(())
}

fn limit(config: &HelperConfig) -> Result<(), String> {
    let open_files = config.open_files;
    setrlimit(Resource::RLIMIT_NOFILE, open_files, open_files).map_err(during("limiting open files"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(during("forbidding core dumps"))
}

fn enter_namespaces(config: &HelperConfig) -> Result<(), String> {
    if config.uid.is_none() {
        return Ok(());
    }
    let mut flags = CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    flags.set(CloneFlags::CLONE_NEWNET, config.own_network);
    unshare(flags).map_err(during("making namespaces"))
}

fn arguments(config: &HelperConfig) -> Result<Vec<CString>, String> {
    let program = config.program.to_string_lossy();
    std::iter::once(program.as_ref()).chain(config.arguments.iter().map(String::as_str)).map(c_string).collect()
}

fn environment(config: &HelperConfig) -> Result<Vec<CString>, String> {
    config.env.iter().map(|(name, value)| c_string(&format!("{name}={value}"))).collect()
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("a NUL in {text:?}"))
}
