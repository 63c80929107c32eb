//! A host that lacks something: no KVM, no place for a snapshot. And one that has nothing to do: no thread wakes up by itself.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use lab::{Driven, Hypervisor, Lab, OK, PAUSED, RUNNING, can_jail, can_run};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_kvm_that_is_absent_or_none_is_told_and_nothing_is_left() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let config = lab.path("config");
    fs::write(&config, lab.jailed_config('i').to_string()).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    for (hide, said) in [
        (format!("mount --bind {empty} /dev"), "/dev/kvm cannot be opened: No such file"),
        ("mount --bind /dev/null /dev/kvm".to_owned(), "the host's KVM has no API of version 12"),
    ] {
        let script = format!("{hide} && exec \"$0\" --api-sock \"$1\" --boot-config \"$2\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_fluxvm-hypervisor")]);
        let output = command.arg(lab.path("sockets/control")).arg(&config).output().unwrap();
        let found = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), found.lines().count()), (Some(1), 1), "{found}");
        assert!(found.contains(said), "{hide}: {found}");
        assert_eq!(lab.left(), [""; 0], "{hide}");
    }
}

#[test]
fn a_snapshot_replaces_none_of_its_four_files() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::start(&lab);
    assert_eq!(hypervisor.boot_now(&lab.config('i')), OK);
    let snapshot = lab.path("snapshot");
    for end in ["", ".mem", ".vmstate", ".rootfs"] {
        let name = format!("snapshot{end}");
        fs::write(lab.path(&name), "somebody's").unwrap();
        let refused = hypervisor.act_at("snapshot_save", &snapshot);
        assert!(refused.contains(&format!("{name} exists already")), "{refused}");
        assert_eq!(lab.left(), [name.as_str(), "sockets/control", "sockets/vsock"]);
        assert_eq!(fs::read(lab.path(&name)).unwrap(), b"somebody's");
        fs::remove_file(lab.path(&name)).unwrap();
        assert_eq!(hypervisor.act("resume"), RUNNING, "it goes on as before");
    }
    assert_eq!(hypervisor.act_at("snapshot_save", &snapshot), OK);
    assert_eq!(hypervisor.act("shutdown"), OK);
}

/// Pages of a file that are not on the disk of the host yet; nothing where the kernel does not tell.
fn pages_to_be_written(path: &Path) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let whole = [0_u64; 2];
    // Cached, dirty, being written, and two of what was dropped.
    let mut found = [0_u64; 5];
    // SAFETY: the kernel reads two numbers and writes five.
    let status = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), whole.as_ptr(), found.as_mut_ptr(), 0) };
    (status == 0).then_some(found[1] + found[2])
}

/// Whether that can be told of files of the lab; names what is missing.
fn is_told(lab: &Lab) -> bool {
    fs::write(lab.path("probe"), [1; 8192]).unwrap();
    fs::File::open(lab.path("probe")).unwrap().sync_all().unwrap();
    let is_told = pages_to_be_written(&lab.path("probe")) == Some(0);
    if !is_told {
        eprintln!("missing host capability: a kernel that tells what a file has beside the disk (6.5)");
    }
    is_told
}

#[test]
fn a_layer_is_on_the_disk_of_the_host_when_it_is_new_and_after_a_commit() {
    let lab = Lab::new();
    if !can_jail() || !is_told(&lab) {
        return;
    }
    let hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('d'));
    hypervisor.wait_running();
    let layer = lab.path("volume/layer");
    assert_eq!(pages_to_be_written(&layer), Some(0), "new");
    let mut guest = Driven::new(&lab);
    guest.write_disk(7, b'a');
    assert_eq!(hypervisor.act("pause"), PAUSED);
    guest.stage_write(7, b'b');
    assert_eq!(hypervisor.act("checkpoint"), OK);
    assert_eq!(hypervisor.act("resume"), RUNNING);
    hypervisor.wait("a write", || hypervisor.trial_bytes() > 0);
    assert_eq!(hypervisor.act("commit"), OK);
    assert_eq!(pages_to_be_written(&layer), Some(0), "after a commit");
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn a_snapshot_is_on_the_disk_of_the_host_when_it_is_taken_and_put_back() {
    let lab = Lab::new();
    if !can_run() || !is_told(&lab) {
        return;
    }
    let hypervisor = Hypervisor::start(&lab);
    assert_eq!(hypervisor.boot_now(&lab.config('c')), OK);
    assert_eq!(hypervisor.act_at("snapshot_save", &lab.path("snapshot")), OK);
    for end in ["", ".mem", ".vmstate", ".rootfs"] {
        assert_eq!(pages_to_be_written(&lab.path(&format!("snapshot{end}"))), Some(0), "{end}");
    }
    assert_eq!(hypervisor.act_at("snapshot_restore", &lab.path("snapshot")), OK);
    assert_eq!(pages_to_be_written(&lab.path("disk")), Some(0), "put back");
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn a_snapshot_without_room_leaves_nothing_and_the_machine_runs() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::start(&lab);
    assert_eq!(hypervisor.boot_now(&lab.config('c')), OK);
    let small = lab.path("small");
    fs::create_dir(&small).unwrap();
    mount("small", &small, "tmpfs", MountFlags::empty(), Some(c"size=256k")).unwrap();
    let refused = hypervisor.act_at("snapshot_save", &small.join("snapshot"));
    let exported = hypervisor.act_at("migrate_export", &small.join("bundle"));
    let left = fs::read_dir(&small).unwrap().count();
    unmount(&small, UnmountFlags::DETACH).unwrap();
    for said in [refused, exported] {
        assert!(said.contains("cannot be used: No space left"), "{said}");
    }
    assert_eq!(left, 0);
    assert!(hypervisor.act("metrics").contains(r#""lifecycle":"running""#));
    assert_eq!(hypervisor.act_at("snapshot_save", &lab.path("snapshot")), OK);
    assert_eq!(hypervisor.act("shutdown"), OK);
}

/// How often each thread has gone to sleep by itself; the kernel's own threads for KVM and rings are not the program's.
fn sleeps(process: u32) -> BTreeMap<String, u64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let of = |path: std::path::PathBuf| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let name = field("Name:").filter(|name| !name.starts_with("kvm-") && !name.starts_with("iou-"))?;
        let count = field("voluntary_ctxt_switches:")?.parse().ok()?;
        Some((format!("{name} {}", path.file_name()?.to_string_lossy()), count))
    };
    tasks.filter_map(|task| of(task.path())).collect()
}

#[test]
fn no_thread_of_an_idle_machine_wakes_up_by_itself() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let mut config = lab.jailed_config('i');
    config["serial_uds"] = json!(lab.path("sockets/serial"));
    config["blk_ops_limit"] = json!(1000);
    let hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let outer = hypervisor.process.id();
    let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
    let inner = children.trim().parse().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let before = [sleeps(outer), sleeps(inner)];
    assert_eq!((before[0].len(), before[1].len()), (1, 6), "{before:?}");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!([sleeps(outer), sleeps(inner)], before);
    assert_eq!(hypervisor.act("shutdown"), OK);
}
