//! Commands: how they start, run, end and are ended.

use crate::Case;
use crate::client::{Heard, shell};
use crate::fixture::Sandbox;
use std::time::{Duration, Instant};
use wire::ErrorCode;
use wire::request::ExecRequest;

pub const CASES: &[Case] = &[
    ("exit codes, output and environment arrive", exit_codes_output_and_environment),
    ("a command killed by a signal says which", signals_are_told),
    ("a program that cannot start says why", failed_starts_say_why),
    ("the working directory is below the workspace", working_directories),
    ("a long command runs whole", long_commands),
    ("standard input reaches the command", standard_input),
    ("a command may open its streams by name", streams_by_name),
    ("a timeout kills the command and what it started", timeouts),
    ("a signal reaches the process group", signal_group),
    ("a daemon left behind is killed with kill_group", daemons_are_killed),
    ("a daemon left behind goes on without kill_group", daemons_are_kept),
    ("1 GiB of output is counted and does not stall", endless_output),
    ("many commands run at the same time", concurrency),
    ("256 commands run at a time and no more", most_commands),
    ("kill -9 -1 inside ends that command only", kill_everything),
    ("a fork bomb is bounded and the sandbox answers", fork_bomb),
    ("a memory hog is killed and told as such", memory_hog),
];

fn exit_codes_output_and_environment() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 7, 127, 255] {
        assert_eq!(sandbox.run(&format!("exit {code}")).status.exit_code, Some(code));
    }
    let outcome = sandbox.run("printf out; printf err >&2");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out", "err"));
    assert_eq!(
        sandbox.output("env | sort | grep -v '^_=\\|^PWD='"),
        "HOME=/workspace\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nWORKSPACE=/workspace"
    );
    let request =
        ExecRequest { env: [("A".into(), "1".into()), ("HOME".into(), "/x".into())].into(), ..shell("echo $A $HOME") };
    assert_eq!(sandbox.exec(request).unwrap().stdout, "1 /x\n");
    let argv = ExecRequest { command: None, argv: Some(vec!["printf".into(), "%s".into(), "a b".into()]), ..shell("") };
    assert_eq!(sandbox.exec(argv).unwrap().stdout, "a b");
}

fn signals_are_told() {
    let sandbox = Sandbox::new();
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGRTMAX()] {
        assert_eq!(sandbox.run(&format!("kill -{signal} $$")).status.signal, Some(signal));
    }
}

fn failed_starts_say_why() {
    let sandbox = Sandbox::new();
    let argv = |program: &str| ExecRequest { command: None, argv: Some(vec![program.into()]), ..shell("") };
    for (program, code) in [
        ("no-such-program", ErrorCode::ProgramNotFound),
        ("/etc/passwd/x", ErrorCode::ProgramNotFound),
        ("/etc/passwd", ErrorCode::ProgramDenied),
    ] {
        let fault = sandbox.exec(argv(program)).unwrap_err();
        assert_eq!(fault.code, code);
        assert!(fault.message.contains(program), "{}", fault.message);
    }
    assert_eq!(sandbox.output("echo still here"), "still here");
}

fn working_directories() {
    let sandbox = Sandbox::new();
    sandbox.output("mkdir -p a/b && ln -s / out");
    let at = |cwd: &str| sandbox.exec(ExecRequest { cwd: Some(cwd.into()), ..shell("pwd") });
    assert_eq!(at("/a/b").unwrap().stdout, "/workspace/a/b\n");
    assert_eq!(at("a").unwrap().stdout, "/workspace/a\n");
    assert_eq!(at("/nowhere").unwrap_err().code, ErrorCode::NotFound);
    for outside in ["/out/etc", "../etc", "/a/../../usr"] {
        assert!(at(outside).is_err(), "{outside}");
    }
}

fn long_commands() {
    let sandbox = Sandbox::new();
    for length in [wire::limits::ARGUMENT_MAX, wire::limits::ARGUMENT_MAX + 1, wire::limits::COMMAND_MAX] {
        let tail = "\necho end; ls /proc/self/fd | tr '\\n' ' '";
        let command = format!(": '{}'{tail}", "x".repeat(length - tail.len() - 4));
        assert_eq!(command.len(), length);
        assert_eq!(sandbox.output(&command), "end\n0 1 2 3", "{length}: ls itself opens 3");
    }
}

fn standard_input() {
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    connection.start("exec", &ExecRequest { stdin: true, ..shell("cat") });
    connection.send_content(&vec![b'a'; 300_000]);
    assert_eq!(connection.finish_exec().unwrap().stdout_len, 300_000);
    assert_eq!(sandbox.run("cat").stdout, "", "without it, the input is empty");
}

fn streams_by_name() {
    let sandbox = Sandbox::new();
    let outcome =
        sandbox.run("echo out > /dev/stdout; echo err > /dev/stderr; echo fd >> /proc/self/fd/2; cat < /dev/stdin");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\nfd\n"));
    let mut connection = sandbox.connect();
    connection.start("exec", &ExecRequest { stdin: true, ..shell("cat /dev/stdin | tee /dev/stderr") });
    connection.send_content(b"given");
    let outcome = connection.finish_exec().unwrap();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("given", "given"));
    // The other direction is nobody's business inside.
    let outcome = sandbox.run("head -c 1 < /dev/stdout 2>&1 || echo BLOCKED");
    assert!(outcome.stdout.contains("BLOCKED"), "{outcome:?}");
}

fn timeouts() {
    let sandbox = Sandbox::new();
    let began = Instant::now();
    let command = "trap '' TERM HUP; (setsid sh -c 'sleep 60' &) ; exec 1>&- 2>&-; sleep 60";
    let outcome = sandbox.exec(ExecRequest { timeout_ms: 300, ..shell(command) }).unwrap();
    assert!(outcome.status.timed_out && began.elapsed() < Duration::from_secs(5), "{outcome:?}");
    assert_eq!(sandbox.output("ps -e -o comm= | grep -c sleep || true"), "0");
}

fn signal_group() {
    use wire::frame::Kind;
    use wire::message::OpenWith;
    use wire::request::SignalRequest;
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    connection.start("exec", &shell("trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done"));
    let (mut text, mut signalled) = (String::new(), false);
    let end = loop {
        match connection.hear().unwrap() {
            Heard::Data(1, content) => text.push_str(&String::from_utf8(content).unwrap()),
            Heard::End(payload) if signalled && text.contains("got") => break payload,
            Heard::Failed(fault) => panic!("{fault}"),
            _ => (),
        }
        if text == "ready\n" && !signalled {
            signalled = true;
            let signal = OpenWith { op: "signal", arguments: &SignalRequest { exec: 1, signal: libc::SIGTERM } };
            connection.send(2, Kind::Open, &signal).unwrap();
        }
    };
    let end: wire::message::ExecEnd = rmp_serde::from_slice(&end).unwrap();
    assert_eq!(end.status.exit_code, Some(5));
}

/// Leaves a process that has its own session and holds standard output.
const DAEMON: &str = "(setsid sh -c 'echo $$ > pid; exec sleep 60' &) ; while [ ! -s pid ]; do :; done; echo started";

fn daemons_are_killed() {
    let sandbox = Sandbox::new();
    let began = Instant::now();
    assert_eq!(sandbox.output(DAEMON), "started");
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(sandbox.output("kill -0 $(cat pid) 2>&1 || echo gone").lines().last(), Some("gone"));
}

fn daemons_are_kept() {
    let sandbox = Sandbox::new();
    let command = DAEMON.replace("exec sleep", "exec >/dev/null 2>&1 </dev/null sleep");
    sandbox.exec(ExecRequest { kill_group: false, ..shell(&command) }).unwrap();
    assert_eq!(sandbox.output("kill -0 $(cat pid) && echo there"), "there", "another command may signal it");
    assert_eq!(sandbox.output("kill $(cat pid) && echo killed"), "killed");
}

fn endless_output() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.exec(ExecRequest { output_max: 4096, ..shell("head -c 1073741824 /dev/zero") }).unwrap();
    assert_eq!((outcome.stdout_len, outcome.stdout.len(), outcome.status.exit_code), (1 << 30, 4096, Some(0)));
}

fn concurrency() {
    let sandbox = Sandbox::new();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..20)
            .map(|number| {
                (number, {
                    let sandbox = &sandbox;
                    scope.spawn(move || sandbox.output(&format!("sleep 0.2; echo {number}")))
                })
            })
            .collect();
        for (number, run) in runs {
            assert_eq!(run.join().unwrap(), number.to_string());
        }
    });
}

fn most_commands() {
    let sandbox = Sandbox::new();
    sandbox.place.set_process_limit(600);
    let mut running = sandbox.connect();
    for _ in 0..256 {
        running.start_another("exec", &shell("echo ready; exec sleep 60"));
    }
    let mut ready = 0;
    while ready < 256 {
        match running.hear().unwrap() {
            Heard::Data(..) => ready += 1,
            Heard::Event => (),
            Heard::End(_) => panic!("a command ended"),
            Heard::Failed(fault) => panic!("{fault}"),
        }
    }
    assert_eq!(sandbox.exec(shell("true")).unwrap_err().code, ErrorCode::Limit);
    drop(running);
    assert_eq!(sandbox.exec(shell("true")).unwrap_err().code, ErrorCode::Limit, "a closed connection ends nothing");
}

fn kill_everything() {
    let sandbox = Sandbox::new();
    std::thread::scope(|scope| {
        scope.spawn(|| sandbox.run("sleep 1"));
        for _ in 0..20 {
            let outcome = sandbox.run("kill -9 -1; echo survived");
            assert!(outcome.status.exit_code == Some(0) || outcome.status.signal == Some(9), "{outcome:?}");
            assert_eq!(sandbox.output("echo here"), "here");
        }
    });
    // The spawner is stopped as well: the next command waits for its replacement.
    assert!(
        sandbox.exec(ExecRequest { timeout_ms: 200, ..shell("kill -STOP -1; sleep 60") }).unwrap().status.timed_out
    );
    assert_eq!(sandbox.output("echo here"), "here");
}

fn fork_bomb() {
    let sandbox = Sandbox::new();
    std::thread::scope(|scope| {
        let bomb =
            scope.spawn(|| sandbox.exec(ExecRequest { timeout_ms: 1500, ..shell("b() { b | b & }; b; sleep 60") }));
        std::thread::sleep(Duration::from_millis(500));
        // File operations go on; commands may be refused for want of processes, never hang.
        sandbox.write("/during", b"x").unwrap();
        if let Err(fault) = sandbox.exec(shell("true")) {
            assert_eq!(fault.code, ErrorCode::SpawnFailed);
        }
        let outcome = bomb.join().unwrap().unwrap();
        assert!(outcome.status.timed_out || outcome.status.exit_code.is_some(), "{outcome:?}");
    });
    assert_eq!(sandbox.output("ps -e -o comm= | wc -l"), "3", "sh, ps and wc");
}

fn memory_hog() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.run("head -c 600000000 /dev/zero | tail -c 600000000 | wc -c");
    assert!(outcome.status.oom_killed, "{outcome:?}");
    let outcome = sandbox.run("echo fine");
    assert!(!outcome.status.oom_killed && outcome.stdout == "fine\n");
}

/// Prints what a launch and a command cost here.
pub fn measure() {
    let launches: Vec<f64> = (0..20)
        .map(|_| {
            let place = crate::fixture::Place::new();
            let began = Instant::now();
            let sandbox = Sandbox::of(place);
            let milliseconds = began.elapsed().as_secs_f64() * 1e3;
            drop(sandbox);
            milliseconds
        })
        .collect();
    println!("launch: p50 {:.1} ms, p90 {:.1} ms", quantile(&launches, 0.5), quantile(&launches, 0.9));
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    let argv = ExecRequest { command: None, argv: Some(vec!["/bin/true".into()]), ..shell("") };
    for (name, pause_ms) in [("back to back", 0), ("after 30 ms of rest", 30)] {
        let (mut plain, mut boxed) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(pause_ms));
            let began = Instant::now();
            std::process::Command::new("/bin/true").status().unwrap();
            plain.push(began.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(Duration::from_millis(pause_ms));
            let began = Instant::now();
            connection.run_again(&argv);
            boxed.push(began.elapsed().as_secs_f64() * 1e3);
        }
        println!(
            "true, {name}: spawn and wait p50 {:.2} ms p90 {:.2}, sandbox p50 {:.2} ms p90 {:.2}",
            quantile(&plain, 0.5),
            quantile(&plain, 0.9),
            quantile(&boxed, 0.5),
            quantile(&boxed, 0.9)
        );
    }
    for of in ["supervisor_pid", "init_pid"] {
        let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.pid(of))).unwrap();
        let rss: Vec<&str> =
            status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("RssAnon")).collect();
        println!("{of}: {}", rss.join(", ").replace('\t', " "));
    }
}

fn quantile(values: &[f64], at: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * at) as usize]
}
