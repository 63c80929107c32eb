//! How a sandbox begins to be and how it ends: nothing is left, and everybody who waits is told.

use crate::Case;
use crate::client::{Connection, Heard, shell};
use crate::fixture::{Place, Sandbox, TOKEN};
use std::fs;
use std::time::{Duration, Instant};
use wire::ErrorCode;
use wire::message::Empty;
use wire::request::{ExecRequest, ShutdownRequest};

pub const CASES: &[Case] = &[
    ("a killed init ends everything and is recorded", init_killed),
    ("a killed supervisor takes the sandbox with it", supervisor_killed),
    ("a shutdown lets commands end and is recorded", shutdown),
    ("SIGTERM to the supervisor is a shutdown", terminated),
    ("a shutdown does not wait for a command that ignores it", stubborn_shutdown),
    ("a launch that fails leaves nothing and says why", failed_launches),
    ("only the agent's user with the token is served", strangers),
    ("directories above may be root's alone", private_parents),
    ("no mount and no pipe is left on the host", no_traces),
    ("supervisor and init have given up every right", rights_given_up),
];

fn init_killed() {
    let mut sandbox = Sandbox::new();
    let mut running = sandbox.connect();
    running.start("exec", &shell("echo ready; sleep 60"));
    assert!(sandbox.output("echo also") == "also");
    sandbox.signal("init_pid", libc::SIGKILL);
    assert_eq!(running.finish_exec().unwrap_err().code, ErrorCode::Gone);
    let record = sandbox.wait().unwrap();
    assert_eq!((record["reason"].as_str(), record["init_status"]["signal"].as_i64()), (Some("init_died"), Some(9)));
    assert!(record["ended_at_unix_ms"].as_u64() > Some(1_600_000_000_000));
    sandbox.assert_no_processes();
}

fn supervisor_killed() {
    let mut sandbox = Sandbox::new();
    for _ in 0..3 {
        let background = ExecRequest { kill_group: false, ..shell("(setsid sleep 60 >/dev/null 2>&1 &); exit 0") };
        sandbox.exec(background).unwrap();
    }
    assert!(sandbox.processes().len() >= 4);
    sandbox.signal("supervisor_pid", libc::SIGKILL);
    assert_eq!(sandbox.wait(), None, "nobody was left to record it");
    sandbox.assert_no_processes();
    assert!(!sandbox.place.group_populated());
}

fn shutdown() {
    let mut sandbox = Sandbox::new();
    let mut running = sandbox.connect();
    running.start("exec", &shell("trap 'echo bye > note; exit 3' TERM; echo ready; while :; do sleep 0.01; done"));
    while sandbox.run("ps -e -o args= | grep -c '[t]rap'").stdout.trim() == "0" {}
    let mut asking = sandbox.connect();
    asking.start("shutdown", &ShutdownRequest { grace_ms: 5000 });
    asking.finish::<Empty>().unwrap();
    assert_eq!(running.finish_exec().unwrap().status.exit_code, Some(3));
    let record = sandbox.wait().unwrap();
    assert_eq!((record["reason"].as_str(), record["init_status"]["exit_code"].as_i64()), (Some("shutdown"), Some(0)));
    assert_eq!(fs::read_to_string(sandbox.place.workspace().join("note")).unwrap(), "bye\n");
}

fn terminated() {
    let mut sandbox = Sandbox::new();
    sandbox.output("true");
    sandbox.signal("supervisor_pid", libc::SIGTERM);
    assert_eq!(sandbox.wait().unwrap()["reason"], "shutdown");
}

fn stubborn_shutdown() {
    let mut sandbox = Sandbox::new();
    let mut running = sandbox.connect();
    running.start("exec", &shell("trap '' TERM; echo ready; sleep 60 & wait; sleep 60"));
    while !matches!(running.hear().unwrap(), Heard::Data(..)) {}
    let began = Instant::now();
    let mut asking = sandbox.connect();
    asking.start("shutdown", &ShutdownRequest { grace_ms: 300 });
    asking.finish::<Empty>().unwrap();
    assert_eq!(running.finish_exec().unwrap_err().code, ErrorCode::Gone);
    assert_eq!(sandbox.wait().unwrap()["reason"], "shutdown");
    assert!(began.elapsed() < Duration::from_secs(5));
}

fn failed_launches() {
    let failed = |place: Place| match place.launch() {
        Ok(_) => panic!("it launched"),
        Err(failed) => {
            let (place, report) = *failed;
            assert!(!place.group_populated());
            assert_eq!(report["ok"], false);
            (report["code"].as_str().unwrap().to_owned(), report["message"].as_str().unwrap().to_owned())
        }
    };
    let (code, message) = failed(Place::new().with(|config| config["surprise"] = 1.into()));
    assert!(code == "BAD_CONFIG" && message.contains("surprise"), "{message}");
    let (code, message) = failed(Place::new().with(|config| config["workspace"] = "/no/such/place".into()));
    assert!(code == "CONFINEMENT_UNAVAILABLE" && message.contains("/no/such/place"), "{message}");
    let (code, message) =
        failed(Place::new().with(|config| config["read_paths"] = ["/usr", "/a/gap", "/b/gap"].into()));
    assert!(code == "CONFINEMENT_UNAVAILABLE" && message.contains("/a/gap") && message.contains("/b/gap"), "{message}");
    let (code, message) = failed(Place::new().with(|config| config["exit_record"] = "/proc/exit.json".into()));
    assert!(code == "BAD_CONFIG" && message.contains("exit_record"), "{message}");
    let (code, message) = failed(Place::new().with(|config| config["socket"] = "/no/such/agent.sock".into()));
    assert!(code == "LAUNCH_FAILED" && message.contains("agent.sock"), "{message}");
    // Init itself cannot go on, after it was forked: no file system takes such a name.
    let name = format!("/{}", "x".repeat(300));
    let (code, message) = failed(Place::new().with(|config| config["mount_at"] = name.into()));
    assert!(code == "LAUNCH_FAILED" && message.contains("binding"), "{message}");
}

fn strangers() {
    let sandbox = Sandbox::new();
    let socket = sandbox.place.directory.join("run/agent.sock");
    let refused = Connection::open(&socket, "a wrong token").err().unwrap();
    assert!(refused.to_string().contains("UNAUTHORIZED"), "{refused}");
    drop(sandbox);
    let other = Sandbox::of(Place::new().with(|config| config["peer_uid"] = 4242.into()));
    let socket = other.place.directory.join("run/agent.sock");
    assert!(Connection::open(&socket, TOKEN).is_err(), "root is not the user that it serves");
}

fn private_parents() {
    let place = Place::new();
    fs::set_permissions(&place.directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut sandbox = Sandbox::of(place);
    assert_eq!(sandbox.output("echo x > file; cat file"), "x");
    sandbox.write("/by-worker", b"1").unwrap();
    sandbox.signal("init_pid", libc::SIGKILL);
    assert_eq!(sandbox.wait().unwrap()["reason"], "init_died");
}

fn no_traces() {
    let looked = std::thread::spawn(|| {
        share_own_mounts();
        look_for_traces();
    });
    looked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Gives this thread mounts of its own, which travel as those of a host with systemd do: what others mount meanwhile is
/// not seen, and what a sandbox let out would be.
fn share_own_mounts() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    for how in [libc::MS_PRIVATE, libc::MS_SHARED] {
        let (flags, null) = (libc::MS_REC | how, std::ptr::null::<libc::c_char>());
        // SAFETY: the target is a constant; the other pointers may be null for a change of propagation.
        assert_eq!(unsafe { libc::mount(null, c"/".as_ptr(), null, flags, null.cast()) }, 0);
    }
}

fn look_for_traces() {
    let mounts = || fs::read_to_string("/proc/thread-self/mountinfo").unwrap().lines().count();
    let before = mounts();
    let sandbox = Sandbox::new();
    sandbox.output("true");
    for of in ["supervisor_pid", "init_pid"] {
        for stream in 0..=2 {
            let target = fs::read_link(format!("/proc/{}/fd/{stream}", sandbox.pid(of))).unwrap();
            // Init's /dev is no longer in sight from where it opened it.
            assert!(target.ends_with("null"), "{of} {stream}: {}", target.display());
        }
        let start = fs::read_to_string(format!("/proc/{}/stat", sandbox.pid(of))).unwrap();
        let name = of.replace("pid", "start");
        assert!(start.contains(&format!(" {} ", sandbox.report[name.as_str()])));
    }
    assert_eq!(mounts(), before, "the sandbox's mounts are its own");
    drop(sandbox);
    assert_eq!(mounts(), before);
}

fn rights_given_up() {
    let sandbox = Sandbox::new();
    sandbox.write("/file", b"x").unwrap();
    let uids = ["sandbox_uid", "supervisor_uid"].map(|name| sandbox.place.config[name].as_u64().unwrap());
    let mut pids = sandbox.processes();
    assert!(pids.len() >= 3, "init, spawner, worker");
    pids.push(sandbox.pid("supervisor_pid"));
    for pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap()[name.len()..].trim();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{pid} {set}");
        }
        assert_eq!(field("NoNewPrivs:"), "1");
        let is_supervisor = pid == sandbox.pid("supervisor_pid");
        let uid = uids[usize::from(is_supervisor)];
        for ids in ["Uid:", "Gid:"] {
            assert!(field(ids).split_whitespace().all(|id| id == uid.to_string()), "{pid} {}", field(ids));
        }
        assert_eq!(field("Groups:"), if is_supervisor { uids[0].to_string() } else { String::new() });
        // Not dumpable: its files in /proc are root's.
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid(), 0);
    }
    let seccomp = fs::read_to_string(format!("/proc/{}/status", sandbox.pid("supervisor_pid"))).unwrap();
    assert!(seccomp.contains("Seccomp:\t2"));
}
