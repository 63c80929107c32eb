//! What the jail promises, tried from inside: this program runs itself in a jail for each case and looks at how it ends.
//! Needs root; without it the missing capability is named and nothing is tried.

use fluxvm_jail::{DIRECTORY, Jail, Limits, Names, enter, seal};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Resource, Signal, getegid, geteuid, getgid, getgroups, getpid, getrlimit, getuid, kill_process};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

const UID: u32 = 993_111;
const GID: u32 = 993_222;
const SIGSYS: i32 = 31;
const SIGKILL: i32 = 9;
/// Names the cgroup to join.
const CGROUP: &str = "FLUXVM_TEST_CGROUP";
const FILE_BYTES: u64 = 1 << 20;

/// What a case does inside, and how the process ends then.
struct Case {
    name: &'static str,
    act: fn(),
    ends: End,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// All was as it should be.
    Well,
    /// The filter killed it.
    Killed,
}

const CASES: &[Case] = &[
    Case { name: "the user has one identity and no rights", act: identity, ends: End::Well },
    Case { name: "rights cannot come back", act: no_way_back, ends: End::Well },
    Case { name: "the root is empty, cannot be written, and has no way out", act: empty_root, ends: End::Well },
    Case { name: "the directory can be used and runs nothing", act: directory, ends: End::Well },
    Case { name: "limits are set", act: limits, ends: End::Well },
    Case { name: "only kept descriptors are open", act: descriptors, ends: End::Well },
    Case { name: "there is no network", act: no_network, ends: End::Well },
    Case { name: "it is alone among processes", act: alone, ends: End::Well },
    Case { name: "sealed: what a machine needs goes on", act: sealed_work, ends: End::Well },
    Case { name: "sealed: files are refused by name", act: sealed_open, ends: End::Well },
    Case { name: "sealed: files of its directory can be allowed", act: sealed_names, ends: End::Well },
    Case { name: "sealed: no links", act: || sealed_call(libc::SYS_symlinkat, [0; 4]), ends: End::Killed },
    Case { name: "sealed: no program", act: || sealed_call(libc::SYS_execve, [0; 4]), ends: End::Killed },
    Case {
        name: "sealed: no program by descriptor",
        act: || sealed_call(libc::SYS_execveat, [0; 4]),
        ends: End::Killed,
    },
    Case { name: "sealed: no process", act: || sealed_call(libc::SYS_fork, [0; 4]), ends: End::Killed },
    Case {
        name: "sealed: no process by clone",
        act: || sealed_call(libc::SYS_clone, [17, 0, 0, 0]),
        ends: End::Killed,
    },
    Case { name: "sealed: no process by clone3", act: || sealed_call(libc::SYS_clone3, [0; 4]), ends: End::Killed },
    Case { name: "sealed: no thread", act: sealed_thread, ends: End::Killed },
    Case { name: "sealed: no internet socket", act: || sealed_call(libc::SYS_socket, [2, 1, 0, 0]), ends: End::Killed },
    Case { name: "sealed: no netlink socket", act: || sealed_call(libc::SYS_socket, [16, 3, 0, 0]), ends: End::Killed },
    Case { name: "sealed: no datagram socket", act: || sealed_call(libc::SYS_socket, [1, 2, 0, 0]), ends: End::Killed },
    Case { name: "sealed: no other ioctl", act: || sealed_call(libc::SYS_ioctl, [0, 0x5412, 0, 0]), ends: End::Killed },
    Case { name: "sealed: no new machine", act: || sealed_call(libc::SYS_ioctl, [0, 0xAE01, 0, 0]), ends: End::Killed },
    Case {
        name: "sealed: no executable memory",
        act: || sealed_call(libc::SYS_mmap, [0, 4096, 5, 34]),
        ends: End::Killed,
    },
    Case {
        name: "sealed: no memory made executable",
        act: || sealed_call(libc::SYS_mprotect, [0, 4096, 4, 0]),
        ends: End::Killed,
    },
    Case { name: "sealed: no rings", act: || sealed_call(libc::SYS_io_uring_setup, [1, 0, 0, 0]), ends: End::Killed },
    Case {
        name: "sealed: no registration",
        act: || sealed_call(libc::SYS_io_uring_register, [0; 4]),
        ends: End::Killed,
    },
    Case { name: "sealed: no tracing", act: || sealed_call(libc::SYS_ptrace, [0; 4]), ends: End::Killed },
    Case { name: "sealed: no mounts", act: || sealed_call(libc::SYS_mount, [0; 4]), ends: End::Killed },
    Case {
        name: "sealed: no namespaces",
        act: || sealed_call(libc::SYS_unshare, [0x1000_0000, 0, 0, 0]),
        ends: End::Killed,
    },
    Case {
        name: "sealed: no signals to others",
        act: || sealed_call(libc::SYS_tgkill, [2, 2, 0, 0]),
        ends: End::Killed,
    },
    Case { name: "sealed: no kill", act: || sealed_call(libc::SYS_kill, [1, 0, 0, 0]), ends: End::Killed },
    Case { name: "sealed: no keys", act: || sealed_call(libc::SYS_keyctl, [0; 4]), ends: End::Killed },
    Case { name: "sealed: no programs in the kernel", act: || sealed_call(libc::SYS_bpf, [0; 4]), ends: End::Killed },
    Case { name: "sealed: threads that were there are too", act: sealed_other_thread, ends: End::Killed },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, case, directory] = &arguments[..]
        && flag == "--inside"
    {
        return inside(case, Path::new(directory));
    }
    if !geteuid().is_root()
        || Command::new("unshare").args(["-Ur", "true"]).status().is_ok_and(|status| !status.success())
    {
        eprintln!("missing host capability: root that may make namespaces of all kinds");
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    let mut check = |name: &str, result: Result<(), String>| {
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        if let Err(why) = result {
            println!("    {why}");
            failed += 1;
        }
    };
    for case in CASES {
        check(case.name, run_case(case));
    }
    check("namespaces are its own", namespaces_differ());
    check("the status of the inner process is passed on", status_is_passed_on());
    check("both processes are in the cgroup", cgroup_is_joined());
    check("the inner process ends with the outer one", ends_together());
    check("a process with threads is refused", threads_are_refused());
    println!("\ntest result: {}. {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    ExitCode::from(u8::from(failed > 0))
}

// Outside.

/// A directory of the jail's user.
fn lab() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::chown(directory.path(), Some(UID), Some(GID)).expect("its owner");
    directory
}

fn command(case: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--inside", case]).arg(directory);
    command
}

fn started(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("started")
}

fn start(case: &str, directory: &Path) -> Child {
    started(&mut command(case, directory))
}

fn run_case(case: &Case) -> Result<(), String> {
    let directory = lab();
    let listener = UnixListener::bind(directory.path().join("peer.sock")).expect("a socket");
    std::os::unix::fs::chown(directory.path().join("peer.sock"), Some(UID), Some(GID)).expect("its owner");
    let output = start(case.name, directory.path()).wait_with_output().expect("waited for");
    drop(listener);
    let said = String::from_utf8_lossy(&output.stderr);
    let ended = (output.status.code(), output.status.signal());
    let expected = match case.ends {
        End::Well => (Some(0), None),
        End::Killed => (None, Some(SIGSYS)),
    };
    // A filter that kills must have been reached: the case says so just before.
    let reached = case.ends == End::Well || said.contains("sealed");
    if ended == expected && reached { Ok(()) } else { Err(format!("ended as {ended:?}, not {expected:?}: {said}")) }
}

fn namespaces_differ() -> Result<(), String> {
    let directory = lab();
    let mut outer = start("wait", directory.path());
    outer.stdout.as_mut().expect("piped").read_exact(&mut [0; 1]).expect("it is inside");
    let inner = inner_of(outer.id());
    let same: Vec<_> = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"]
        .into_iter()
        .filter(|kind| namespace("self", kind) == namespace(&inner, kind))
        .collect();
    outer.kill().expect("killed");
    outer.wait().expect("ended");
    if same.is_empty() { Ok(()) } else { Err(format!("shared: {same:?}")) }
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

fn cgroup_is_joined() -> Result<(), String> {
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

fn inner_of(outer: u32) -> String {
    let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).expect("its children");
    children.trim().to_owned()
}

fn status_is_passed_on() -> Result<(), String> {
    let directory = lab();
    let status = start("exit 7", directory.path()).wait().expect("ended");
    if status.code() == Some(7) { Ok(()) } else { Err(format!("{status:?}")) }
}

fn ends_together() -> Result<(), String> {
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

fn threads_are_refused() -> Result<(), String> {
    let directory = lab();
    let output = start("threads", directory.path()).wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) && said.contains("before any thread") { Ok(()) } else { Err(said.into_owned()) }
}

// Inside.

fn inside(case: &str, directory: &Path) -> ExitCode {
    if case == "threads" {
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(60)));
    }
    let limits = Limits { descriptors: 64, threads: 32, file_bytes: FILE_BYTES };
    let cgroup = std::env::var_os(CGROUP).map(Into::into);
    let jail = Jail { uid: UID, gid: GID, directory: directory.to_owned(), cgroup, limits };
    let _secret = std::fs::File::open("/etc/passwd").expect("a file that is not kept");
    // SAFETY: nothing but the standard descriptors is used afterwards; the file above is leaked.
    if let Err(error) = unsafe { enter(&jail, &[]) } {
        eprintln!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
        return ExitCode::from(3);
    }
    std::mem::forget(_secret);
    match case {
        "wait" => {
            print!("!");
            std::io::stdout().flush().expect("written");
            std::thread::sleep(std::time::Duration::from_secs(60));
            ExitCode::SUCCESS
        }
        "exit 7" => ExitCode::from(7),
        _ => {
            let case = CASES.iter().find(|known| known.name == case).expect("a known case");
            (case.act)();
            ExitCode::SUCCESS
        }
    }
}

fn identity() {
    let (uid, gid) = (UID, GID);
    assert_eq!((getuid().as_raw(), geteuid().as_raw(), getgid().as_raw(), getegid().as_raw()), (uid, uid, gid, gid));
    assert!(getgroups().expect("groups").is_empty());
    let sets = rustix::thread::capabilities(None).expect("sets");
    assert!((sets.effective | sets.permitted | sets.inheritable).is_empty());
    let bounding = rustix::thread::CapabilitySet::all();
    for capability in bounding.iter() {
        assert!(!rustix::thread::capability_is_in_bounding_set(capability).unwrap_or(false));
    }
    assert!(rustix::thread::no_new_privs().expect("a flag"));
    let dumpable = rustix::process::dumpable_behavior().expect("a flag");
    assert_eq!(dumpable, rustix::process::DumpableBehavior::NotDumpable);
}

fn no_way_back() {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
    assert!(set_thread_uid(Uid::from_raw(0)).is_err());
    assert!(set_thread_gid(Gid::from_raw(0)).is_err());
    assert!(set_thread_groups(&[Gid::from_raw(0)]).is_err());
    assert!(rustix::thread::set_no_new_privs(false).is_err());
    assert!(rustix::thread::set_capabilities_secure_bits(rustix::thread::CapabilitiesSecureBits::empty()).is_err());
    assert!(fluxvm_sys::namespaces::leave(fluxvm_sys::namespaces::UnshareFlags::NEWNET).is_err());
}

fn empty_root() {
    let names = |path: &str| -> Vec<_> {
        std::fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect()
    };
    assert_eq!(names("/"), ["vm"]);
    assert_eq!(names("/.."), ["vm"]);
    assert_eq!(names("/vm/../.."), ["vm"]);
    assert!(std::fs::write("/file", "x").is_err());
    assert!(std::fs::create_dir("/directory").is_err());
    for path in ["/proc", "/dev/kvm", "/etc/passwd", "/tmp", "/sys"] {
        assert!(!Path::new(path).exists(), "{path}");
    }
    assert!(rustix::process::chroot("/vm").is_err());
}

fn directory() {
    let file = format!("{DIRECTORY}/file");
    std::fs::write(&file, "#!/bin/true\n").expect("its own directory");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its own file");
    let status = Command::new(&file).status();
    assert!(status.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied));
    let length = std::fs::File::create(&file).and_then(|file| file.set_len(FILE_BYTES));
    assert!(length.is_ok());
}

fn limits() {
    let wanted = [
        (Resource::Nofile, 64),
        (Resource::Nproc, 32),
        (Resource::Fsize, FILE_BYTES),
        (Resource::Core, 0),
        (Resource::Msgqueue, 0),
    ];
    for (resource, most) in wanted {
        let limit = getrlimit(resource);
        assert_eq!((limit.current, limit.maximum), (Some(most), Some(most)), "{resource:?}");
        let more = rustix::process::Rlimit { current: Some(most + 1), maximum: Some(most + 1) };
        assert!(rustix::process::setrlimit(resource, more).is_err());
    }
}

fn descriptors() {
    // SAFETY: asking for flags changes nothing, whatever the number stands for.
    let open: Vec<i32> = (0..1024).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect();
    assert_eq!(open, [0, 1, 2]);
}

fn no_network() {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket before the seal");
    for address in ["127.0.0.1:9", "169.254.169.254:80", "8.8.8.8:53"] {
        assert!(socket.send_to(b"x", address).is_err(), "{address}");
    }
}

fn alone() {
    assert_eq!(getpid().as_raw_nonzero().get(), 1);
    // SAFETY: signal zero asks only whether there is anyone.
    let reached = unsafe { libc::kill(-1, 0) };
    assert_eq!(reached, -1, "nobody else can be signalled");
    assert!(kill_process(rustix::process::Pid::from_raw(2).expect("a pid"), Signal::KILL).is_err());
}

fn announce() {
    eprintln!("sealed");
}

fn sealed_work() {
    let (sender, receiver) = std::sync::mpsc::channel::<u8>();
    let listener = UnixListener::bind(format!("{DIRECTORY}/own.sock")).expect("before the seal");
    let thread = std::thread::spawn(move || receiver.recv().expect("a message"));
    seal(Names::Refused).expect("sealed");
    announce();
    let mut stream = UnixStream::connect(format!("{DIRECTORY}/peer.sock")).expect("what listens in the directory");
    stream.write_all(b"hello").expect("written");
    let own = UnixStream::connect(format!("{DIRECTORY}/own.sock")).expect("its own socket");
    let (accepted, _) = listener.accept().expect("accepted");
    accepted.set_nonblocking(true).expect("FIONBIO");
    drop((own, accepted));
    let big = vec![1u8; 8 << 20];
    assert_eq!(big.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 8 << 20);
    std::thread::sleep(std::time::Duration::from_millis(2));
    sender.send(1).expect("a thread that waits");
    thread.join().expect("threads may end");
    // SAFETY: signal zero to this thread itself.
    assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, 1, libc::gettid(), 0) }, 0);
    assert!(std::io::stdin().as_fd().as_raw_fd() == 0);
}

fn sealed_open() {
    seal(Names::Refused).expect("sealed");
    announce();
    for path in ["/vm", "/vm/file", "/"] {
        let error = std::fs::File::open(path).expect_err("refused");
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    }
    assert!(std::fs::remove_file("/vm/peer.sock").is_err());
}

fn sealed_names() {
    seal(Names::InDirectory).expect("sealed");
    announce();
    std::fs::create_dir("/vm/snapshot").expect("its own directory");
    std::fs::write("/vm/snapshot/part", "memory").expect("its own file");
    std::fs::rename("/vm/snapshot/part", "/vm/snapshot/whole").expect("its own file");
    assert_eq!(std::fs::metadata("/vm/snapshot/whole").expect("its own file").len(), 6);
    std::fs::remove_file("/vm/snapshot/whole").expect("its own file");
    std::fs::remove_dir("/vm/snapshot").expect("its own directory");
    assert!(std::fs::write("/file", "x").is_err(), "the root stays as it is");
    assert!(std::fs::File::open("/proc/self/mem").is_err());
}

fn sealed_call(call: libc::c_long, arguments: [libc::c_long; 4]) {
    seal(Names::Refused).expect("sealed");
    announce();
    let [a, b, c, d] = arguments;
    // SAFETY: the filter ends the process before the kernel looks at any argument; if it did not, all pointers are null.
    let result = unsafe { libc::syscall(call, a, b, c, d, -1, 0) };
    eprintln!("the call came back with {result}");
}

fn sealed_thread() {
    seal(Names::Refused).expect("sealed");
    announce();
    let started = std::thread::Builder::new().spawn(|| {});
    eprintln!("a thread: {}", started.is_ok());
}

fn sealed_other_thread() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        receiver.recv().expect("a message");
        announce();
        // SAFETY: as in `sealed_call`.
        unsafe { libc::syscall(libc::SYS_execve, 0, 0, 0) };
    });
    seal(Names::Refused).expect("sealed");
    sender.send(()).expect("a thread that waits");
    thread.join().expect("it would have come back");
}
