//! The program from outside, with a guest of our own on this host's KVM: its control socket, snapshots, and how it ends.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use lab::{DISK_BYTES, Hypervisor, Lab, OK, PAUSED, RUNNING, can_jail, can_run};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

#[test]
fn the_status_tells_how_the_guest_ended() {
    if !can_run() {
        return;
    }
    for (letter, status) in [('h', 0), ('r', 20), ('f', 21)] {
        let lab = Lab::new();
        let mut hypervisor = Hypervisor::start(&lab);
        assert_eq!(hypervisor.boot_now(&lab.config(letter)), OK);
        assert_eq!(hypervisor.ended().0.code(), Some(status), "{letter}");
        assert_eq!(lab.left(), [""; 0]);
    }
}

#[test]
fn a_machine_lives_by_requests() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::start(&lab);
    assert!(hypervisor.act("resume").contains("there is no machine yet"));
    assert_eq!(hypervisor.boot_now(&lab.config('s')), OK);
    hypervisor.wait_printed("2");
    assert!(hypervisor.boot_now(&lab.config('s')).contains("there is a machine already, and it is running"));
    for _ in 0..3 {
        assert_eq!(hypervisor.act("pause"), PAUSED);
        assert_eq!(hypervisor.act("pause"), PAUSED);
        assert_eq!(hypervisor.act("resume"), RUNNING);
    }
    let metrics =
        r#""memory_mib":64,"vcpus":2,"lifecycle":"running","max_vcpus":2,"jailed":false,"blk_waiting_for_room":0}"#;
    assert_eq!(hypervisor.act("metrics"), format!(r#"{{"status":"metrics",{metrics}"#));
    assert!(hypervisor.act("balloon").contains(r#"\"memory_mib\":64"#));
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
}

#[test]
fn a_restore_puts_memory_and_disk_back_and_only_reads_the_snapshot() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::start(&lab);
    assert_eq!(hypervisor.boot_now(&lab.config('m')), OK);
    let snapshot = lab.path("snapshot");
    let restore = || hypervisor.act_at("snapshot_restore", &snapshot);
    assert!(restore().contains("cannot be used"));
    assert_eq!(hypervisor.act_at("snapshot_save", &snapshot), OK);
    assert_eq!(hypervisor.act("pause"), PAUSED, "it ran before, so it does afterwards");
    assert!(hypervisor.act_at("snapshot_save", &snapshot).contains("exists already"));
    let files = ["", ".mem", ".vmstate", ".rootfs"].map(|end| lab.path(&format!("snapshot{end}")));
    let contents = || files.iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect::<BTreeMap<_, _>>();
    let before = contents();
    for _ in 0..3 {
        fs::write(lab.path("disk"), vec![b'2'; DISK_BYTES as usize]).unwrap();
        assert_eq!(restore(), OK);
        assert_eq!(fs::read(lab.path("disk")).unwrap(), vec![b'1'; DISK_BYTES as usize]);
        assert_eq!(hypervisor.act("resume"), RUNNING);
        assert_eq!(hypervisor.act("pause"), PAUSED);
    }
    assert!(before == contents(), "the snapshot was written");

    // What is wrong with a snapshot is found before anything is changed.
    for file in &files[1..] {
        let whole = fs::read(file).unwrap();
        fs::write(file, &whole[..whole.len() / 2]).unwrap();
        let refused = restore();
        assert!(refused.contains("error") && !refused.contains("half-way"), "{refused}");
        fs::write(file, whole).unwrap();
    }
    assert_eq!(hypervisor.act("resume"), RUNNING);
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
}

#[test]
fn a_bundle_is_a_directory_with_a_snapshot() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::start(&lab);
    assert_eq!(hypervisor.boot_now(&lab.config('m')), OK);
    let bundle = lab.path("bundle");
    assert!(hypervisor.act_at("migrate_import", &bundle).contains("No such file"));
    assert_eq!(hypervisor.act_at("migrate_export", &bundle), OK);
    assert!(hypervisor.act_at("migrate_export", &bundle).contains("exists"));
    assert_eq!(fs::read_dir(&bundle).unwrap().count(), 4);
    assert_eq!(hypervisor.act_at("migrate_import", &bundle), OK);
    assert!(hypervisor.act_at("migrate_export", &lab.path("none/bundle")).contains("No such file"));
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn vcpus_that_were_made_are_given_to_the_guest_by_and_by() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::start(&lab);
    let mut config = lab.config('i');
    config["max_vcpus"] = json!(4);
    assert_eq!(hypervisor.boot_now(&config), OK);
    let add = |count: u32| hypervisor.ask(&json!({ "action": "hotplug_cpu", "add": count }));
    assert!(add(0).contains("at least one"));
    assert!(add(3).contains("2 vCPUs and was made for 4") && add(3).contains("max_vcpus"));
    let snapshot = lab.path("snapshot");
    assert_eq!(hypervisor.act_at("snapshot_save", &snapshot), OK);
    assert!(add(1).contains("echo 1 > /sys/devices/system/cpu/cpu2/online"));
    assert!(hypervisor.act("metrics").contains(r#""vcpus":3,"lifecycle":"running","max_vcpus":4"#));
    assert_eq!(hypervisor.act_at("snapshot_restore", &snapshot), OK);
    assert!(hypervisor.act("metrics").contains(r#""vcpus":2,"#), "as they were when it was saved");
    assert!(hypervisor.act_at("hotplug_disk", &lab.path("disk")).contains("it was not attached"));
    assert!(hypervisor.act_at("hotplug_disk", &lab.path("none")).contains("path: the file cannot be opened"));
    assert_eq!(hypervisor.ask(&json!({ "action": "limit_disk", "blk_ops_limit": 10 })), OK);
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn a_guest_that_may_get_more_vcpus_is_told_with_how_many_to_begin() {
    if !can_jail() {
        return;
    }
    // Where the kernel finds its command line.
    const COMMAND_LINE: u64 = 0x2_0000;
    for (most, line) in [(2, "i"), (4, "i maxcpus=2")] {
        let lab = Lab::new();
        let mut config = lab.jailed_config('i');
        config["max_vcpus"] = json!(most);
        let hypervisor = Hypervisor::boot(&lab, &config);
        hypervisor.wait_running();
        let mut found = vec![0; line.len() + 1];
        fs::File::open(lab.path("ram")).unwrap().read_exact_at(&mut found, COMMAND_LINE).unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), format!("{line}\0"));
        assert_eq!(hypervisor.act("shutdown"), OK);
    }
}

#[test]
fn the_power_button_is_pressed_by_a_request() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::start(&lab);
    assert_eq!(hypervisor.boot_now(&lab.config('p')), OK);
    hypervisor.wait_printed("w");
    assert_eq!(hypervisor.act("pause"), PAUSED);
    assert!(hypervisor.act("power_button").contains("cannot press the power button of a machine that is paused"));
    assert_eq!(hypervisor.act("resume"), RUNNING);
    assert_eq!(hypervisor.act("power_button"), RUNNING);
    assert_eq!(hypervisor.ended().0.code(), Some(0));
    assert_eq!(hypervisor.printed(), "wp");
}

#[test]
fn a_balloon_takes_what_leaves_the_guest_enough() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::start(&lab);
    let mut config = lab.config('i');
    config["memory_mib"] = json!(256);
    assert_eq!(hypervisor.boot_now(&config), OK);
    let balloon = |mib: u64| hypervisor.ask(&json!({ "action": "balloon", "balloon_mib": mib }));
    let is = |target: u64| format!(r#"{{\"actual_mib\":0,\"memory_mib\":256,\"target_mib\":{target}}}"#);
    assert!(balloon(192).contains(&is(192)), "{}", balloon(192));
    for mib in [193, 256, 257, u64::MAX] {
        assert!(balloon(mib).contains("leaves the guest less than 64 MiB"), "{mib}: {}", balloon(mib));
    }
    assert!(hypervisor.act("balloon").contains(&is(192)), "a refusal changes nothing");
    assert!(balloon(0).contains(&is(0)));
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn a_program_types_and_reads_at_the_serial_port() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::start(&lab);
    let mut config = lab.config('e');
    config["serial_uds"] = json!(lab.path("sockets/serial"));
    assert_eq!(hypervisor.boot_now(&config), OK);
    let stranger = UnixStream::connect(lab.path("sockets/serial")).unwrap();
    let mut client = UnixStream::connect(lab.path("sockets/serial")).unwrap();
    // Who came first is left, and notices.
    assert_eq!((&stranger).read(&mut [0; 1]).unwrap(), 0);
    client.set_read_timeout(Some(lab::PATIENCE)).unwrap();
    let text = "abcdefgh".repeat(8);
    for letter in text.bytes() {
        // This guest takes one letter an interrupt.
        client.write_all(&[letter]).unwrap();
        let mut echoed = [0];
        client.read_exact(&mut echoed).unwrap();
        assert_eq!(echoed, [letter]);
    }
    client.write_all(b"q").unwrap();
    assert!(hypervisor.ended().0.success());
    assert_eq!(hypervisor.printed(), format!("{text}q"));
    assert_eq!(lab.left(), [""; 0]);
}

#[test]
fn a_jail_is_entered_at_the_start_or_not_at_all() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::start(&lab);
    assert!(hypervisor.boot_now(&lab.jailed_config('i')).contains("jail: only a process that has not begun"));
    assert_eq!(hypervisor.act("shutdown"), OK);
}
