//! What a guest gives back after its memory was replaced: pages of this process, and never a page of the snapshot below.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use lab::{Driven, Hypervisor, Lab, OK, PAUSED, RUNNING, can_run};
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The second of two devices.
const BALLOON: u32 = 0xFEB0_1000;
const KIND: u32 = 0x08;
const NOTIFY: u32 = 0x50;
const BALLOON_KIND: u32 = 5;
const RINGS: u32 = 0x6_0000;
/// Where the guest finds what to do.
const LIST: u64 = 0x7_0000;
const WRITE: u32 = 1;
const READ: u32 = 2;
/// Where the number of the page is that the guest gives.
const NUMBERS: u64 = 0x6_6000;
const PAGE: u32 = 0x80_0000;
const OF_THE_SNAPSHOT: u32 = 0x6262_6262;
const OF_THE_GUEST: u32 = 0x6767_6767;

fn word(memory: &Path, address: u64) -> u32 {
    let mut bytes = [0; 4];
    File::open(memory).unwrap().read_exact_at(&mut bytes, address).unwrap();
    u32::from_le_bytes(bytes)
}

/// Has a guest that stands still write to the page, and then give it to the balloon, as the first that it does.
fn stage(guest: &Driven) {
    guest.put(u64::from(PAGE), &OF_THE_SNAPSHOT.to_le_bytes());
    guest.put(NUMBERS, &(PAGE / 4096).to_le_bytes());
    // One chain of one buffer, which is available.
    guest.put(u64::from(RINGS), &NUMBERS.to_le_bytes());
    guest.put(u64::from(RINGS) + 8, &4u32.to_le_bytes());
    guest.put(u64::from(RINGS) + 0x1002, &1u16.to_le_bytes());
    let bring_up = [
        (0x70, 0),
        (0x70, 1),
        (0x70, 3),
        (0x24, 1),
        (0x20, 1),
        (0x70, 11),
        (0x30, 0),
        (0x38, 8),
        (0x80, RINGS),
        (0x90, RINGS + 0x1000),
        (0xA0, RINGS + 0x2000),
        (0x44, 1),
        (0x70, 15),
    ];
    let orders = [(READ, BALLOON + KIND, 0), (WRITE, PAGE, OF_THE_GUEST)]
        .into_iter()
        .chain(bring_up.map(|(register, value)| (WRITE, BALLOON + register, value)))
        .chain([(WRITE, BALLOON + NOTIFY, 0)]);
    for (place, (what, address, value)) in (LIST..).step_by(16).zip(orders) {
        for (offset, word) in [(0, what), (4, address), (8, value)] {
            guest.put(place + offset, &word.to_le_bytes());
        }
    }
}

#[test]
fn after_a_restore_a_page_that_is_given_falls_back_to_the_snapshot_which_stays() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let mut config = lab.config('d');
    for without in ["rootfs", "vsock_uds"] {
        config[without] = json!(null);
    }
    lab.new_ram();
    config["ram"] = json!(lab.path("ram"));
    let hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    assert_eq!(hypervisor.act("pause"), PAUSED);
    stage(&Driven::new(&lab));
    assert_eq!(hypervisor.act_at("snapshot_save", &lab.path("snapshot")), OK);
    let before = fs::read(lab.path("snapshot.mem")).unwrap();
    assert_eq!(hypervisor.act_at("snapshot_restore", &lab.path("snapshot")), OK);
    assert_eq!(hypervisor.act("resume"), RUNNING);
    let (look, memory) = (lab.path("look"), lab.path("look.mem"));
    hypervisor.wait("a page that is taken", || {
        for file in ["look", "look.mem", "look.vmstate"] {
            let _ = fs::remove_file(lab.path(file));
        }
        assert_eq!(hypervisor.act_at("snapshot_save", &look), OK);
        word(&memory, u64::from(RINGS) + 0x2000) >> 16 == 1
    });
    assert_eq!(word(&memory, LIST + 12), BALLOON_KIND);
    assert_eq!(word(&memory, u64::from(PAGE)), OF_THE_SNAPSHOT, "the page is the process's still");
    assert!(fs::read(lab.path("snapshot.mem")).unwrap() == before, "the snapshot is another");
    assert_eq!(hypervisor.act("shutdown"), OK);
}
