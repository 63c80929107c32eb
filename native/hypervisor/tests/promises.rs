//! What the jail promises, tried from inside of the real program while its guest runs: the test looks at the process as the
//! kernel shows it, and makes its threads do system calls that only an attacker would do.

#![cfg(target_arch = "x86_64")]

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;
mod puppet;

use lab::{Hypervisor, ID, Lab, can_jail};
use puppet::{Outcome, Puppet};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;

/// A guest that runs in the jail, and the pid of the process inside.
fn jailed(lab: &Lab) -> (Hypervisor<'_>, u32) {
    let mut config = lab.jailed_config('i');
    config["serial_uds"] = json!(lab.path("sockets/serial"));
    let hypervisor = Hypervisor::boot(lab, &config);
    hypervisor.wait_running();
    let outer = hypervisor.process.id();
    let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
    let inner = children.trim().parse().unwrap();
    (hypervisor, inner)
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}")).split_whitespace().collect::<Vec<_>>().join(" ")
}

const THREADS: [&str; 6] = ["control", "devices", "fluxvm-hypervis", "serial", "vcpu0", "vcpu1"];

/// The threads of the program itself; the kernel adds some for KVM and for rings.
fn thread_names(process: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let mut names: Vec<_> = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).collect();
    names.iter_mut().for_each(|name| *name = name.trim().to_owned());
    names.retain(|name| !name.starts_with("kvm-") && !name.starts_with("iou-"));
    names.sort();
    names
}

#[test]
fn every_thread_has_no_rights_and_both_filters() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let (hypervisor, inner) = jailed(&lab);
    // A thread that has just begun still has the name of the one that made it.
    hypervisor.wait("names", || thread_names(inner) == THREADS);
    for task in fs::read_dir(format!("/proc/{inner}/task")).unwrap() {
        let path = task.unwrap().path();
        let status = fs::read_to_string(path.join("status")).unwrap();
        let name = field(&status, "Name");
        let ids = [ID; 4].map(|id| id.to_string()).join(" ");
        assert_eq!((field(&status, "Uid"), field(&status, "Gid")), (ids.clone(), ids), "{name}");
        assert_eq!(field(&status, "Groups"), "", "{name}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(&status, set), "0".repeat(16), "{name} {set}");
        }
        assert_eq!((field(&status, "NoNewPrivs"), field(&status, "Seccomp")), ("1".into(), "2".into()), "{name}");
        assert_eq!(field(&status, "Seccomp_filters"), "2", "{name}");
    }
    let status = fs::read_to_string(format!("/proc/{inner}/status")).unwrap();
    assert_eq!(field(&status, "NSpid"), format!("{inner} 1"));
}

#[test]
fn the_process_outside_has_no_rights_and_keeps_nothing_open_but_logs() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let (hypervisor, _) = jailed(&lab);
    let outer = hypervisor.process.id();
    let status = fs::read_to_string(format!("/proc/{outer}/status")).unwrap();
    assert_eq!(field(&status, "Uid"), [ID; 4].map(|id| id.to_string()).join(" "));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(&status, set), "0".repeat(16), "{set}");
    }
    assert_eq!(field(&status, "Threads"), "1");
    let open = fs::read_dir(format!("/proc/{outer}/fd")).unwrap().flatten();
    let open = open.map(|entry| fs::read_link(entry.path()).unwrap().to_string_lossy().into_owned());
    let logs = ["console", "console.1"].map(|name| lab.path(name).to_string_lossy().into_owned());
    let (logs_open, others): (Vec<_>, Vec<_>) = open.partition(|target| logs.contains(target));
    assert_eq!(logs_open.len(), 2);
    let mut beside = others.iter().filter(|target| *target != "/dev/null" && !target.starts_with("pipe:"));
    assert!(beside.all(|target| target.starts_with("anon_inode:")), "{others:?}");
}

#[test]
fn it_sees_two_directories_and_is_alone_in_its_namespaces() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let (_hypervisor, inner) = jailed(&lab);
    let root = format!("/proc/{inner}/root");
    let mut names: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["run", "vm"]);
    let mounts = fs::read_to_string(format!("/proc/{inner}/mountinfo")).unwrap();
    assert_eq!(mounts.lines().count(), 3, "{mounts}");
    for (place, flag) in [("/", "ro,"), ("/vm", "rw,"), ("/run", "rw,")] {
        let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[4] == place);
        assert!(words.unwrap()[5].starts_with(&format!("{flag}nosuid,nodev,noexec")), "{mounts}");
    }
    let mut kinds = vec!["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    if fs::exists("/proc/self/ns/time").unwrap() {
        kinds.push("time");
    } else {
        eprintln!("missing host capability: time namespaces");
    }
    for kind in kinds {
        let of = |process: &str| fs::metadata(format!("/proc/{process}/ns/{kind}")).unwrap().ino();
        assert_ne!(of(&inner.to_string()), of("self"), "{kind}");
    }
    let devices = fs::read_to_string(format!("/proc/{inner}/net/dev")).unwrap();
    assert!(devices.lines().skip(2).all(|line| line.trim_start().starts_with("lo:")), "{devices}");
}

#[test]
fn limits_follow_from_the_machine_or_from_what_is_said() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let limit = |inner: u32, name: &str| {
        let limits = fs::read_to_string(format!("/proc/{inner}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let words: Vec<_> = line[name.len()..].split_whitespace().map(str::to_owned).collect();
        assert_eq!(words[0], words[1], "{name} could be raised");
        words[0].clone()
    };
    {
        let (mut hypervisor, inner) = jailed(&lab);
        assert_eq!(limit(inner, "Max core file size"), "0");
        assert_eq!(limit(inner, "Max processes"), "66");
        let file_bytes: u64 = limit(inner, "Max file size").parse().unwrap();
        assert!((64 << 20..128 << 20).contains(&file_bytes), "{file_bytes}");
        assert_eq!(hypervisor.act("shutdown"), lab::OK);
        // The next one is asked at the same place.
        hypervisor.ended();
    }
    let mut config = lab.jailed_config('i');
    config["jail"]["limits"] = json!({ "descriptors": 100, "threads": 20, "file_bytes": 200_000_000 });
    let hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let outer = hypervisor.process.id();
    let inner = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap().trim().parse().unwrap();
    let found = ["Max open files", "Max processes", "Max file size"].map(|name| limit(inner, name));
    assert_eq!(found, ["100", "20", "200000000"]);
    assert_eq!(hypervisor.act("shutdown"), lab::OK);
}

#[test]
fn both_processes_join_the_cgroup() {
    if !can_jail() {
        return;
    }
    let hierarchy = tempfile::tempdir().unwrap();
    if mount("cgroup", hierarchy.path(), "cgroup2", MountFlags::empty(), None).is_err() {
        eprintln!("missing capability: cgroup version 2");
        return;
    }
    let cgroup = hierarchy.path().join(format!("fluxvm-hypervisor-test-{}", std::process::id()));
    fs::create_dir(&cgroup).unwrap();
    let lab = Lab::new();
    let mut config = lab.jailed_config('i');
    config["jail"]["cgroup"] = json!(cgroup);
    let hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let members = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
    drop(hypervisor);
    let gone = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        fs::remove_dir(&cgroup).is_ok()
    });
    unmount(hierarchy.path(), UnmountFlags::DETACH).unwrap();
    assert!(gone, "the cgroup is in use");
    assert_eq!(members.lines().count(), 2, "{members}");
}

/// What an attacker would do, with up to six arguments; texts are put into its memory.
type Attack = (&'static str, libc::c_long, [u64; 6]);

#[test]
fn what_an_attacker_would_do_kills_it() {
    if !can_jail() {
        return;
    }
    const CLONE_VM_THREAD: u64 = 0x0001_0F00;
    let attacks: [Attack; 39] = [
        ("execve", libc::SYS_execve, [0; 6]),
        ("execveat", libc::SYS_execveat, [0; 6]),
        ("fork", libc::SYS_fork, [0; 6]),
        ("vfork", libc::SYS_vfork, [0; 6]),
        ("clone", libc::SYS_clone, [17, 0, 0, 0, 0, 0]),
        ("a thread", libc::SYS_clone, [CLONE_VM_THREAD, 0, 0, 0, 0, 0]),
        ("clone3", libc::SYS_clone3, [0; 6]),
        ("an internet socket", libc::SYS_socket, [2, 1, 0, 0, 0, 0]),
        ("a packet socket", libc::SYS_socket, [17, 3, 0, 0, 0, 0]),
        ("a netlink socket", libc::SYS_socket, [16, 3, 0, 0, 0, 0]),
        ("a vsock socket", libc::SYS_socket, [40, 1, 0, 0, 0, 0]),
        ("a datagram socket", libc::SYS_socket, [1, 2, 0, 0, 0, 0]),
        ("a pair of sockets", libc::SYS_socketpair, [1, 1, 0, 0, 0, 0]),
        ("listening", libc::SYS_bind, [0; 6]),
        ("new rings", libc::SYS_io_uring_setup, [8, 0, 0, 0, 0, 0]),
        ("registering with rings", libc::SYS_io_uring_register, [3, 0, 0, 0, 0, 0]),
        ("a new machine", libc::SYS_ioctl, [3, 0xAE01, 0, 0, 0, 0]),
        ("a new vCPU", libc::SYS_ioctl, [3, 0xAE41, 0, 0, 0, 0]),
        ("other memory for the machine", libc::SYS_ioctl, [3, 0x4020_AE46, 0, 0, 0, 0]),
        ("other events for the machine", libc::SYS_ioctl, [3, 0x4020_AE76, 0, 0, 0, 0]),
        ("a debugger of the guest", libc::SYS_ioctl, [3, 0x4048_AE9B, 0, 0, 0, 0]),
        ("another tap device", libc::SYS_ioctl, [3, 0x4004_54CA, 0, 0, 0, 0]),
        ("a tracer of its own", libc::SYS_prctl, [0x5961_6D61, 1, 0, 0, 0, 0]),
        ("another request", libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0]),
        ("executable memory", libc::SYS_mmap, [0, 4096, 5, 0x22, u64::MAX, 0]),
        ("memory made executable", libc::SYS_mprotect, [0, 4096, 5, 0, 0, 0]),
        ("tracing", libc::SYS_ptrace, [0; 6]),
        ("another's memory", libc::SYS_process_vm_readv, [0; 6]),
        ("a mount", libc::SYS_mount, [0; 6]),
        ("namespaces", libc::SYS_unshare, [0x1000_0000, 0, 0, 0, 0, 0]),
        ("entering namespaces", libc::SYS_setns, [0; 6]),
        ("another root", libc::SYS_chroot, [0; 6]),
        ("another user", libc::SYS_setuid, [0; 6]),
        ("a symbolic link", libc::SYS_symlink, [0; 6]),
        ("a link", libc::SYS_link, [0; 6]),
        ("a device", libc::SYS_mknodat, [0; 6]),
        ("a program in the kernel", libc::SYS_bpf, [0; 6]),
        ("keys", libc::SYS_keyctl, [0; 6]),
        ("a signal to others", libc::SYS_kill, [1, 9, 0, 0, 0, 0]),
    ];
    for (name, call, arguments) in attacks {
        let lab = Lab::new();
        let (mut hypervisor, inner) = jailed(&lab);
        let outcome = Puppet::take(inner).call(call, arguments);
        assert_eq!(outcome, Outcome::Killed(libc::SIGSYS), "{name}");
        let (ended, _) = hypervisor.ended();
        assert!(!ended.success(), "{name}");
    }
}

#[test]
fn files_of_others_are_not_there_and_its_own_are() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let (hypervisor, inner) = jailed(&lab);
    let mut puppet = Puppet::take(inner);
    let mut open = |path: &str, flags: i32| {
        let path = puppet.text(path);
        puppet.call(libc::SYS_openat, [u64::MAX - 99, path, flags as u64, 0o600, 0, 0])
    };
    let none = Outcome::Returned(-i64::from(libc::ENOENT));
    for path in ["/etc/passwd", "/proc/self/mem", "/dev/kvm", "/vm/../etc/passwd", "/run/../../../proc/1/environ"] {
        assert_eq!(open(path, libc::O_RDONLY), none, "{path}");
    }
    let read_only = Outcome::Returned(-i64::from(libc::EROFS));
    assert_eq!(open("/new", libc::O_CREAT | libc::O_WRONLY), read_only);
    assert!(matches!(open("/vm/new", libc::O_CREAT | libc::O_WRONLY), Outcome::Returned(0..)));
    let refused = Outcome::Returned(-i64::from(libc::EACCES));
    if fluxvm_sys::landlock::abi_version().is_ok() {
        assert_eq!(open("/run/new", libc::O_CREAT | libc::O_WRONLY), refused);
    }
    let path = puppet.text("/vm/new");
    assert_eq!(puppet.call(libc::SYS_openat2, [0, path, 0, 24, 0, 0]), refused);
    assert!(matches!(puppet.call(libc::SYS_socket, [1, 1, 0, 0, 0, 0]), Outcome::Returned(0..)));
    drop(puppet);
    assert_eq!(hypervisor.act("ping"), lab::OK, "and it goes on as before");
    assert_eq!(hypervisor.act("pause"), lab::PAUSED);
    assert_eq!(hypervisor.act("shutdown"), lab::OK);
    assert_eq!(fs::metadata(lab.path("volume/new")).unwrap().uid(), ID);
}

#[test]
fn who_asks_whether_it_lives_waits_for_nothing() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let (hypervisor, inner) = jailed(&lab);
    let mut asker = hypervisor.connect();
    // As if it were busy with something that takes long: its first thread, which does what is asked, is stopped.
    let busy = Puppet::take(inner);
    writeln!(asker, "{}", json!({ "action": "pause" })).unwrap();
    assert_eq!(hypervisor.act("ping"), lab::OK);
    assert!(hypervisor.act("metrics").contains(r#""lifecycle":"running""#));
    drop(busy);
    let mut reply = String::new();
    BufReader::new(asker).read_line(&mut reply).unwrap();
    assert_eq!(reply.trim_end(), lab::PAUSED);
    assert_eq!(hypervisor.act("shutdown"), lab::OK);
}
