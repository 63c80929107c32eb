//! A host without room for what a guest writes: the write waits, nothing else does, nothing is lost, and once there is room
//! everything goes on.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use lab::{Driven, Hypervisor, ID, Lab, OK, PAUSED, RUNNING, can_jail};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;
use std::ffi::CString;
use std::fs;
use std::path::PathBuf;

const CLUSTER_SECTORS: u64 = 8;

/// The volume of a lab as a file system of so many KiB, until it is dropped.
struct SmallVolume(PathBuf);

impl SmallVolume {
    fn mount(lab: &Lab, kib: u32) -> Self {
        let path = lab.path("volume");
        let options = CString::new(format!("size={kib}k,mode=700,uid={ID},gid={ID}")).unwrap();
        mount("small", &path, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).unwrap();
        Self(path)
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let filler = fs::File::create(self.0.join("filler")).unwrap();
        while std::io::Write::write(&mut &filler, &[1; 4096]).is_ok() {}
    }

    fn make_room(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallVolume {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A part of a cluster that nobody wrote, so that the rest has to be copied.
const FRESH: u64 = 10 * CLUSTER_SECTORS + 1;

fn wait_waiting(hypervisor: &Hypervisor<'_>, count: u32) {
    let shown = format!(r#""blk_waiting_for_room":{count}"#);
    hypervisor.wait(&shown, || hypervisor.act("metrics").contains(&shown));
}

#[test]
fn a_write_without_room_waits_and_goes_on_once_there_is_some() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let volume = SmallVolume::mount(&lab, 128);
    let hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('d'));
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    guest.write_disk(3, b'a');
    volume.fill();
    guest.begin_write(FRESH, b'b');
    wait_waiting(&hypervisor, 1);
    // Others go on, and nothing is taken for written.
    guest.write_beside(4, b'c');
    assert_eq!((guest.read_beside(3), guest.read_beside(4), guest.read_beside(FRESH)), (b'a', b'c', b'1'));
    for _ in 0..2 {
        assert_eq!(hypervisor.act("pause"), PAUSED);
        wait_waiting(&hypervisor, 1);
        let refused = hypervisor.act_at("snapshot_save", &lab.path("volume/snapshot"));
        assert!(refused.contains("No space left"), "{refused}");
        assert_eq!(hypervisor.act("resume"), RUNNING);
    }
    assert_eq!((guest.begun(), guest.read_beside(FRESH)), (None, b'1'));
    volume.make_room();
    hypervisor.wait("the answer", || guest.begun() == Some(true));
    wait_waiting(&hypervisor, 0);
    assert_eq!(lab.left(), ["sockets/control", "sockets/vsock", "volume/layer"]);
    assert_eq!(guest.read_beside(FRESH), b'b');
    guest.write_beside(5, b'e');
    let mut hypervisor = hypervisor.after_power_cut();
    let mut guest = Driven::new(&lab);
    assert_eq!([3, 4, 5, FRESH].map(|sector| guest.read_disk(sector)), [b'a', b'c', b'e', b'b']);
    // Nor does it hold up the end.
    volume.fill();
    guest.begin_write(20 * CLUSTER_SECTORS + 1, b'f');
    wait_waiting(&hypervisor, 1);
    assert_eq!(hypervisor.act("shutdown"), OK);
    hypervisor.ended();
}

#[test]
fn a_write_that_waits_is_in_a_snapshot_and_is_done_by_who_goes_on_from_it() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let volume = SmallVolume::mount(&lab, 256);
    let mut hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('d'));
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    guest.write_disk(3, b'a');
    volume.fill();
    guest.begin_write(FRESH, b'b');
    wait_waiting(&hypervisor, 1);
    // Where there is room.
    let outside = ["", ".mem", ".vmstate", ".rootfs"].map(|end| lab.path(&format!("outside{end}")));
    let fresh = outside.clone().map(|path| fs::File::create_new(path).unwrap());
    assert_eq!(hypervisor.ask_with(&json!({ "action": "snapshot_save" }), &fresh), OK);
    wait_waiting(&hypervisor, 1);
    volume.make_room();
    hypervisor.wait("the answer", || guest.begun() == Some(true));
    let files = outside.map(|path| fs::File::open(path).unwrap());
    assert_eq!(hypervisor.act("pause"), PAUSED);
    assert_eq!(hypervisor.ask_with(&json!({ "action": "snapshot_restore" }), &files), OK);
    // Nobody has done anything yet.
    wait_waiting(&hypervisor, 1);
    assert_eq!(hypervisor.act("resume"), RUNNING);
    wait_waiting(&hypervisor, 0);
    // What the guest has now is in its memory, which is another: the disk tells.
    assert_eq!(hypervisor.act_at("snapshot_save", &lab.path("volume/after")), OK);
    let written = fs::read(lab.path("volume/after.rootfs")).unwrap();
    assert_eq!(written[(FRESH * 512) as usize..][..512], [b'b'; 512]);
    assert_eq!(hypervisor.act("shutdown"), OK);
    hypervisor.ended();
}

#[test]
fn a_commit_without_room_can_be_tried_again() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let volume = SmallVolume::mount(&lab, 128);
    let mut hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('d'));
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    guest.write_disk(3, b'a');
    assert_eq!(hypervisor.act("pause"), PAUSED);
    guest.stage_write(20 * CLUSTER_SECTORS, b'b');
    assert_eq!(hypervisor.act("checkpoint"), OK);
    assert_eq!(hypervisor.act("resume"), RUNNING);
    hypervisor.wait("a write", || hypervisor.trial_bytes() > 0);
    volume.fill();
    for _ in 0..2 {
        let refused = hypervisor.act("commit");
        assert!(refused.contains("No space left") && !refused.contains("half-way"), "{refused}");
        assert_eq!(hypervisor.act("resume"), RUNNING);
    }
    assert!(hypervisor.act("revert").contains("only another commit"));
    volume.make_room();
    assert_eq!(hypervisor.act("commit"), OK);
    hypervisor.wait("its end", || guest.staged_is_done());
    guest.skip_staged();
    assert_eq!((guest.read_disk(3), guest.read_disk(20 * CLUSTER_SECTORS)), (b'a', b'b'));
    assert_eq!(hypervisor.act("shutdown"), OK);
    hypervisor.ended();
}
