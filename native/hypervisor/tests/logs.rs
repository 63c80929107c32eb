//! The logs of a machine in its jail: what is in them at its end, and that they stay within their bound whatever it does.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;
mod puppet;

use lab::{Driven, Hypervisor, Lab, OK, can_jail};
use puppet::{Outcome, Puppet};
use serde_json::{Value, json};
use std::fs;

fn config(lab: &Lab, letter: char) -> Value {
    let mut config = lab.jailed_config(letter);
    config["jail"]["log"] = json!(lab.path("log"));
    config
}

fn inner_of(hypervisor: &Hypervisor<'_>) -> u32 {
    let outer = hypervisor.process.id();
    fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap().trim().parse().unwrap()
}

#[test]
fn the_end_is_in_the_log_whatever_it_is() {
    if !can_jail() {
        return;
    }
    for (letter, status, words) in [('h', 0, "turned itself off"), ('r', 20, "reset"), ('f', 21, "crash")] {
        let lab = Lab::new();
        let (ended, said) = Hypervisor::boot(&lab, &config(&lab, letter)).ended();
        let log = fs::read_to_string(lab.path("log")).unwrap();
        assert_eq!((ended.code(), said.as_str()), (Some(status), ""));
        assert!(log.starts_with("fluxvm-hypervisor: ") && log.contains(words), "{log}");
    }
    let lab = Lab::new();
    let mut unmade = config(&lab, 'h');
    unmade["vsock_uds"] = json!("/tmp/elsewhere");
    let (ended, said) = Hypervisor::boot(&lab, &unmade).ended();
    let log = fs::read_to_string(lab.path("log")).unwrap();
    assert_eq!((ended.code(), said.as_str()), (Some(1), ""));
    assert!(log.contains("vsock_uds: /tmp/elsewhere lies neither in"), "{log}");
}

#[test]
fn what_the_guest_prints_is_there_at_once_and_after_its_end() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::boot(&lab, &config(&lab, 'm'));
    hypervisor.wait_running();
    Driven::new(&lab).put(0x5_0020, b"a");
    hypervisor.wait_printed("a");
    Driven::new(&lab).put(0x5_0020, b"b");
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
    assert!(["a", "ab"].contains(&hypervisor.printed().as_str()));
}

#[test]
fn whoever_has_taken_it_over_fills_no_disk_by_them() {
    if !can_jail() {
        return;
    }
    const BYTES_MAX: u64 = 10_000;
    let lab = Lab::new();
    let mut config = config(&lab, 'i');
    config["jail"]["limits"] = json!({ "log_bytes": BYTES_MAX });
    let mut hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let inner = inner_of(&hypervisor);
    // One that is closed meanwhile is that of a request.
    let open: Vec<(u64, String)> = fs::read_dir(format!("/proc/{inner}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?)))
        .map(|(descriptor, target)| (descriptor, target.to_string_lossy().into_owned()))
        .collect();
    let logs = ["console", "log"].map(|name| lab.path(name).to_string_lossy().into_owned());
    assert!(!open.iter().any(|(_, target)| logs.iter().any(|log| target.starts_with(log))), "{open:?}");
    let pipes: Vec<u64> =
        open.iter().filter(|(_, target)| target.starts_with("pipe:")).map(|(descriptor, _)| *descriptor).collect();
    assert_eq!(pipes.len(), 3, "standard output and error, and the console: {open:?}");
    let mut puppet = Puppet::take(inner);
    let text = puppet.text(&"x".repeat(1000));
    for descriptor in pipes {
        // More than the bound, and less than the pipes hold.
        for _ in 0..25 {
            let outcome = puppet.call(libc::SYS_write, [descriptor, text, 1000, 0, 0, 0]);
            assert_eq!(outcome, Outcome::Returned(1000), "{descriptor}");
        }
        let short = puppet.call(libc::SYS_ftruncate, [descriptor, 0, 0, 0, 0, 0]);
        assert_eq!(short, Outcome::Returned(-i64::from(libc::EINVAL)), "nor can it take back what it said");
    }
    drop(puppet);
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
    let bytes = |name| fs::metadata(lab.path(name)).unwrap().len();
    assert!(["console.1", "log.1"].into_iter().all(|earlier| bytes(earlier) <= BYTES_MAX));
    assert!(["console", "log"].into_iter().all(|log| (1..=BYTES_MAX).contains(&bytes(log))));
}
