//! What cannot be made: each time one line that says what is wrong, status 1, and nothing that is left.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use lab::{Hypervisor, Lab, can_jail, can_run};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use std::fs;

/// Starts with a configuration, waits for the end and tells what was said. Nothing of it may be left.
fn refused(lab: &Lab, config: &Value) -> String {
    let mut hypervisor = Hypervisor::boot(lab, config);
    let (status, said) = hypervisor.ended();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert_eq!(lab.left(), [""; 0], "{said}");
    said
}

/// Both ways of a machine, if they can be tried: name, configuration.
fn ways(lab: &Lab) -> Vec<(&'static str, Value)> {
    let mut ways = vec![("without a jail", lab.config('i'))];
    if can_jail() {
        ways.push(("in the jail", lab.jailed_config('i')));
    }
    ways
}

#[test]
fn what_cannot_be_opened_or_used_is_named_with_its_field() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    // Not beside the other files, which must be all that there is.
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        fs::write(folder.path().join(name), content).unwrap();
        json!(folder.path().join(name))
    };
    let none = json!(folder.path().join("none"));
    let pipe = json!(folder.path().join("pipe"));
    mknodat(CWD, folder.path().join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let cases: Vec<(&str, Value, &str)> = vec![
        ("kernel", none.clone(), "kernel: "),
        ("kernel", file("text", b"this is no kernel"), "the kernel image cannot be"),
        ("kernel", file("elf", b"\x7fELF\x02\x01\x01"), "the kernel image cannot be"),
        ("kernel", json!(folder.path()), "kernel"),
        ("initrd", none.clone(), "initrd: "),
        ("rootfs", none.clone(), "rootfs: "),
        ("rootfs", file("empty", b""), "rootfs: the device cannot be made"),
        ("rootfs", file("short", &[1; 700]), "700 bytes are not a number of 512-byte sectors"),
        ("rootfs", json!("/dev/null"), "rootfs: "),
        ("config_disk", none.clone(), "config_disk: "),
        ("config_disk", file("odd", &[1; 100]), "config_disk: "),
        ("data_disks", json!([{ "path": none }]), "data_disks: "),
        ("pmem", json!([none]), "pmem: "),
        ("ram", none.clone(), "ram: "),
        ("ram", file("small", &[0; 4096]), "ram: the file must have exactly the size"),
        ("memory_mib", json!(0), "guest memory cannot be 0 bytes"),
        ("memory_mib", json!(1u64 << 40), "guest memory cannot be"),
        ("vcpus", json!(0), "vcpus: "),
        ("vcpus", json!(33), "33 vCPUs: 1 to 32 are possible"),
        ("tap", json!("a-name-that-is-too-long"), "tap: "),
        ("tap", json!("fluxvm-none"), "tap: there is no network device of that name"),
        ("tap", json!("lo"), "tap: it is no tap device"),
        ("vsock_cid", json!(2), "vsock_uds: "),
        ("console", json!("/none/console"), "console: "),
        ("kernel_args", json!("x".repeat(5000)), "command line"),
        ("restore", json!("/none/snapshot"), "/none/snapshot"),
        ("engine", json!("firecracker"), "engine: "),
        // Nobody would ever open its other end.
        ("kernel", pipe.clone(), "it is a pipe"),
        ("initrd", pipe.clone(), "it is a pipe"),
        ("rootfs", pipe.clone(), "rootfs: "),
        ("config_disk", pipe.clone(), "it is a pipe"),
        ("data_disks", json!([{ "path": pipe, "read_only": true }]), "it is a pipe"),
        ("pmem", json!([pipe]), "it is a pipe"),
        ("console", pipe.clone(), "console: "),
        ("restore", pipe.clone(), "it is a pipe"),
    ];
    for (way, config) in ways(&lab) {
        for (field, value, said) in &cases {
            let mut config = config.clone();
            if *field == "memory_mib" {
                config.as_object_mut().unwrap().remove("ram");
            }
            config[*field] = value.clone();
            let found = refused(&lab, &config);
            assert!(found.contains(said), "{field} = {value} {way}: {found}");
        }
    }
}

#[test]
fn layers_that_do_not_fit_are_refused() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    for (layer, bytes, said) in [
        (None, 1000_u64, "rootfs_bytes: must not be less"),
        (None, (1 << 20) + 5, "rootfs_bytes: "),
        (None, 1 << 62, "64 TiB at most"),
        (Some(100), 1 << 20, "rootfs_layer: "),
        (Some((1 << 20) + 8192), 1 << 20, "the file is not a layer of this disk"),
    ] {
        let path = folder.path().join("layer");
        let _ = fs::remove_file(&path);
        if let Some(bytes) = layer {
            fs::write(&path, vec![7; bytes]).unwrap();
        }
        let mut config = lab.config('i');
        config["rootfs_layer"] = json!(path);
        config["rootfs_bytes"] = json!(bytes);
        let found = refused(&lab, &config);
        assert!(found.contains(said), "{layer:?} {bytes}: {found}");
        assert_eq!(path.exists(), layer.is_some(), "a layer that was there stays, and a new one does not");
    }
}

#[test]
fn what_the_jail_does_not_see_is_refused() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    for field in ["rootfs_layer", "vsock_uds", "serial_uds", "hvc_uds"] {
        let mut config = lab.jailed_config('i');
        config[field] = json!("/tmp/elsewhere");
        let said = refused(&lab, &config);
        assert!(said.contains(&format!("{field}: /tmp/elsewhere lies neither in jail.directory nor")), "{said}");
    }
    for (field, value, part) in [
        ("directory", json!("/none"), "open the directory"),
        ("sockets", json!("/none"), "open the directory of sockets"),
        ("cgroup", json!("/none"), "join the cgroup"),
        ("uid", json!(0), "jail: uid and gid must not be root's"),
    ] {
        let mut config = lab.jailed_config('i');
        config["jail"][field] = value;
        let said = refused(&lab, &config);
        assert!(said.contains(part), "{field}: {said}");
    }
}

#[test]
fn a_snapshot_that_does_not_fit_is_no_beginning() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot");
    let mut hypervisor = Hypervisor::start(&lab);
    assert_eq!(hypervisor.boot_now(&lab.config('i')), lab::OK);
    assert_eq!(hypervisor.act_at("snapshot_save", &snapshot), lab::OK);
    assert_eq!(hypervisor.act("shutdown"), lab::OK);
    hypervisor.ended();
    for (field, value) in [("memory_mib", json!(65)), ("vcpus", json!(1)), ("max_vcpus", json!(3))] {
        let mut config = lab.config('i');
        config["restore"] = json!(snapshot);
        config[field] = value;
        assert!(refused(&lab, &config).contains("not one of this machine"), "{field}");
    }
    let state = folder.path().join("snapshot.vmstate");
    let whole = fs::read(&state).unwrap();
    fs::write(&state, &whole[..whole.len() - 3]).unwrap();
    let mut config = lab.config('i');
    config["restore"] = json!(snapshot);
    assert!(refused(&lab, &config).contains("the saved state cannot be loaded"));
}

#[test]
fn a_place_that_is_taken_is_not_taken_over() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let first = Hypervisor::start(&lab);
    assert_eq!(first.act("ping"), lab::OK);
    let mut second = Hypervisor::boot(&lab, &lab.config('i'));
    let (status, said) = second.ended();
    assert!(status.code() == Some(1) && said.contains("in use"), "{said}");
    assert_eq!(first.act("ping"), lab::OK, "who was there goes on");
    assert_eq!(first.act("shutdown"), lab::OK);
}

#[test]
fn a_disk_that_another_machine_writes_to_is_refused() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let first = Hypervisor::start(&lab);
    assert_eq!(first.boot_now(&lab.config('i')), lab::OK);
    let other = Lab::new();
    let mut config = other.config('i');
    config["rootfs"] = json!(lab.path("disk"));
    assert!(refused(&other, &config).contains("another machine writes to it"));
    assert_eq!(first.act("shutdown"), lab::OK);
}

#[test]
fn a_configuration_that_cannot_be_read_is_told() {
    let lab = Lab::new();
    for (text, said) in [("{", "cannot be read"), (r#"{"kernel":"/k"}"#, "memory_mib"), ("", "cannot be read")] {
        fs::write(lab.path("config"), text).unwrap();
        let mut hypervisor = Hypervisor::with_config(&lab);
        let (status, found) = hypervisor.ended();
        assert!(status.code() == Some(1) && found.contains(said), "{text}: {found}");
        assert_eq!(lab.left(), [""; 0]);
    }
}
