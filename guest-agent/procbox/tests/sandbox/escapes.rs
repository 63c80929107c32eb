//! Attempts to reach out of a sandbox. This program is bound into the sandbox and makes them there, with system
//! calls of its own choosing; each must fail.

use crate::Case;
use crate::fixture::{Place, Sandbox, program};
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;

pub const CASES: &[Case] = &[
    // A network of its own has nothing but the sandbox.
    ("no escape from namespaces with Landlock", || try_all(Place::new(), &["listen for TCP"])),
    ("no escape from namespaces alone", || {
        try_all(Place::new().with(|config| config["max_abi"] = 0.into()), &["listen for TCP"])
    }),
    ("no escape from Landlock alone", || try_all(Place::new().with(|config| config["isolation"] = "off".into()), &[])),
    ("no escape with a minder", || try_all(Place::new().without_v2(), &["listen for TCP"])),
    ("no escape for an ordinary user from Landlock alone", || {
        try_all(Place::of_user(65534).with(|config| config["isolation"] = "off".into()), &[])
    }),
    ("no escape for an ordinary user", || try_all(Place::of_user(65534), &["listen for TCP"])),
];

/// What an attempt may know of the host.
struct Host {
    supervisor_pid: i64,
    init_pid: i64,
    tcp_port: u16,
    abstract_name: String,
    socket: String,
    segment: i64,
}

type Attempt = (&'static str, fn(&Host) -> io::Result<()>);

/// Ok = it got out.
const ATTEMPTS: &[Attempt] = &[
    // First, before this program opens something itself.
    ("find an inherited descriptor", |_| {
        let found = (3..1024).find(|number| raw(libc::SYS_fcntl, &[*number, i64::from(libc::F_GETFD)]) >= 0);
        found.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }),
    ("read the shadow file", |_| read("/etc/shadow")),
    ("list root's home", |_| fs::read_dir("/root").map(drop)),
    ("read through a symbolic link", |_| symlink("/etc/shadow", fresh("link")).and_then(|()| read("link"))),
    ("read through the root link", |_| read("/proc/self/root/etc/shadow")),
    ("read through the working directory", |_| read("/proc/self/cwd/../../../../../../../etc/shadow")),
    ("hard link a host file", |_| fs::hard_link("/etc/passwd", fresh("hard"))),
    ("rename a host file", |_| fs::rename("/etc/passwd", fresh("moved"))),
    ("truncate a host file", |_| OpenOptions::new().write(true).truncate(true).open("/etc/passwd").map(drop)),
    ("truncate by path", |_| call(libc::SYS_truncate, &[at(c"/etc/passwd"), 0])),
    ("change a host file's mode", |_| call(libc::SYS_fchmodat, &[HERE, at(c"/etc/passwd"), 0o777])),
    ("change a host file's owner", |_| call(libc::SYS_fchownat, &[HERE, at(c"/etc/passwd"), 0, 0, 0])),
    ("make a file in /usr", |_| File::create("/usr/escape").map(drop)),
    ("make a file in /tmp", |_| File::create("/tmp/escape").map(drop)),
    ("make a file in /", |_| File::create("/escape").map(drop)),
    ("make a device node", |_| call(libc::SYS_mknodat, &[HERE, at(c"node"), i64::from(libc::S_IFCHR) | 0o666, 0x101])),
    ("open kernel memory", |_| read("/dev/mem")),
    ("open the kernel log", |_| read("/dev/kmsg")),
    ("open the virtual machine device", |_| OpenOptions::new().read(true).write(true).open("/dev/kvm").map(drop)),
    ("open a disk", |_| {
        ["/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/loop0"].iter().try_fold((), |(), path| read(path))
    }),
    ("read the kernel's core", |_| read("/proc/kcore")),
    ("read kernel keys", |_| read_some("/proc/keys")),
    ("trigger sysrq", |_| fs::write("/proc/sysrq-trigger", "h")),
    ("set the core pattern", |_| fs::write("/proc/sys/kernel/core_pattern", "|/bin/false")),
    ("write to /sys", |_| fs::write("/sys/kernel/uevent_helper", "x")),
    ("list control groups", |_| fs::read_dir("/sys/fs/cgroup").map(drop)),
    ("read init's environment", |host| read_of(host.init_pid, "environ")),
    ("read init's memory", |host| read_of(host.init_pid, "mem")),
    ("read init's map", |host| read_of(host.init_pid, "maps")),
    ("list init's descriptors", |host| list_of(host.init_pid, "fd")),
    ("enter init's root", |host| list_of(host.init_pid, "root/root")),
    ("read the supervisor's memory", |host| File::open(format!("/proc/{}/mem", host.supervisor_pid)).map(drop)),
    ("list the supervisor's descriptors", |host| fs::read_dir(format!("/proc/{}/fd", host.supervisor_pid)).map(drop)),
    ("trace init", |host| call_on_init(host, |pid| raw(libc::SYS_ptrace, &[i64::from(libc::PTRACE_ATTACH), pid]))),
    ("seize init", |host| call_on_init(host, |pid| raw(libc::SYS_ptrace, &[i64::from(libc::PTRACE_SEIZE), pid]))),
    ("read init's memory by call", |host| call_on_init(host, |pid| raw(libc::SYS_process_vm_readv, &[pid]))),
    ("take a descriptor of init", |host| {
        call_on_init(host, |pid| raw(libc::SYS_pidfd_getfd, &[raw(libc::SYS_pidfd_open, &[pid]), 3]))
    }),
    ("limit init", |host| {
        call_on_init(host, |pid| {
            let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            raw(libc::SYS_prlimit64, &[pid, i64::from(libc::RLIMIT_NOFILE), &raw const limit as i64])
        })
    }),
    ("kill the supervisor", |host| call(libc::SYS_kill, &[host.supervisor_pid, i64::from(libc::SIGKILL)])),
    ("stop the supervisor", |host| call(libc::SYS_kill, &[host.supervisor_pid, i64::from(libc::SIGSTOP)])),
    ("mount a file system", |_| call(libc::SYS_mount, &[at(c"t"), at(c"."), at(c"tmpfs")])),
    ("remount the root", |_| call(libc::SYS_mount, &[at(c""), at(c"/"), at(c""), libc::MS_REMOUNT as i64])),
    ("unmount", |_| call(libc::SYS_umount2, &[at(c"/proc"), i64::from(libc::MNT_DETACH)])),
    ("open a mount context", |_| filtered(libc::SYS_fsopen, &[at(c"tmpfs"), 0, 0])),
    ("clone a mount", |_| filtered(libc::SYS_open_tree, &[i64::from(libc::AT_FDCWD), at(c"/"), 1])),
    ("pivot the root", |_| filtered(libc::SYS_pivot_root, &[at(c"."), at(c"."), 0])),
    ("change the root", |_| call(libc::SYS_chroot, &[at(c".")])),
    ("unshare a user namespace", |_| call(libc::SYS_unshare, &[i64::from(libc::CLONE_NEWUSER)])),
    ("unshare a mount namespace", |_| call(libc::SYS_unshare, &[i64::from(libc::CLONE_NEWNS)])),
    ("clone into a user namespace", |_| {
        filtered(libc::SYS_clone, &[i64::from(libc::CLONE_NEWUSER | libc::SIGCHLD), 0, 0])
    }),
    ("clone3", |_| filtered(libc::SYS_clone3, &[0, 0, 0])),
    ("enter a namespace", |_| {
        File::open("/proc/self/ns/net").and_then(|it| call(libc::SYS_setns, &[it.as_raw_fd().into()]))
    }),
    ("io_uring", |_| filtered(libc::SYS_io_uring_setup, &[1, &raw mut *Box::new([0u64; 15]) as i64, 0])),
    ("load BPF", |_| filtered(libc::SYS_bpf, &[0, 0, 0])),
    ("open a performance counter", |_| filtered(libc::SYS_perf_event_open, &[0, 0, 0])),
    ("handle page faults", |_| filtered(libc::SYS_userfaultfd, &[0, 0, 0])),
    ("open by handle", |_| filtered(libc::SYS_open_by_handle_at, &[0, 0, 0])),
    ("load a kernel", |_| filtered(libc::SYS_kexec_load, &[0, 0, 0])),
    ("load a module", |_| filtered(libc::SYS_init_module, &[0, 0, 0])),
    ("reboot", |_| filtered(libc::SYS_reboot, &[0, 0, 0])),
    ("set the clock", |_| call(libc::SYS_clock_settime, &[0, &raw const EPOCH as i64])),
    ("use the keyring", |_| filtered(libc::SYS_keyctl, &[0, -3, 0])),
    ("add a key", |_| filtered(libc::SYS_add_key, &[at(c"user"), at(c"k"), 0])),
    ("call through the x32 table", |_| {
        filtered(0x4000_0000 + libc::SYS_unshare, &[i64::from(libc::CLONE_NEWUSER), 0, 0])
    }),
    ("call through the 32-bit gate", |_| thirty_two_bit_unshare()),
    ("become root", |_| call(libc::SYS_setuid, &[0])),
    ("become another user", |_| call(libc::SYS_setresuid, &[1, 1, 1])),
    ("join a group", |_| call(libc::SYS_setgroups, &[1, &raw const ROOT_GROUP as i64])),
    ("gain through a set-uid program", |_| gain_by_set_uid()),
    ("raise a limit", |_| call(libc::SYS_setrlimit, &[i64::from(libc::RLIMIT_NOFILE), &raw const MANY as i64])),
    ("type into a terminal", |_| type_into_terminal()),
    ("run from memory to read the shadow file", |_| run_from_memory()),
    ("connect to the host by TCP", |host| TcpStream::connect(("127.0.0.1", host.tcp_port)).map(drop)),
    ("listen for TCP", |_| TcpListener::bind("127.0.0.1:0").map(drop)),
    ("send UDP out", |_| UdpSocket::bind("0.0.0.0:0").and_then(|it| it.send_to(b"x", "192.0.2.1:53")).map(drop)),
    ("connect to an abstract socket of the host", |host| {
        SocketAddr::from_abstract_name(&host.abstract_name)
            .and_then(|address| UnixStream::connect_addr(&address))
            .map(drop)
    }),
    ("connect to the supervisor", |host| UnixStream::connect(&host.socket).map(drop)),
    ("open a raw socket", |_| socket(libc::AF_INET, libc::SOCK_RAW, 1)),
    ("open a packet socket", |_| socket(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    ("open a virtual socket", |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    ("attach the host's shared memory", |host| call(libc::SYS_shmat, &[host.segment])),
];

/// Makes every attempt inside one sandbox and checks that none but those `harmless` there succeeded and the sandbox
/// lives.
fn try_all(place: Place, harmless: &[&str]) {
    let program = program();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let abstract_name = format!("procbox-escape-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
    let _listening = UnixListener::bind_addr(&address).unwrap();
    let segment = raw(libc::SYS_shmget, &[0, 4096, 0o666]);
    let sandbox = Sandbox::of(place.with(|config| {
        config["read_paths"].as_array_mut().unwrap().push(program.to_str().unwrap().into());
    }));
    let arguments = [
        sandbox.pid("supervisor_pid").to_string(),
        sandbox.pid("init_pid").to_string(),
        listener.local_addr().unwrap().port().to_string(),
        abstract_name.clone(),
        sandbox.place.directory.join("run/agent.sock").to_str().unwrap().to_owned(),
        segment.to_string(),
    ];
    let report = sandbox.output(&format!("'{}' attempt {}", program.display(), arguments.join(" ")));
    raw(libc::SYS_shmctl, &[segment, i64::from(libc::IPC_RMID)]);
    let escaped: Vec<&str> = report.lines().filter_map(|line| line.strip_prefix("ESCAPED: ")).collect();
    assert_eq!(escaped, harmless, "{report}");
    let blocked = report.lines().filter(|line| line.starts_with("blocked")).count();
    assert_eq!(blocked + harmless.len(), ATTEMPTS.len(), "{report}");
    assert_eq!(sandbox.output("echo here"), "here");
}

/// Inside: makes every attempt and prints what came of it.
pub fn attempt(arguments: &[String]) {
    let number = |index: usize| -> i64 { arguments[index].parse().unwrap() };
    let host = Host {
        supervisor_pid: number(0),
        init_pid: number(1),
        tcp_port: number(2) as u16,
        abstract_name: arguments[3].clone(),
        socket: arguments[4].clone(),
        segment: number(5),
    };
    for (name, run) in ATTEMPTS {
        match run(&host) {
            Ok(()) => println!("ESCAPED: {name}"),
            Err(error) => println!("blocked: {name}: {error}"),
        }
    }
}

fn read(path: &str) -> io::Result<()> {
    let mut byte = [0];
    File::open(path)?.read_exact(&mut byte)
}

/// Reading it must fail or bring nothing.
fn read_some(path: &str) -> io::Result<()> {
    read(path)
}

/// Init has pid 1 inside a pid namespace, and its pid of the host otherwise.
fn pids_of_init(init_pid: i64) -> [i64; 2] {
    let has_namespace = fs::read_link("/proc/self").is_ok_and(|own| own.to_str().is_some_and(|own| own.len() < 4));
    if has_namespace { [1, init_pid] } else { [init_pid, init_pid] }
}

fn read_of(init_pid: i64, name: &str) -> io::Result<()> {
    any(pids_of_init(init_pid).map(|pid| read(&format!("/proc/{pid}/{name}"))))
}

fn list_of(init_pid: i64, name: &str) -> io::Result<()> {
    any(pids_of_init(init_pid).map(|pid| fs::read_dir(format!("/proc/{pid}/{name}")).map(drop)))
}

fn call_on_init(host: &Host, attempt: fn(i64) -> i64) -> io::Result<()> {
    any(pids_of_init(host.init_pid).map(|pid| outcome(attempt(pid))))
}

fn any(results: [io::Result<()>; 2]) -> io::Result<()> {
    let [first, second] = results;
    first.or(second)
}

const HERE: i64 = libc::AT_FDCWD as i64;
static EPOCH: libc::timespec = libc::timespec { tv_sec: 1, tv_nsec: 0 };
static ROOT_GROUP: libc::gid_t = 0;
static MANY: libc::rlimit = libc::rlimit { rlim_cur: 1 << 16, rlim_max: 1 << 16 };

fn at(text: &'static CStr) -> i64 {
    text.as_ptr() as i64
}

/// A system call with up to six arguments; the rest are 0.
fn raw(number: libc::c_long, arguments: &[i64]) -> i64 {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: attempts pass integers, or pointers to constants and to values that outlive the call.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

fn outcome(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn call(number: libc::c_long, arguments: &[i64]) -> io::Result<()> {
    outcome(raw(number, arguments))
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<()> {
    call(libc::SYS_socket, &[family, kind, protocol].map(i64::from))
}

/// A call that a filter must refuse, which says EPERM or ENOSYS. Anything else means that the kernel looked at it.
fn filtered(number: libc::c_long, arguments: &[i64]) -> io::Result<()> {
    match call(number, arguments) {
        Err(error) if ![Some(libc::EPERM), Some(libc::ENOSYS)].contains(&error.raw_os_error()) => Ok(()),
        other => other,
    }
}

/// A name in the workspace that nothing has.
fn fresh(name: &str) -> &str {
    let _ = fs::remove_file(name);
    name
}

#[cfg(target_arch = "x86_64")]
fn thirty_two_bit_unshare() -> io::Result<()> {
    const UNSHARE: i64 = 310;
    let mut result = UNSHARE;
    // SAFETY: the 32-bit gate takes its arguments in these registers and touches no memory here; the upper halves
    // of r8 to r11 may be lost, which the clobbers say.
    unsafe {
        std::arch::asm!(
            "push rbx", "mov ebx, {flags:e}", "int 0x80", "pop rbx",
            flags = in(reg) libc::CLONE_NEWUSER, inlateout("rax") result, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        )
    };
    if result as i32 == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-(result as i32))) }
}

#[cfg(not(target_arch = "x86_64"))]
fn thirty_two_bit_unshare() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A program of ours with the set-uid bit, and the host's own: neither may bring another user.
fn gain_by_set_uid() -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::copy("/bin/sh", fresh("own-sh"))?;
    fs::set_permissions("own-sh", fs::Permissions::from_mode(0o4755))?;
    let own = nix::unistd::geteuid().to_string();
    for program in ["./own-sh", "/bin/sh"] {
        let output = Command::new(program).args(["-c", "id -u"]).output()?;
        if String::from_utf8_lossy(&output.stdout).trim() != own {
            return Ok(());
        }
    }
    let bound = raw(libc::SYS_prctl, &[i64::from(libc::PR_GET_NO_NEW_PRIVS)]) == 1;
    if bound { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
}

fn type_into_terminal() -> io::Result<()> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/ptmx")?;
    call(libc::SYS_ioctl, &[terminal.as_raw_fd().into(), libc::TIOCSTI as i64, at(c"x")])
}

/// Programs in memory may run; they are as confined as any.
fn run_from_memory() -> io::Result<()> {
    let program = raw(libc::SYS_memfd_create, &[at(c"x"), 0]);
    let path = format!("/proc/self/fd/{program}");
    fs::write(&path, fs::read("/bin/cat")?)?;
    let status = Command::new(&path)
        .arg("/etc/shadow")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()?;
    if status.success() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}
