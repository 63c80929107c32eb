//! Sandboxes of an ordinary user, who has no control groups and makes namespaces inside a user namespace.

use crate::Case;
use crate::client::shell;
use crate::fixture::{Place, Sandbox};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use wire::request::ExecRequest;

/// The user that owns nothing.
const NOBODY: u32 = 65534;

pub const CASES: &[Case] = &[
    ("an ordinary user has strict sandboxes", strict),
    ("an ordinary user's commands are kept together", kept_together),
    ("a command that keeps its minder stopped is killed in time", stopped_minder),
    ("an ordinary user may grant ports of the host's network", ports),
    ("an ordinary user has Landlock-only sandboxes", landlock_only),
    ("a delegated control group of an ordinary user is used", delegated),
    ("limits hold without control groups", limits),
];

fn strict() {
    let mut sandbox = Sandbox::of(Place::of_user(NOBODY));
    assert_eq!(sandbox.report["enforcement"]["namespaces"], true);
    assert_eq!(sandbox.report["enforcement"]["uid_dropped"], false);
    assert_eq!(sandbox.output("id -u; pwd; echo x > file; cat file"), "65534\n/workspace\nx");
    assert_eq!(
        sandbox.output("cat /etc/shadow 2>/dev/null || echo BLOCKED; ls /tmp 2>/dev/null || echo BLOCKED"),
        "BLOCKED\nBLOCKED"
    );
    assert_eq!(sandbox.output("grep '^CapEff\\|^CapBnd' /proc/self/status | grep -vc ':.0*$' || true"), "0");
    assert_eq!(sandbox.output("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), "lo");
    sandbox.write("/by-worker", b"1").unwrap();
    assert_eq!(sandbox.read("/file").unwrap(), b"x\n");
    assert_eq!(sandbox.manifest(None).unwrap().0.files, 2);
    sandbox.signal("init_pid", libc::SIGKILL);
    assert_eq!(sandbox.wait().unwrap()["reason"], "init_died");
}

fn kept_together() {
    let sandbox = Sandbox::of(Place::of_user(NOBODY));
    let daemon = "(setsid sh -c 'echo $$ > pid; exec sleep 60' &) ; while [ ! -s pid ]; do :; done; echo started";
    assert_eq!(sandbox.output(daemon), "started");
    assert_eq!(sandbox.output("ps -e -o comm= | grep -c sleep || true"), "0");
    let outcome = sandbox.exec(ExecRequest { timeout_ms: 300, ..shell("(setsid sleep 60 &); trap '' TERM; sleep 60") });
    assert!(outcome.unwrap().status.timed_out);
    sandbox.run("kill -9 -1");
    assert_eq!(sandbox.run("echo here").stdout, "here\n");
}

fn stopped_minder() {
    let sandbox = Sandbox::of(Place::of_user(NOBODY));
    let started = Instant::now();
    let storm = "(while :; do kill -STOP -1; done) & while :; do kill -STOP -1; done";
    let outcome = sandbox.exec(ExecRequest { timeout_ms: 500, ..shell(storm) }).unwrap();
    assert!(outcome.status.timed_out);
    assert!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
    assert_eq!(sandbox.output("echo here"), "here");
    assert_eq!(sandbox.output("ps -e -o stat= | grep -c T || true"), "0");
}

fn ports() {
    let (granted, other) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let place = Place::of_user(NOBODY).with(|config| config["net_ports"] = vec![port(&granted)].into());
    let sandbox = Sandbox::of(place);
    assert_eq!(sandbox.report["enforcement"]["network_isolated"], false);
    assert_eq!(sandbox.report["enforcement"]["seccomp_sockets"], true);
    // The shell here has no TCP of its own; bash does.
    let connect =
        |port: u16| sandbox.run(&format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' 2>&1")).status.exit_code;
    assert_eq!(connect(port(&granted)), Some(0));
    assert_ne!(connect(port(&other)), Some(0));
    assert!(TcpStream::connect(other.local_addr().unwrap()).is_ok(), "it would have answered");
    assert_ne!(sandbox.run("bash -c 'exec 3<>/dev/udp/127.0.0.1/53' 2>&1").status.exit_code, Some(0));
}

fn landlock_only() {
    let sandbox = Sandbox::of(Place::of_user(NOBODY).with(|config| config["isolation"] = "off".into()));
    assert_eq!(sandbox.output("cat /etc/shadow 2>/dev/null || echo BLOCKED; echo x > file; cat file"), "BLOCKED\nx");
    // Its parent is its minder. Without it, what it started has no name, and everything ends but the sandbox.
    assert_eq!(sandbox.run("kill -9 $PPID; sleep 60").status.signal, Some(libc::SIGKILL));
    assert_eq!(sandbox.run("echo here").stdout, "here\n");
}

fn delegated() {
    let sandbox = Sandbox::of(Place::of_user_with_groups(NOBODY));
    let work = sandbox.place.config["cgroup"]["work_v2"].as_str().unwrap().to_owned();
    assert_eq!(sandbox.output("echo here"), "here");
    assert!(std::path::Path::new(&work).join("e0").is_dir(), "commands have leaves");
    let daemon = "(setsid sh -c 'echo $$ > pid; exec sleep 60' &) ; while [ ! -s pid ]; do :; done; echo started";
    assert_eq!(sandbox.output(daemon), "started");
    assert_eq!(sandbox.output("ps -e -o comm= | grep -c sleep || true"), "0");
}

fn limits() {
    let place = Place::of_user(NOBODY).with(|config| config["limits"]["max_processes"] = 40.into());
    let sandbox = Sandbox::of(place);
    let outcome = sandbox.exec(ExecRequest { timeout_ms: 2000, ..shell("b() { b | b & }; b; sleep 60") }).unwrap();
    assert!(outcome.status.timed_out || outcome.status.exit_code.is_some(), "{outcome:?}");
    assert_eq!(sandbox.run("echo here").stdout, "here\n");
    assert_ne!(
        sandbox.run("head -c 600000000 /dev/zero | tail -c 600000000 > /dev/null").status.exit_code.map(|_| ()),
        None
    );
    assert_eq!(sandbox.output("ulimit -v"), (256 << 10).to_string());
}
