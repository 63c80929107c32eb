//! Starts a helper program of the host, such as a virtual machine monitor, with no more rights than it needs. The
//! process waits for its configuration on standard input, so that the agent can write down who it is before it does
//! anything, and then becomes the program: pid and start time stay. What goes wrong before that is told on standard
//! output; nothing there means that the program runs.

use crate::confine::{during, landlock, rights};
use crate::limits::*;
use crate::share::Share;
use crate::sys::mount::{self, NO_EXEC, NO_SUID};
use crate::sys::network;
use crate::sys::process::{self, Image};
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, SFlag, mknod, umask};
use nix::unistd::{Gid, Uid, chown};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Component, Path, PathBuf};

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
    /// The network namespace that it is in, by the file it is pinned to; not with `own_network`.
    #[serde(default)]
    network: Option<PathBuf>,
    /// A tap device or macvtap; the program has its queues as the last descriptors.
    #[serde(default)]
    tap: Option<Tap>,
    /// Device files that it may use; as root they are made for its user, in a `/dev` that holds nothing else.
    devices: Vec<PathBuf>,
    /// Opened for reading with the launcher's rights; the program has them as descriptors 3, 4 and so on.
    descriptors: Vec<PathBuf>,
    /// A unix socket that is made for its user alone and listens; the program has it as the descriptor after those.
    #[serde(default)]
    listen: Option<PathBuf>,
    /// It serves this directory of the host, and sees nothing else of it but `read_paths`; only with a `uid`, and with
    /// neither `devices` nor `write_paths`.
    #[serde(default)]
    share: Option<Share>,
    /// It begins with all rights of the launcher and gives them up by itself, once it has opened what it needs; without
    /// anything above that says what it may do, nor the paths below.
    #[serde(default)]
    confines_itself: bool,
    /// May be read and executed.
    read_paths: Vec<PathBuf>,
    /// May be read and written.
    write_paths: Vec<PathBuf>,
    /// Or as many as the launcher may have.
    open_files: u64,
}

/// A device of which every queue is opened for the program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tap {
    /// The network namespace where it is, by the file that is pinned to; none: that of the launcher.
    namespace: Option<PathBuf>,
    name: String,
    /// More than one only of a device that was made with several.
    queues: usize,
    /// It is a macvtap, which has a device file of its own.
    macvtap: bool,
}

const FIRST_DESCRIPTOR: RawFd = 3;
const DESCRIPTORS_PASSED_MAX: usize = 32;
const OWN_DESCRIPTOR_MIN: RawFd = FIRST_DESCRIPTOR + DESCRIPTORS_PASSED_MAX as RawFd;

/// `helper`: see the module. Gives the exit status when the program was not reached.
pub fn run() -> i32 {
    let Ok(output) = out_of_the_way(std::io::stdout().as_fd()) else { return 1 };
    let Err(message) = become_program();
    let _ = std::fs::File::from(output).write_all(message.as_bytes());
    1
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
    pass_descriptors(&config)?;
    if let Some(network) = &config.network {
        network::enter(network).map_err(during("entering the network namespace"))?;
    }
    limit(&config)?;
    match (&config.share, config.uid) {
        (Some(share), Some(uid)) => share.enter(uid, &config.read_paths)?,
        _ if config.confines_itself => {}
        _ => confine(&config)?,
    }
    process::reset_signals().map_err(during("resetting signals"))?;
    let image = Image::new(arguments(&config)?, environment(&config)?);
    let program = c_string(&config.program.to_string_lossy())?;
    let Err(error) = image.execute(&program);
    Err(format!("running {}: {error}", config.program.display()))
}

fn confine(config: &HelperConfig) -> Result<(), String> {
    enter_namespaces(config)?;
    rights::give_up(config.uid, &config.groups)?;
    let writable = config.write_paths.iter().chain(&config.devices).cloned().collect::<Vec<_>>();
    landlock::restrict_to(&config.read_paths, &writable)
}

/// An input that ends without a configuration is an agent that died before it could write this process down.
fn read_config() -> Result<HelperConfig, String> {
    let mut bytes = Vec::new();
    let mut input = std::io::stdin().lock().take(CONFIG_BYTES_MAX + 1);
    input.read_to_end(&mut bytes).map_err(during("reading the configuration"))?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(format!("the configuration is longer than {CONFIG_BYTES_MAX} bytes"));
    }
    let config: HelperConfig = serde_json::from_slice(&bytes).map_err(during("the configuration"))?;
    let queues = config.tap.as_ref().map_or(0, |tap| tap.queues);
    if config.descriptors.len().saturating_add(queues) >= DESCRIPTORS_PASSED_MAX {
        return Err(format!("descriptors: {DESCRIPTORS_PASSED_MAX} or more"));
    }
    if config.own_network && config.network.is_some() {
        return Err("own_network: does not go with network".into());
    }
    let beside = !config.devices.is_empty() || !config.write_paths.is_empty() || !config.groups.is_empty();
    if config.share.is_some() && (config.uid.is_none() || beside) {
        return Err("share: goes with a uid, and not with groups, devices or write_paths".into());
    }
    let is_confined = config.uid.is_some() || config.own_network || beside || !config.read_paths.is_empty();
    if config.confines_itself && is_confined {
        return Err("confines_itself: goes with nothing that says what the program may do".into());
    }
    Ok(config)
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

/// Opens what the program gets as descriptors. All are open before the first of these numbers is taken.
fn pass_descriptors(config: &HelperConfig) -> Result<(), String> {
    let open = |path: &PathBuf| {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = open(path, flags, Mode::empty()).map_err(during(format!("opening {}", path.display())))?;
        out_of_the_way(file.as_fd()).map_err(during("passing a descriptor"))
    };
    let mut files = config.descriptors.iter().map(open).collect::<Result<Vec<_>, String>>()?;
    if let Some(path) = &config.listen {
        files.push(listener(path, config.uid).map_err(during(format!("listening at {}", path.display())))?);
    }
    if let Some(tap) = &config.tap {
        files.extend(tap.open().map_err(during(format!("opening the device {}", tap.name)))?);
    }
    for (target, file) in (FIRST_DESCRIPTOR..).zip(&files) {
        process::duplicate_to(file.as_fd(), target).map_err(during("passing a descriptor"))?;
    }
    Ok(())
}

impl Tap {
    fn open(&self) -> std::io::Result<Vec<OwnedFd>> {
        let home = network::current()?;
        if let Some(namespace) = &self.namespace {
            network::enter(namespace)?;
        }
        let is_multiqueue = self.queues > 1;
        let open = |_| out_of_the_way(network::open_tap(&self.name, self.macvtap, is_multiqueue)?.as_fd());
        let queues = (0..self.queues).map(open).collect();
        network::enter_open(&home)?;
        queues
    }
}

/// Made for `uid` before anybody can connect: the launcher's mask lets nobody else.
fn listener(path: &Path, uid: Option<u32>) -> std::io::Result<OwnedFd> {
    let listener = UnixListener::bind(path)?;
    if let Some(uid) = uid {
        lchown(path, Some(uid), Some(uid))?;
    }
    out_of_the_way(listener.as_fd())
}

/// A copy whose number is beyond those of passed descriptors; closed by the program's start.
fn out_of_the_way(descriptor: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    process::adopt_descriptor(fcntl(descriptor, FcntlArg::F_DUPFD_CLOEXEC(OWN_DESCRIPTOR_MIN))?)
}

fn limit(config: &HelperConfig) -> Result<(), String> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).map_err(during("reading the limit of open files"))?;
    let open_files = config.open_files.min(most);
    setrlimit(Resource::RLIMIT_NOFILE, open_files, open_files).map_err(during("limiting open files"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(during("forbidding core dumps"))
}

fn enter_namespaces(config: &HelperConfig) -> Result<(), String> {
    let Some(uid) = config.uid else { return Ok(()) };
    let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    flags.set(CloneFlags::CLONE_NEWNET, config.own_network);
    unshare(flags).map_err(during("making namespaces"))?;
    own_devices(&config.devices, uid).map_err(during("making the devices"))
}

/// Covers `/dev` with one that has these devices of the host, for `uid` alone. Their numbers are read before.
fn own_devices(devices: &[PathBuf], uid: u32) -> Result<(), String> {
    let numbers = devices.iter().map(|path| Ok((path, device_number(path)?))).collect::<Result<Vec<_>, String>>()?;
    mount::make_all_follow().map_err(during("leaving the host's mounts"))?;
    let cover = mount::new_filesystem(c"tmpfs", &[(c"mode", c"755"), (c"size", c"64k")], NO_SUID | NO_EXEC);
    let host = open("/dev", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(during("opening /dev"))?;
    let attached = cover.and_then(|cover| mount::attach_on(cover.as_fd(), host.as_fd()));
    attached.map_err(during("covering /dev"))?;
    for (path, number) in numbers {
        let failed = |what: &str| during(format!("{what} {}", path.display()));
        let parent = path.parent().unwrap_or(path);
        std::fs::create_dir_all(parent).map_err(failed("making the directory of"))?;
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(parent, permissions).map_err(failed("opening the directory of"))?;
        mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o600), number)
            .map_err(|error| failed("making")(error.into()))?;
        chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))
            .map_err(|error| failed("giving away")(error.into()))?;
    }
    Ok(())
}

fn device_number(path: &Path) -> Result<libc::dev_t, String> {
    let found = std::fs::metadata(path).map_err(during(format!("looking at {}", path.display())))?;
    let is_plain = path.starts_with("/dev") && path.components().all(|part| part != Component::ParentDir);
    if is_plain && found.file_type().is_char_device() {
        return Ok(found.rdev());
    }
    Err(format!("{} is not a character device below /dev", path.display()))
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
