//! Snapshots that were damaged after they were taken: what can be seen of that is seen before anything of the machine changes.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use lab::{DISK_BYTES, Hypervisor, Lab, OK, RUNNING, can_run};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const PLACES: usize = 200;

/// A machine whose disk has a layer, and a snapshot of it.
fn with_snapshot(lab: &Lab) -> (Hypervisor<'_>, PathBuf) {
    let hypervisor = Hypervisor::start(lab);
    let mut config = lab.config('i');
    config["rootfs_layer"] = json!(lab.path("layer"));
    assert_eq!(hypervisor.boot_now(&config), OK);
    let snapshot = lab.path("snapshot");
    assert_eq!(hypervisor.act_at("snapshot_save", &snapshot), OK);
    (hypervisor, snapshot)
}

#[test]
fn a_layer_that_cannot_be_one_is_found_before_anything_changes() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let (mut hypervisor, snapshot) = with_snapshot(&lab);
    let disk = File::options().read(true).write(true).open(lab.path("snapshot.rootfs")).unwrap();
    // Head of the layer: what it is, its unit, the size of the disk; then its map, where two bits together mean nothing.
    for offset in [0, 8, 16, 4096] {
        let mut before = [0; 4];
        disk.read_exact_at(&mut before, DISK_BYTES + offset).unwrap();
        disk.write_all_at(&[0xFF; 4], DISK_BYTES + offset).unwrap();
        let refused = hypervisor.act_at("snapshot_restore", &snapshot);
        assert!(refused.contains("disk layer: ") && !refused.contains("half-way"), "{offset}: {refused}");
        assert_eq!(hypervisor.act("resume"), RUNNING, "it goes on as before");
        disk.write_all_at(&before, DISK_BYTES + offset).unwrap();
    }
    assert!(!lab.left().iter().any(|name| name.contains("unfinished")), "{:?}", lab.left());
    assert_eq!(hypervisor.act_at("snapshot_restore", &snapshot), OK);
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
}

#[test]
fn damage_to_the_state_is_found_before_anything_changes() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let (mut hypervisor, snapshot) = with_snapshot(&lab);
    let path = lab.path("snapshot.vmstate");
    let whole = fs::read(&path).unwrap();
    // Everywhere: registers that KVM would refuse, or take and run on, and the states of devices.
    let places = (0..PLACES).map(|place| place * whole.len() / PLACES).chain([whole.len() - 1]);
    for at in places {
        let mut changed = whole.clone();
        changed[at] ^= 0x81;
        fs::write(&path, &changed).unwrap();
        let refused = hypervisor.act_at("snapshot_restore", &snapshot);
        assert!(refused.contains("error") && !refused.contains("half-way"), "{at}: {refused}");
        assert_eq!(hypervisor.act("resume"), RUNNING, "{at}: it goes on as before");
    }
    fs::write(&path, &whole).unwrap();
    let mut description: Value = serde_json::from_slice(&fs::read(&snapshot).unwrap()).unwrap();
    assert_eq!(hypervisor.act_at("snapshot_restore", &snapshot), OK);
    // As earlier versions wrote it.
    description.as_object_mut().unwrap().remove("state_sum").unwrap();
    fs::write(&snapshot, description.to_string()).unwrap();
    assert_eq!(hypervisor.act_at("snapshot_restore", &snapshot), OK);
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
}
