//! Snapshots in files that come with a request: a machine in its jail takes one where it cannot go, and goes back to one
//! that it cannot write.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use lab::{Driven, Hypervisor, Lab, OK, can_run};
use rustix::process::geteuid;
use serde_json::{Value, json};
use std::fs::{self, File};

const ENDS: [&str; 4] = ["", ".mem", ".vmstate", ".rootfs"];

fn action(name: &str) -> Value {
    json!({ "action": name })
}

/// Files that only root reaches, outside of the jail.
fn paths(lab: &Lab) -> [std::path::PathBuf; 4] {
    ENDS.map(|end| lab.path(&format!("outside{end}")))
}

#[test]
fn a_snapshot_is_taken_into_files_outside_of_the_jail_and_put_back_from_them_read_only() {
    if !can_run() || !geteuid().is_root() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('m'));
    hypervisor.wait_running();
    let guest = Driven::new(&lab);
    guest.put(0x5_0020, b"a");
    hypervisor.wait_printed("a");
    let fresh = paths(&lab).map(|path| File::create_new(path).unwrap());
    assert_eq!(hypervisor.ask_with(&action("snapshot_save"), &fresh), OK);
    let contents = || paths(&lab).map(|path| fs::read(path).unwrap());
    let before = contents();
    assert!(before.iter().all(|content| !content.is_empty()));
    assert_eq!(before[1][0x5_0020], b'a');
    guest.put(0x5_0020, b"b");
    hypervisor.wait_printed("ab");
    for _ in 0..3 {
        let read = paths(&lab).map(|path| File::open(path).unwrap());
        assert_eq!(hypervisor.ask_with(&action("snapshot_restore"), &read), OK);
    }
    // What it printed last is what its memory says, so it prints nothing more.
    assert_eq!(hypervisor.act_at("snapshot_save", &lab.path("volume/inside")), OK);
    assert_eq!(fs::read(lab.path("volume/inside.mem")).unwrap()[0x5_0020], b'a');
    assert_eq!(hypervisor.printed(), "ab");
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
    assert!(before == contents(), "the snapshot was written");
}

#[test]
fn a_machine_begins_from_a_snapshot_that_only_root_can_read() {
    if !can_run() || !geteuid().is_root() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('m'));
    hypervisor.wait_running();
    let fresh = paths(&lab).map(|path| File::create_new(path).unwrap());
    assert_eq!(hypervisor.ask_with(&action("snapshot_save"), &fresh), OK);
    assert_eq!(hypervisor.act("shutdown"), OK);
    hypervisor.ended();
    fs::remove_file(lab.path("volume/layer")).unwrap();
    let mut config = lab.jailed_config('m');
    config["restore"] = json!(lab.path("outside"));
    let mut hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    assert_eq!(hypervisor.act("shutdown"), OK);
    hypervisor.ended();

    fs::remove_file(lab.path("outside.vmstate")).unwrap();
    let mut hypervisor = Hypervisor::boot(&lab, &config);
    let (status, said) = hypervisor.ended();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("restore: ") && said.contains("outside.vmstate cannot be opened"), "{said}");
}

#[test]
fn files_that_are_too_few_too_many_full_or_for_nothing_are_refused() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::start(&lab);
    assert_eq!(hypervisor.boot_now(&lab.config('i')), OK);
    let file = |content: &[u8]| {
        let path = lab.path("console");
        let file = tempfile::tempfile_in(path.parent().unwrap()).unwrap();
        std::io::Write::write_all(&mut &file, content).unwrap();
        file
    };
    let files = |count: usize| (0..count).map(|_| file(b"")).collect::<Vec<_>>();
    let save = action("snapshot_save");
    assert!(hypervisor.ask(&save).contains("needs a path, or 4 files"));
    assert!(hypervisor.ask_with(&save, &files(3)).contains("needs a path, or 4 files"));
    let pipe = File::from(std::os::fd::OwnedFd::from(std::io::pipe().unwrap().1));
    let odd = [file(b""), file(b""), pipe, file(b"")];
    assert!(hypervisor.ask_with(&save, &odd).contains("needs a path, or 4 files"));
    let full = [file(b""), file(b"x"), file(b""), file(b"")];
    assert!(hypervisor.ask_with(&save, &full).contains("the snapshot's memory exists already"));
    assert_eq!(full[1].metadata().unwrap().len(), 1);
    let both = json!({ "action": "snapshot_save", "path": lab.path("snapshot") });
    assert!(hypervisor.ask_with(&both, &files(4)).contains("needs a path, or"));
    assert!(hypervisor.ask_with(&action("pause"), &files(1)).contains("no request that files come with"));
    assert!(hypervisor.ask_with(&action("snapshot_restore"), &files(4)).contains("its description cannot be read"));
    // Files that cannot be written: nothing is left in the others, and the machine goes on.
    let unwritable = [file(b""), file(b""), File::open("/dev/null").unwrap(), file(b"")];
    assert!(hypervisor.ask_with(&save, &unwritable).contains("needs a path"));
    let read_only = fs::File::create(lab.path("console2")).and_then(|_| File::open(lab.path("console2"))).unwrap();
    let some = [file(b""), file(b""), read_only, file(b"")];
    assert!(hypervisor.ask_with(&save, &some).contains("the snapshot's state cannot be used"));
    assert!(some.iter().all(|file| file.metadata().unwrap().len() == 0));
    // More than a request can have ends the connection, and no descriptor is kept.
    assert_eq!(hypervisor.ask_with(&save, &files(8)), "");
    assert!(hypervisor.act("metrics").contains(r#""lifecycle":"running""#));
    let open = || fs::read_dir(format!("/proc/{}/fd", hypervisor.process.id())).unwrap().count();
    let before = open();
    for _ in 0..20 {
        hypervisor.ask_with(&action("pause"), &files(4));
        hypervisor.ask_with(&save, &files(8));
    }
    hypervisor.wait("descriptors that are closed", || open() <= before);
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
}
