//! What is seen of a jail from outside: how the processes in it end, and what they share with those that are not in it.

use crate::cases::End;
use crate::{CGROUP, GID, UID};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Signal, kill_process};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SIGSYS: i32 = 31;
const SIGKILL: i32 = 9;

/// A directory of the jail's user.
pub fn lab() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("sockets")).expect("a directory");
    for path in [directory.path(), &directory.path().join("sockets")] {
        std::os::unix::fs::chown(path, Some(UID), Some(GID)).expect("its owner");
    }
    directory
}

pub fn command(case: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--inside", case]).arg(directory);
    command
}

pub fn started(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("started")
}

fn start(case: &str, directory: &Path) -> Child {
    started(&mut command(case, directory))
}

/// Runs a case in a jail.
pub fn run_case(name: &str, ends: End) -> Result<(), String> {
    let directory = lab();
    let listener = UnixListener::bind(directory.path().join("peer.sock")).expect("a socket");
    std::os::unix::fs::chown(directory.path().join("peer.sock"), Some(UID), Some(GID)).expect("its owner");
    let output = start(name, directory.path()).wait_with_output().expect("waited for");
    drop(listener);
    let said = String::from_utf8_lossy(&output.stderr);
    let ended = (output.status.code(), output.status.signal());
    let expected = match ends {
        End::Well => (Some(0), None),
        End::Killed => (None, Some(SIGSYS)),
    };
    // A filter that kills must have been reached: the case says so just before.
    let reached = ends == End::Well || said.contains("sealed");
    if ended == expected && reached { Ok(()) } else { Err(format!("ended as {ended:?}, not {expected:?}: {said}")) }
}

pub fn namespaces_differ() -> Result<(), String> {
    let directory = lab();
    let mut outer = start("wait", directory.path());
    outer.stdout.as_mut().expect("piped").read_exact(&mut [0; 1]).expect("it is inside");
    let inner = inner_of(outer.id());
    let mut kinds = vec!["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let clocks = std::fs::read_to_string(format!("/proc/{inner}/timens_offsets"));
    if clocks.is_ok() {
        kinds.push("time");
    } else {
        eprintln!("missing host capability: time namespaces");
    }
    let same: Vec<_> = kinds.into_iter().filter(|kind| namespace("self", kind) == namespace(&inner, kind)).collect();
    outer.kill().expect("killed");
    outer.wait().expect("ended");
    if !same.is_empty() {
        return Err(format!("shared: {same:?}"));
    }
    let clocks = clocks.unwrap_or_default();
    let moved = clocks.lines().any(|line| !line.split_whitespace().skip(1).all(|number| number == "0"));
    if moved { Err(format!("other clocks than the host's: {clocks}")) } else { Ok(()) }
}

/// Has a process refuse itself time namespaces, as a kernel does that has none.
pub const WITHOUT_CLOCKS: &str = "FLUXVM_TEST_WITHOUT_CLOCKS";

pub fn refuse_clocks() {
    let wanted = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::CLONE_NEWTIME as u64);
    let rule = SeccompRule::new(vec![wanted.expect("a condition")]).expect("a rule");
    let rules = [(libc::SYS_unshare, vec![rule])].into();
    let refused = SeccompAction::Errno(libc::EINVAL as u32);
    let target = std::env::consts::ARCH.try_into().expect("a known processor");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, target).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    apply_filter(&program).expect("applied");
}

pub fn clocks_can_be_shared() -> Result<(), String> {
    let directory = lab();
    let mut outer = started(command("wait", directory.path()).env(WITHOUT_CLOCKS, "1"));
    let inside = outer.stdout.as_mut().expect("piped").read_exact(&mut [0; 1]);
    let shares = || namespace("self", "time") == namespace(&inner_of(outer.id()), "time");
    let shared = inside.is_ok() && (!Path::new("/proc/self/ns/time").exists() || shares());
    outer.kill().expect("killed");
    let output = outer.wait_with_output().expect("ended");
    if shared { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// A cgroup in a hierarchy that is mounted for the test; both go with it.
struct Cgroup {
    hierarchy: tempfile::TempDir,
    path: PathBuf,
}

impl Cgroup {
    fn new() -> Option<Self> {
        let hierarchy = tempfile::tempdir().expect("a directory");
        mount("cgroup", hierarchy.path(), "cgroup2", MountFlags::empty(), None).ok()?;
        let path = hierarchy.path().join(format!("fluxvm-jail-test-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a cgroup");
        Some(Self { hierarchy, path })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Whoever was in it has just ended, and the kernel may not have noticed.
        let gone = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            std::fs::remove_dir(&self.path).is_ok()
        });
        unmount(self.hierarchy.path(), UnmountFlags::DETACH).expect("it was mounted");
        assert!(gone, "the cgroup could not be removed");
    }
}

pub fn cgroup_is_joined() -> Result<(), String> {
    let Some(cgroup) = Cgroup::new() else {
        eprintln!("missing host capability: cgroup version 2");
        return Ok(());
    };
    let directory = lab();
    let mut outer = started(command("wait", directory.path()).env(CGROUP, &cgroup.path));
    outer.stdout.as_mut().expect("piped").read_exact(&mut [0; 1]).expect("it is inside");
    let members = std::fs::read_to_string(cgroup.path.join("cgroup.procs")).expect("its members");
    outer.kill().expect("killed");
    outer.stdout.take().expect("piped").read_to_end(&mut Vec::new()).expect("both have ended");
    outer.wait().expect("ended");
    if members.lines().count() == 2 { Ok(()) } else { Err(members) }
}

fn namespace(process: &str, kind: &str) -> u64 {
    std::fs::metadata(format!("/proc/{process}/ns/{kind}")).expect("a namespace").ino()
}

pub fn inner_of(outer: u32) -> String {
    let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).expect("its children");
    children.trim().to_owned()
}

pub fn status_is_passed_on() -> Result<(), String> {
    let directory = lab();
    let status = start("exit 7", directory.path()).wait().expect("ended");
    if status.code() == Some(7) { Ok(()) } else { Err(format!("{status:?}")) }
}

pub fn ends_together() -> Result<(), String> {
    let directory = lab();
    let mut outer = start("wait", directory.path());
    let mut output = outer.stdout.take().expect("piped");
    output.read_exact(&mut [0; 1]).expect("it is inside");
    outer.kill().expect("killed");
    let status = outer.wait().expect("ended");
    // The end of the pipe shows that the inner process, which has it as well, is gone.
    output.read_to_end(&mut Vec::new()).expect("the end");
    if status.signal() == Some(SIGKILL) { Ok(()) } else { Err(format!("{status:?}")) }
}

pub fn request_to_end_is_passed_on() -> Result<(), String> {
    let directory = lab();
    let mut outer = start("wait for a request to end", directory.path());
    outer.stdout.as_mut().expect("piped").read_exact(&mut [0; 1]).expect("it is inside");
    let pid = rustix::process::Pid::from_child(&outer);
    kill_process(pid, Signal::TERM).expect("sent");
    let status = outer.wait().expect("ended");
    if status.code() == Some(8) { Ok(()) } else { Err(format!("{status:?}")) }
}

pub fn threads_are_refused() -> Result<(), String> {
    let directory = lab();
    let output = start("threads", directory.path()).wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) && said.contains("before any thread") { Ok(()) } else { Err(said.into_owned()) }
}
