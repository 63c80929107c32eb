//! Machines that run in the jail, sealed: whatever they do from their start to their end, the filter lets them. This
//! program runs itself in a jail for each case. Needs root and a KVM; without, the missing capability is named.

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::limiter::Limits as Rates;
use fluxvm_engine::virtio::rng::Rng;
use fluxvm_engine::virtio::vsock::Vsock;
use fluxvm_jail::{DIRECTORY, Jail, Limits, Logs, Names, enter, seal};
use guest::{COUNTER, Guest, SECOND_COUNTER, can_run, ram_file};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode};

const ID: u32 = 993_333;

/// What the guest does, by its letter, with how many vCPUs, and what is done with the machine once it is sealed.
type Case = (char, u32, fn(&mut Guest));

const CASES: [Case; 4] = [
    ('v', 1, draws_and_turns_itself_off),
    ('e', 1, echoes_what_is_typed),
    ('c', 1, is_paused_saved_and_loaded),
    ('s', 2, counts_on_two),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, letter, directory] = &arguments[..]
        && flag == "--inside"
    {
        inside(letter.chars().next().expect("a letter"), Path::new(directory));
        return ExitCode::SUCCESS;
    }
    if !can_run() || !rustix::process::geteuid().is_root() {
        eprintln!("missing host capability: root and /dev/kvm");
        println!("{}", summary(0, CASES.len()));
        return ExitCode::SUCCESS;
    }
    let failed = CASES.iter().filter(|(letter, ..)| !runs(*letter)).count();
    println!("\n{}", summary(failed, 0));
    ExitCode::from(u8::from(failed > 0))
}

/// The last line, as Cargo's own tests end: whoever counts tests reads it.
fn summary(failed: usize, ignored: usize) -> String {
    let (outcome, passed) = (if failed == 0 { "ok" } else { "FAILED" }, CASES.len() - failed - ignored);
    format!("test result: {outcome}. {passed} passed; {failed} failed; {ignored} ignored")
}

fn runs(letter: char) -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::chown(directory.path(), Some(ID), Some(ID)).expect("its owner");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--inside", &letter.to_string()])
        .arg(directory.path())
        // Files that the guest is made of are made inside.
        .env("TMPDIR", DIRECTORY)
        .output()
        .expect("run");
    let good = output.status.success();
    println!("test a machine that does '{letter}' runs sealed ... {}", if good { "ok" } else { "FAILED" });
    if !good {
        println!("    {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    good
}

fn inside(letter: char, directory: &Path) {
    let kvm = File::options().read(true).write(true).open("/dev/kvm").expect("a KVM");
    let limits = Limits { descriptors: 128, threads: 32, file_bytes: 1 << 30 };
    let jail =
        Jail { uid: ID, gid: ID, directory: directory.to_owned(), sockets: directory.to_owned(), cgroup: None, limits };
    // SAFETY: nothing but the standard descriptors and the KVM is used afterwards.
    unsafe { enter(&jail, &[kvm.as_fd()], Logs::default()) }.expect("the jail");
    let source = Rng::new(Rates::default()).expect("a device");
    let sockets = Vsock::new(3, &Path::new(DIRECTORY).join("vsock.sock")).expect("a device");
    let devices: Vec<Box<dyn VirtioDevice>> = vec![Box::new(source), Box::new(sockets)];
    let (_, vcpus, act) = CASES.iter().find(|case| case.0 == letter).expect("a known case");
    let mut guest = Guest::on_kvm(Some(kvm), letter, *vcpus, devices, ram_file());
    guest.machine.start().expect("started");
    seal(Names::Refused).expect("sealed");
    act(&mut guest);
    guest.machine.stop();
}

fn draws_and_turns_itself_off(guest: &mut Guest) {
    guest.end();
    assert_eq!(guest.printed(), "K");
}

fn echoes_what_is_typed(guest: &mut Guest) {
    for (index, letter) in b"abcq".iter().enumerate() {
        guest.machine.serial().lock().expect("a port").enqueue(&[*letter]).expect("typed");
        guest.wait_printed(&"abcq"[..=index]);
    }
    guest.end();
}

fn is_paused_saved_and_loaded(guest: &mut Guest) {
    for _ in 0..3 {
        let count = guest.word(COUNTER);
        guest.wait_beyond(COUNTER, count);
        guest.machine.pause().expect("paused");
        let state = guest.machine.save().expect("saved");
        guest.machine.load(&state).expect("loaded");
        guest.machine.resume().expect("resumed");
    }
}

fn counts_on_two(guest: &mut Guest) {
    guest.wait_beyond(COUNTER, 0);
    guest.wait_beyond(SECOND_COUNTER, 0);
}
