//! The program killed at any moment: the next one starts as if nothing had been.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use lab::{Hypervisor, Lab, OK, RUNNING, can_jail};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::time::Duration;

/// What may be there after a kill: all of it is replaced or used by the next start.
const MAY_BE_LEFT: [&str; 5] =
    ["sockets/control", "sockets/serial", "sockets/vsock", "volume/layer", "volume/layer.unfinished"];

fn config(lab: &Lab) -> Value {
    let mut config = lab.jailed_config('i');
    config["serial_uds"] = json!(lab.path("sockets/serial"));
    config
}

/// Moments from the start on, close together at first.
fn moments() -> impl Iterator<Item = Duration> {
    (0..40).map(|step| Duration::from_micros(500 * step + 40 * step * step))
}

fn starts_as_ever(lab: &Lab, config: &Value) {
    let mut hypervisor = Hypervisor::boot(lab, config);
    hypervisor.wait_running();
    assert_eq!(hypervisor.act("resume"), RUNNING);
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
}

#[test]
fn at_its_start() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    for moment in moments() {
        // Whoever starts it anew would do so after the layer was made, too.
        let mut hypervisor = Hypervisor::boot(&lab, &config(&lab));
        std::thread::sleep(moment);
        hypervisor.process.kill().unwrap();
        hypervisor.ended();
        let left = lab.left();
        assert!(left.iter().all(|name| MAY_BE_LEFT.contains(&name.as_str())), "{moment:?}: {left:?}");
        if left.iter().any(|name| name == "volume/layer") {
            fs::remove_file(lab.path("volume/layer")).unwrap();
        }
    }
    starts_as_ever(&lab, &config(&lab));
    assert_eq!(lab.left(), ["volume/layer"]);
}

#[test]
fn while_it_goes_back_to_a_snapshot() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let snapshot = lab.path("volume/snapshot");
    let mut hypervisor = Hypervisor::boot(&lab, &config(&lab));
    hypervisor.wait_running();
    assert_eq!(hypervisor.act_at("snapshot_save", &snapshot), OK);
    assert_eq!(hypervisor.act("shutdown"), OK);
    hypervisor.ended();
    let files = || ["", ".mem", ".vmstate", ".rootfs"].map(|end| fs::read(format!("{}{end}", snapshot.display())));
    let before = files().map(Result::unwrap);
    for moment in moments() {
        let mut hypervisor = Hypervisor::boot(&lab, &config(&lab));
        hypervisor.wait_running();
        let mut control = hypervisor.connect();
        writeln!(control, "{}", json!({ "action": "snapshot_restore", "path": snapshot })).unwrap();
        std::thread::sleep(moment / 4);
        hypervisor.process.kill().unwrap();
        hypervisor.ended();
    }
    let mut again = config(&lab);
    again["restore"] = json!(snapshot);
    starts_as_ever(&lab, &again);
    assert!(before == files().map(Result::unwrap), "the snapshot was written");
}
