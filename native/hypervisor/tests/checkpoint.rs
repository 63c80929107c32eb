//! Checkpoints from outside: what a guest does since one goes away or stays, in memory and on the disk. The guest's memory is
//! a file, which shows what is there when no checkpoint holds it.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use lab::{Driven, Hypervisor, Lab, OK, PAUSED, RUNNING, can_jail};
use serde_json::json;
use std::fs;
use std::time::Duration;

const COUNTER: u64 = 0x5_0000;

/// Lets a paused guest run for a moment.
fn run_a_moment(hypervisor: &Hypervisor<'_>) {
    assert_eq!(hypervisor.act("resume"), RUNNING);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(hypervisor.act("pause"), PAUSED);
}

#[test]
fn memory_goes_back_or_stays() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('c'));
    hypervisor.wait_running();
    let guest = Driven::new(&lab);
    hypervisor.wait("a count", || guest.word(COUNTER) > 0);
    for word in ["revert", "commit"] {
        assert!(hypervisor.act(word).contains("there is no checkpoint"), "{word}");
    }
    for round in 0..5 {
        assert_eq!(hypervisor.act("pause"), PAUSED);
        let before = guest.word(COUNTER);
        assert_eq!(hypervisor.act("checkpoint"), OK);
        assert!(hypervisor.act("checkpoint").contains("there is a checkpoint already"));
        run_a_moment(&hypervisor);
        assert_eq!(guest.word(COUNTER), before, "the file holds what was");
        assert!(hypervisor.act_at("snapshot_save", &lab.path("volume/s")).contains("revert or commit it first"));
        assert_eq!(hypervisor.act("revert"), OK);
        run_a_moment(&hypervisor);
        let again = guest.word(COUNTER);
        assert!(again > before, "{round}: it goes on from there");

        assert_eq!(hypervisor.act("checkpoint"), OK);
        run_a_moment(&hypervisor);
        assert_eq!(hypervisor.act("commit"), OK);
        let kept = guest.word(COUNTER);
        assert!(kept > again, "{round}: what it did stays");
        assert_eq!(hypervisor.act("resume"), RUNNING);
        hypervisor.wait("more", || guest.word(COUNTER) != kept);
    }
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn a_running_machine_goes_on_running() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('c'));
    hypervisor.wait_running();
    for word in ["checkpoint", "revert", "checkpoint", "commit"] {
        assert_eq!(hypervisor.act(word), OK, "{word}");
        assert!(hypervisor.act("metrics").contains(r#""lifecycle":"running""#), "{word}");
    }
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn vcpus_that_were_added_since_are_not_the_guests_any_more() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let mut config = lab.jailed_config('i');
    config["max_vcpus"] = json!(4);
    let hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let has = |vcpus: u32| hypervisor.act("metrics").contains(&format!(r#""vcpus":{vcpus},"#));
    for (word, vcpus) in [("revert", 2), ("commit", 3)] {
        assert_eq!(hypervisor.act("checkpoint"), OK);
        let added = hypervisor.ask(&json!({ "action": "hotplug_cpu", "add": 1 }));
        assert!(added.contains("cpu2/online") && has(3), "{added}");
        assert_eq!(hypervisor.act(word), OK);
        assert!(has(vcpus), "{word}");
    }
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn the_disk_goes_back_or_stays() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('d'));
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    guest.write_disk(7, b'a');
    let mut wanted = b'a';
    for (word, letter) in [("revert", b'b'), ("commit", b'c'), ("revert", b'd'), ("commit", b'e')] {
        assert_eq!(hypervisor.act("pause"), PAUSED);
        guest.stage_write(7, letter);
        assert_eq!(hypervisor.act("checkpoint"), OK);
        assert_eq!(hypervisor.trial_bytes(), 0);
        assert_eq!(hypervisor.act("resume"), RUNNING);
        hypervisor.wait("a write", || hypervisor.trial_bytes() > 0);
        assert_eq!(hypervisor.act("pause"), PAUSED);
        assert_eq!(hypervisor.act(word), OK);
        let is_kept = word == "commit";
        if !is_kept {
            guest.unstage();
        }
        assert_eq!(hypervisor.act("resume"), RUNNING);
        if is_kept {
            hypervisor.wait("its end", || guest.staged_is_done());
            guest.skip_staged();
            wanted = letter;
        }
        assert_eq!(guest.read_disk(7), wanted, "after {word}");
        assert_eq!(lab.left(), ["sockets/control", "sockets/vsock", "volume/layer"]);
    }
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn the_disk_is_as_it_was_when_the_machine_is_killed_meanwhile() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('d'));
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    guest.write_disk(7, b'a');
    assert_eq!(hypervisor.act("pause"), PAUSED);
    guest.stage_write(7, b'b');
    assert_eq!(hypervisor.act("checkpoint"), OK);
    assert_eq!(hypervisor.act("resume"), RUNNING);
    hypervisor.wait("a write", || hypervisor.trial_bytes() > 0);
    let hypervisor = hypervisor.after_power_cut();
    assert_eq!(Driven::new(&lab).read_disk(7), b'a');
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn a_machine_that_lives_on_a_snapshot_has_checkpoints_too() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('c'));
    hypervisor.wait_running();
    let guest = Driven::new(&lab);
    hypervisor.wait("a count", || guest.word(COUNTER) > 0);
    let snapshot = lab.path("volume/snapshot");
    assert_eq!(hypervisor.act_at("snapshot_save", &snapshot), OK);
    assert_eq!(hypervisor.act_at("snapshot_restore", &snapshot), OK);
    assert_eq!(hypervisor.act("pause"), PAUSED);
    assert_eq!(guest.word(COUNTER), 0, "its own file has nothing");
    assert_eq!(hypervisor.act("checkpoint"), OK);
    let held = guest.word(COUNTER);
    run_a_moment(&hypervisor);
    assert_eq!(guest.word(COUNTER), held);
    // The whole memory is there, not only what was written since.
    let second = lab.path("volume/second");
    assert_eq!(hypervisor.act("revert"), OK);
    assert_eq!(hypervisor.act_at("snapshot_save", &second), OK);
    let [first, second] = [snapshot, second].map(|path| fs::read(format!("{}.mem", path.display())).unwrap());
    let pages = || first.chunks(4096).zip(second.chunks(4096)).enumerate();
    let differ: Vec<_> = pages().filter(|(_, (a, b))| a != b).map(|(page, _)| page).collect();
    // Each load of a state gives the machine another generation, in a page of its own.
    let may_differ = [COUNTER as usize / 4096, 0xFF];
    assert!(differ.iter().all(|page| may_differ.contains(page)), "{differ:?}");
    run_a_moment(&hypervisor);
    assert!(guest.word(COUNTER) > held);
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn what_has_no_checkpoints_says_why() {
    if !can_jail() {
        return;
    }
    for (field, value, said) in
        [("rootfs_layer", json!(null), "rootfs_layer"), ("data_disks", json!([{ "path": "disk" }]), "data_disks")]
    {
        let lab = Lab::new();
        let mut config = lab.config('i');
        config["rootfs_layer"] = json!(lab.path("volume/layer"));
        config[field] = value;
        if field == "data_disks" {
            fs::write(lab.path("other"), [0; 512]).unwrap();
            config[field][0]["path"] = json!(lab.path("other"));
        }
        let hypervisor = Hypervisor::boot(&lab, &config);
        hypervisor.wait_running();
        assert!(hypervisor.act("checkpoint").contains(said), "{field}");
        assert_eq!(hypervisor.act("shutdown"), OK);
    }
}
