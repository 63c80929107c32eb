//! What a command sees, with each combination of layers.

use crate::Case;
use crate::client::shell;
use crate::fixture::{Place, Sandbox};
use serde_json::json;
use wire::request::ExecRequest;

pub const CASES: &[Case] = &[
    ("a command sees its own small world", small_world),
    ("limits of the configuration hold", limits),
    ("the report says what is enforced", enforcement),
    ("an old Landlock with namespaces is enough", old_landlock),
    ("Landlock alone is enough without namespaces", landlock_only),
    ("without version 2, a minder keeps commands together", minders),
    ("init is never in the groups that limit commands", init_outside_work),
    ("the plan lists every gap and starts nothing", plans),
    ("best effort runs and lists what is not enforced", best_effort),
];

fn small_world() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output("ls -A / | tr '\\n' ' '"), "bin dev etc lib lib64 proc sbin usr workspace");
    assert_eq!(sandbox.output("ls -A /etc | tr '\\n' ' '"), "alternatives ld.so.cache passwd");
    assert_eq!(sandbox.output("hostname; pwd; id -u; id -G"), {
        let uid = sandbox.place.config["sandbox_uid"].to_string();
        format!("sandbox\n/workspace\n{uid}\n{uid}")
    });
    assert_eq!(sandbox.output("id -un; getent passwd $(id -u) | cut -d: -f6; head -n 1 /etc/passwd | cut -d: -f1"), {
        "sandbox\n/workspace\nroot"
    });
    assert_eq!(sandbox.output("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), "lo");
    assert_eq!(sandbox.output("ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3", "ls itself opens 3");
    assert_eq!(sandbox.output("grep -c '^CapEff:.0*$\\|^NoNewPrivs:.1$\\|^Seccomp:.2$' /proc/self/status"), "3");
    assert_eq!(sandbox.output("test -e /proc/$$ && ! test -e /proc/1 && echo hidden"), "hidden");
    assert_eq!(sandbox.output("echo x > /tmp/x || echo BLOCKED"), "BLOCKED");
    assert_eq!(sandbox.output("touch /usr/x /x /etc/x /dev/x 2>/dev/null || echo BLOCKED"), "BLOCKED");
    assert_eq!(
        sandbox.output("head -c 3 /dev/zero | wc -c; echo x > /dev/null; head -c 4 /dev/urandom | wc -c"),
        "3\n4"
    );
    assert_eq!(
        sandbox.output("script -qc 'tty; stty size' /dev/null").lines().next().map(str::trim_end),
        Some("/dev/pts/0")
    );
    assert_eq!(sandbox.output("cat /proc/self/cgroup | grep -c procbox-test || true"), "0", "group names are hidden");
    assert_eq!(sandbox.output("umask; cat /proc/kallsyms /proc/keys /proc/kcore 2>/dev/null | wc -c"), "0022\n0");
}

fn limits() {
    let place = Place::new().with(|config| {
        config["limits"]["file_size_max_bytes"] = 4096.into();
        config["limits"]["cpu_seconds"] = 1.into();
    });
    let sandbox = Sandbox::of(place);
    assert_eq!(sandbox.output("ulimit -n; ulimit -c"), "256\n0");
    let outcome = sandbox.run("head -c 8192 /dev/zero > big; echo $?; stat -c %s big");
    assert!(outcome.stdout.ends_with("4096\n"), "{outcome:?}");
    let outcome = sandbox.run("while :; do :; done");
    assert_eq!(outcome.status.signal, Some(libc::SIGXCPU));
    let outcome = sandbox.run("trap '' XCPU; while :; do :; done");
    assert_eq!(outcome.status.signal, Some(libc::SIGKILL));
}

fn enforcement() {
    let sandbox = Sandbox::new();
    let abi = sandbox.report["enforcement"]["landlock_abi"].as_u64().unwrap();
    assert_eq!(
        sandbox.report["enforcement"],
        json!({
            "landlock_abi": abi, "filesystem": true, "tcp_connect": true, "tcp_bind": true, "scope_abstract_unix": true,
            "scope_signal": true, "seccomp": true, "uid_dropped": true, "namespaces": true, "network_isolated": true,
            "seccomp_sockets": false, "not_enforced": [],
        })
    );
    assert_eq!(sandbox.report["workspace"], "/workspace");
}

fn old_landlock() {
    for abi in [0, 1, 2, 3] {
        let sandbox = Sandbox::of(Place::new().with(|config| config["max_abi"] = abi.into()));
        assert_eq!(sandbox.report["enforcement"]["landlock_abi"], abi);
        assert_eq!(sandbox.output("cat /etc/shadow 2>/dev/null || echo BLOCKED"), "BLOCKED");
        assert_eq!(
            sandbox
                .output("echo x > f; mkdir d; mv f d/f 2>/dev/null; cat d/f f 2>/dev/null; echo done")
                .lines()
                .last(),
            Some("done")
        );
    }
}

fn landlock_only() {
    let sandbox = Sandbox::of(Place::new().with(|config| config["isolation"] = "off".into()));
    let inside = sandbox.place.workspace();
    assert_eq!(sandbox.report["workspace"], inside.to_str().unwrap());
    assert_eq!(sandbox.output("pwd; echo x > file; cat file"), format!("{}\nx", inside.display()));
    assert_eq!(
        sandbox.output("cat /etc/shadow 2>/dev/null || echo BLOCKED; ls /root 2>/dev/null || echo BLOCKED"),
        "BLOCKED\nBLOCKED"
    );
    sandbox.write("/by-worker", b"1").unwrap();
    assert_eq!(sandbox.output("cat by-worker"), "1");
    // Its signals reach its own processes only.
    assert_eq!(sandbox.run("kill -9 -1").status.signal.or(Some(9)), Some(9));
    assert_eq!(sandbox.output("echo here"), "here");
    let background = ExecRequest { kill_group: false, ..shell("(setsid sleep 60 >/dev/null 2>&1 &); exit 0") };
    sandbox.exec(background).unwrap();
    sandbox.signal("supervisor_pid", libc::SIGKILL);
    sandbox.assert_no_processes();
}

fn minders() {
    let sandbox = Sandbox::of(Place::new().without_v2());
    for code in [0, 3, 255] {
        assert_eq!(sandbox.run(&format!("exit {code}")).status.exit_code, Some(code));
    }
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGRTMAX(), libc::SIGUSR2] {
        // SIGUSR2 is how a minder tells of a kill, so the two are not told apart here.
        let expected = if signal == libc::SIGUSR2 { libc::SIGKILL } else { signal };
        assert_eq!(sandbox.run(&format!("kill -{signal} $$")).status.signal, Some(expected));
    }
    let daemon = "(setsid sh -c 'echo $$ > pid; exec sleep 60' &) ; while [ ! -s pid ]; do :; done; echo started";
    assert_eq!(sandbox.output(daemon), "started");
    assert_eq!(sandbox.output("ps -e -o comm= | grep -c sleep || true"), "0");
    let outcome = sandbox.exec(ExecRequest { timeout_ms: 300, ..shell("(setsid sleep 60 &); trap '' TERM; sleep 60") });
    assert!(outcome.unwrap().status.timed_out);
    assert_eq!(sandbox.output("ps -e -o comm= | grep -c sleep || true"), "0");
    sandbox.run("kill -9 -1");
    assert_eq!(sandbox.run("echo here").stdout, "here\n");
    let bomb = ExecRequest { timeout_ms: 1000, ..shell("b() { b | b & }; b; sleep 60") };
    sandbox.exec(bomb).unwrap();
    assert_eq!(sandbox.run("echo here").stdout, "here\n");
}

fn init_outside_work() {
    for place in [Place::new(), Place::new().without_v1_init()] {
        let sandbox = Sandbox::of(place);
        sandbox.write("/file", b"x").unwrap();
        let groups = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let in_work = |pid: &i32| groups(*pid).contains("/work");
        assert!(!in_work(&sandbox.pid("init_pid")), "{}", groups(sandbox.pid("init_pid")));
        let spawners = sandbox.processes().iter().filter(|pid| in_work(pid)).count();
        assert_eq!(spawners, 1, "the spawner, and not the worker");
    }
}

fn plans() {
    let place = Place::new().with(|config| {
        config["read_paths"] = ["/usr", "/one/gap", "/two/gap"].into();
        config["cgroup"] = serde_json::Value::Null;
    });
    let plan = place.plan();
    let text = plan["gaps"].to_string();
    assert!(text.contains("/one/gap") && text.contains("/two/gap") && text.contains("memory_mib"), "{text}");
    assert!(!place.directory.join("run/agent.sock").exists());
    assert_eq!(Place::new().plan()["gaps"], json!([]));
}

fn best_effort() {
    let sandbox = Sandbox::of(Place::new().with(|config| {
        config["read_paths"].as_array_mut().unwrap().push("/one/gap".into());
        config["best_effort"] = true.into();
    }));
    assert!(sandbox.report["enforcement"]["not_enforced"].to_string().contains("/one/gap"));
    assert_eq!(sandbox.output("echo runs"), "runs");
}
