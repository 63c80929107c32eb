//! What a process tries in a jail.

use crate::refused::CALLS;
use crate::{FILE_BYTES, GID, UID};
use fluxvm_jail::{DIRECTORY, Names, SOCKETS, seal};
use rustix::process::{Resource, Signal, getegid, geteuid, getgid, getgroups, getpid, getrlimit, getuid, kill_process};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

/// How a case ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// All was as it should be.
    Well,
    /// The filter killed it.
    Killed,
}

struct Case {
    name: &'static str,
    act: fn(),
    ends: End,
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
    Case { name: "sealed: no thread", act: sealed_thread, ends: End::Killed },
    Case { name: "sealed: threads that were there are too", act: sealed_other_thread, ends: End::Killed },
];

/// Every case by its name.
pub fn all() -> impl Iterator<Item = (String, End)> {
    let calls = CALLS.iter().map(|(name, ..)| (sealed(name), End::Killed));
    CASES.iter().map(|case| (case.name.to_owned(), case.ends)).chain(calls)
}

/// Does what a case does. This process is in a jail, and may end in it.
pub fn act(name: &str) {
    if let Some(case) = CASES.iter().find(|case| case.name == name) {
        return (case.act)();
    }
    let (_, call, arguments) = CALLS.iter().find(|(call, ..)| sealed(call) == name).expect("a known case");
    sealed_call(*call, *arguments);
}

fn sealed(name: &str) -> String {
    format!("sealed: {name}")
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
    use fluxvm_sys::namespaces::{UnshareFlags, leave};
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
    assert!(set_thread_uid(Uid::from_raw(0)).is_err());
    assert!(set_thread_gid(Gid::from_raw(0)).is_err());
    assert!(set_thread_groups(&[Gid::from_raw(0)]).is_err());
    assert!(rustix::thread::set_no_new_privs(false).is_err());
    assert!(rustix::thread::set_capabilities_secure_bits(rustix::thread::CapabilitiesSecureBits::empty()).is_err());
    for namespace in [UnshareFlags::NEWNET, UnshareFlags::NEWTIME] {
        assert!(leave(namespace).is_err(), "{namespace:?}");
    }
}

fn empty_root() {
    let names = |path: &str| -> Vec<_> {
        std::fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect()
    };
    for path in ["/", "/..", "/vm/../..", "/run/../.."] {
        let mut found = names(path);
        found.sort();
        assert_eq!(found, ["run", "vm"], "{path}");
    }
    std::fs::write(format!("{DIRECTORY}/sockets/file"), "x").expect("the same directory in two places");
    assert!(std::fs::read(format!("{SOCKETS}/file")).is_ok());
    if fluxvm_sys::landlock::abi_version().is_ok() {
        assert!(std::fs::write(format!("{SOCKETS}/new"), "x").is_err());
        assert!(std::fs::write(format!("{SOCKETS}/file"), "x").is_err());
        assert!(std::fs::create_dir(format!("{SOCKETS}/directory")).is_err());
    }
    std::fs::remove_file(format!("{SOCKETS}/file")).expect("what lies there can be removed");
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
    let beyond = std::fs::File::create(&file).and_then(|file| file.set_len(FILE_BYTES + 1));
    assert_eq!(beyond.expect_err("too long").raw_os_error(), Some(libc::EFBIG));
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
    let listener = UnixListener::bind(format!("{SOCKETS}/own.sock")).expect("before the seal");
    let thread = std::thread::spawn(move || receiver.recv().expect("a message"));
    seal(Names::Refused).expect("sealed");
    announce();
    let mut stream = UnixStream::connect(format!("{DIRECTORY}/peer.sock")).expect("what listens in the directory");
    stream.write_all(b"hello").expect("written");
    let own = UnixStream::connect(format!("{SOCKETS}/own.sock")).expect("its own socket");
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

/// Makes a call that the kernel does not come to.
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
