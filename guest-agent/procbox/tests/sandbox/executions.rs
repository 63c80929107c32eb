//! Executions in a process sandbox: what outlives connections, what a hostile command cannot reach, and terminals.

use crate::Case;
use crate::client::{Connection, Heard};
use crate::fixture::{Place, Sandbox};
use std::thread::sleep;
use std::time::{Duration, Instant};
use wire::ErrorCode;
use wire::execution::*;
use wire::limits::*;
use wire::message::Empty;
use wire::request::ShutdownRequest;

pub const CASES: &[Case] = &[
    ("an execution outlives its connections", outlives_connections),
    ("64 executions at once are whole", many_at_once),
    ("a timeout of an execution kills its control group", timeouts),
    ("what an execution leaves behind goes on and is told", daemons),
    ("kill -9 -1 inside leaves other executions' output", kill_everything),
    ("a flood does not grow the supervisor beyond its rings", floods),
    ("executions end as GONE with their sandbox", sandbox_ends),
    ("a terminal has a size, a session and job control", terminals),
    ("a terminal works without control groups of version 2", minded_terminals),
    ("terminals belong to the sandbox and are bounded", bounded_terminals),
    ("terminals are hung up before a shutdown", hang_up),
    ("without namespaces of root there are no terminals", no_terminals),
];

fn shell(id: &str, command: &str) -> ExecutionStartRequest {
    ExecutionStartRequest { id: id.into(), command: Some(command.into()), ring_max: RING_MAX, ..Default::default() }
}

fn bash(id: &str) -> ExecutionStartRequest {
    let argv = ["bash", "--norc", "--noprofile", "--noediting", "-i"].map(String::from).to_vec();
    ExecutionStartRequest {
        command: None,
        argv: Some(argv),
        env: [("PS1".into(), "ready$ ".into())].into(),
        tty: Some(TerminalSize { cols: 91, rows: 17 }),
        ..shell(id, "")
    }
}

fn from(id: &str, stdout: u64, stderr: u64) -> ExecutionOffsets {
    ExecutionOffsets { id: id.into(), stdout, stderr }
}

fn start(connection: &mut Connection, request: &ExecutionStartRequest) -> Result<ExecutionState, wire::Fault> {
    connection.start_another("execution-start", request);
    connection.finish::<ExecutionStartEnd>().map(|(end, _)| end.execution)
}

fn follow(connection: &mut Connection, from: &ExecutionOffsets) -> Result<(ExecutionState, [Vec<u8>; 2]), wire::Fault> {
    connection.start_another("execution-attach", from);
    connection.finish::<ExecutionEnd>().map(|(end, channels)| (end.execution, channels))
}

fn state(connection: &mut Connection, id: &str) -> ExecutionState {
    connection.start_another("execution-list", &Empty {});
    let (list, _) = connection.finish::<ExecutionListEnd>().unwrap();
    list.executions.into_iter().find(|state| state.id == id).unwrap_or_else(|| panic!("no {id}"))
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        sleep(Duration::from_millis(5));
    }
}

fn numbers(count: u32) -> Vec<u8> {
    (1..=count).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

fn outlives_connections() {
    let sandbox = Sandbox::new();
    let request = ExecutionStartRequest { block: true, ..shell("a", "seq 1 1500000; exit 3") };
    let begun = start(&mut sandbox.connect(), &request).unwrap();
    assert!(begun.pid > 0 && !begun.tty && begun.stdin.closed);
    let (mut seen, mut rounds) = (Vec::new(), 0);
    let end = 'cuts: loop {
        let mut connection = sandbox.connect();
        connection.start("execution-attach", &from("a", seen.len() as u64, 0));
        let target = seen.len() + 600_000 + rounds * 77_777;
        rounds += 1;
        while seen.len() < target {
            match connection.hear().unwrap() {
                Heard::Data(_, content) => seen.extend(content),
                Heard::End(payload) => break 'cuts rmp_serde::from_slice::<ExecutionEnd>(&payload).unwrap(),
                Heard::Failed(fault) => panic!("{fault}"),
                Heard::Event => (),
            }
        }
        drop(connection);
        let mut other = sandbox.connect();
        other.start("execution-ack", &from("a", seen.len() as u64, 0));
        other.finish::<Empty>().unwrap();
    };
    assert!(rounds > 5 && seen == numbers(1_500_000), "{rounds} {}", seen.len());
    assert_eq!(end.execution.status.exit_code, Some(3));
}

fn many_at_once() {
    const COUNT: u32 = 64;
    let sandbox = Sandbox::of(Place::new().with(|config| config["limits"]["max_processes"] = 512.into()));
    sandbox.place.set_process_limit(512);
    let mut connection = sandbox.connect();
    for number in 0..COUNT {
        let command = format!("seq 1 {}; echo {number} >&2", 130_000 + number);
        start(&mut connection, &ExecutionStartRequest { block: true, ..shell(&number.to_string(), &command) }).unwrap();
    }
    // Nobody reads for a while or confirms anything, and all together stay within what is kept without holding up.
    sleep(Duration::from_millis(500));
    let followers: Vec<_> = (0..COUNT)
        .map(|number| {
            let mut connection = sandbox.connect();
            std::thread::spawn(move || {
                let (end, [out, err]) = follow(&mut connection, &from(&number.to_string(), 0, 0)).unwrap();
                assert!(out == numbers(130_000 + number) && err == format!("{number}\n").as_bytes());
                assert_eq!(end.status.exit_code, Some(0));
            })
        })
        .collect();
    followers.into_iter().for_each(|follower| follower.join().unwrap());
}

fn timeouts() {
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    let command = "trap '' TERM HUP; (setsid sh -c 'sleep 61' &); echo on; sleep 61";
    start(&mut connection, &ExecutionStartRequest { timeout_ms: 300, ..shell("a", command) }).unwrap();
    let (end, [out, _]) = follow(&mut connection, &from("a", 0, 0)).unwrap();
    assert!(end.status.timed_out && out == b"on\n", "{end:?}");
    assert_eq!(sandbox.output("ps -e -o comm= | grep -c sleep || true"), "0");
}

fn daemons() {
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    start(&mut connection, &shell("a", "(sleep 0.6; echo late) & echo early; exit 6")).unwrap();
    connection.start_another("execution-attach", &from("a", 0, 0));
    while !matches!(connection.hear().unwrap(), Heard::Event) {}
    let told = state(&mut sandbox.connect(), "a");
    assert_eq!((told.output_open, told.status.exit_code), (true, Some(6)));
    let (end, _) = connection.finish::<ExecutionEnd>().unwrap();
    assert!(!end.execution.output_open && end.execution.stdout.end == 11);
    start(&mut connection, &shell("b", "sleep 60 >/dev/null 2>&1 &")).unwrap();
    follow(&mut connection, &from("b", 0, 0)).unwrap();
    assert_eq!(sandbox.output("ps -e -o args= | grep -c 'sleep 6[0]' || true"), "1", "it is left alone");
}

fn kill_everything() {
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    start(&mut connection, &shell("victim", "echo before; sleep 60")).unwrap();
    wait_until("it has written", || state(&mut connection, "victim").stdout.end == 7);
    start(&mut connection, &shell("killer", "kill -9 -1; echo survived")).unwrap();
    let (end, [out, _]) = follow(&mut connection, &from("victim", 0, 0)).unwrap();
    assert_eq!((end.status.signal, out.as_slice()), (Some(9), &b"before\n"[..]));
    start(&mut connection, &shell("after", "echo fine")).unwrap();
    assert_eq!(follow(&mut connection, &from("after", 0, 0)).unwrap().1[0], b"fine\n");
}

fn floods() {
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    for number in 0..4 {
        start(&mut connection, &shell(&number.to_string(), "timeout 2 cat /dev/zero")).unwrap();
    }
    wait_until("all have ended", || (0..4).all(|it| state(&mut connection, &it.to_string()).exited_at_ms.is_some()));
    let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.pid("supervisor_pid"))).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 64 << 10, "{kib} KiB for four rings of 8 MiB");
    let told = state(&mut connection, "0");
    assert!(told.stdout.end > 64 << 20 && told.stdout.end - told.stdout.base == RING_MAX, "{told:?}");
    connection.start_another("execution-forget", &ExecutionForgetRequest { id: "0".into() });
    connection.finish::<Empty>().unwrap();
    assert_eq!(follow(&mut connection, &from("0", 0, 0)).unwrap_err().code, ErrorCode::NotFound);
}

fn sandbox_ends() {
    let mut sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    start(&mut connection, &shell("a", "echo on; sleep 60")).unwrap();
    connection.start_another("execution-attach", &from("a", 0, 0));
    assert!(matches!(connection.hear().unwrap(), Heard::Data(1, _)));
    sandbox.signal("init_pid", libc::SIGKILL);
    assert_eq!(connection.finish::<ExecutionEnd>().unwrap_err().code, ErrorCode::Gone);
    sandbox.wait().unwrap();
}

/// A person at a terminal.
struct Typist {
    screen: Connection,
    keys: Connection,
    text: String,
    typed: u64,
    /// The end was told, which may come before the last output.
    exited: bool,
}

impl Typist {
    fn start(sandbox: &Sandbox, request: &ExecutionStartRequest) -> Self {
        let (mut screen, keys) = (sandbox.connect(), sandbox.connect());
        assert!(start(&mut screen, request).unwrap().tty);
        screen.start_another("execution-attach", &from(&request.id, 0, 0));
        Self { screen, keys, text: String::new(), typed: 0, exited: false }
    }

    fn type_in(&mut self, id: &str, text: &str) {
        let request = ExecutionStdinRequest {
            id: id.into(),
            offset: self.typed,
            content: text.as_bytes().to_vec().into(),
            eof: false,
        };
        self.keys.start_another("execution-stdin", &request);
        let (end, _) = self.keys.finish::<ExecutionStdinEnd>().unwrap();
        self.typed += text.len() as u64;
        assert_eq!((end.accepted, end.closed), (self.typed, false));
    }

    /// Waits until `text` comes, and forgets what came up to there.
    fn wait_for(&mut self, text: &str) {
        loop {
            if let Some(place) = self.text.find(text) {
                self.text.drain(..place + text.len());
                return;
            }
            match self.screen.hear() {
                Ok(Heard::Data(1, content)) => self.text.push_str(&String::from_utf8_lossy(&content)),
                Ok(Heard::Event) => self.exited = true,
                _ => panic!("over, or nothing more; seen: {}", self.text),
            }
        }
    }

    fn work(&mut self, id: &str) {
        self.wait_for("ready$ ");
        self.type_in(id, "stty size; tty; echo $TERM; echo to the terminal > /dev/tty; ls -l $(tty) | cut -c1-10\n");
        self.wait_for("17 91\r\n/dev/pts/");
        self.wait_for("xterm-256color\r\nto the terminal\r\ncrw-------");
        self.keys.start_another("execution-resize", &ExecutionResizeRequest { id: id.into(), cols: 100, rows: 40 });
        self.keys.finish::<Empty>().unwrap();
        self.type_in(id, "stty size\n");
        self.wait_for("40 100\r\n");
        self.type_in(id, "sleep 101\n");
        self.wait_for("sleep 101\r\n");
        sleep(Duration::from_millis(200));
        self.type_in(id, "\u{3}");
        self.wait_for("^C");
        self.wait_for("ready$ ");
        self.type_in(id, "sleep 102 &\n");
        self.wait_for("[1] ");
        self.type_in(id, "fg\n");
        self.wait_for("sleep 102\r\n");
        sleep(Duration::from_millis(200));
        self.type_in(id, "\u{1a}");
        self.wait_for("Stopped");
        self.type_in(id, "fg\n");
        self.wait_for("sleep 102\r\n");
        sleep(Duration::from_millis(200));
        self.type_in(id, "\u{3}");
        self.wait_for("^C");
        self.type_in(id, "(trap '' HUP; sleep 103) & echo do''ne\n");
        self.wait_for("done\r\n");
    }

    /// Waits until the shell has ended, which leaves one job in the background on the terminal, and ends that.
    fn leave(mut self, sandbox: &Sandbox, id: &str) -> ExecutionState {
        while !self.exited {
            self.exited = matches!(self.screen.hear().unwrap(), Heard::Event);
        }
        assert!(state(&mut self.keys, id).output_open);
        sandbox.output("pkill -f 'sleep 10[3]'");
        self.screen.finish::<ExecutionEnd>().unwrap().0.execution
    }
}

fn terminals() {
    let sandbox = Sandbox::new();
    let mut typist = Typist::start(&sandbox, &bash("a"));
    typist.work("a");
    typist.type_in("a", "exit 5\n");
    let end = typist.leave(&sandbox, "a");
    assert_eq!((end.status.exit_code, end.stderr.end), (Some(5), 0));
}

fn minded_terminals() {
    let sandbox = Sandbox::of(Place::new().without_v2());
    let mut typist = Typist::start(&sandbox, &bash("a"));
    typist.work("a");
    // The shell leads a group of its own, and a signal to the execution still finds it.
    typist.type_in("a", "trap 'echo c''aught; exit 7' USR1; echo s''et\n");
    typist.wait_for("set\r\n");
    let request = ExecutionSignalRequest { id: "a".into(), signal: libc::SIGUSR1 };
    typist.keys.start_another("execution-signal", &request);
    typist.keys.finish::<Empty>().unwrap();
    typist.wait_for("caught\r\n");
    assert_eq!(typist.leave(&sandbox, "a").status.exit_code, Some(7));
}

fn bounded_terminals() {
    let sandbox = Sandbox::new();
    let uid = sandbox.place.config["sandbox_uid"].as_u64().unwrap();
    let mut connection = sandbox.connect();
    let terminal = |id: &str, command: &str| ExecutionStartRequest {
        tty: Some(TerminalSize { cols: 80, rows: 24 }),
        ..shell(id, command)
    };
    start(&mut connection, &terminal("owner", "stat -c %u $(tty)")).unwrap();
    let (_, [out, _]) = follow(&mut connection, &from("owner", 0, 0)).unwrap();
    assert_eq!(String::from_utf8_lossy(&out).trim_end(), uid.to_string());
    // A command takes all that there are; afterwards there are some again.
    let hoard = "import os,sys,time\nheld=[]\ntry:\n while True: held.append(os.open('/dev/ptmx', os.O_RDWR))\n\
                 except OSError: pass\nprint(len(held), flush=True)\ntime.sleep(60)";
    let argv = ["python3", "-c", hoard].map(String::from).to_vec();
    start(&mut connection, &ExecutionStartRequest { command: None, argv: Some(argv), ..shell("hoard", "") }).unwrap();
    wait_until("it has them all", || state(&mut connection, "hoard").stdout.end > 0);
    assert_eq!(start(&mut connection, &terminal("none", "true")).unwrap_err().code, ErrorCode::Limit);
    let signal = ExecutionSignalRequest { id: "hoard".into(), signal: libc::SIGKILL };
    connection.start_another("execution-signal", &signal);
    connection.finish::<Empty>().unwrap();
    follow(&mut connection, &from("hoard", 0, 0)).unwrap();
    start(&mut connection, &terminal("some", "echo again")).unwrap();
    assert_eq!(follow(&mut connection, &from("some", 0, 0)).unwrap().1[0], b"again\r\n");
    // Whatever goes on inside, the supervisor never gets a controlling terminal.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", sandbox.pid("supervisor_pid"))).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    assert_eq!(fields.split_ascii_whitespace().nth(4), Some("0"), "tty_nr");
}

fn hang_up() {
    for place in [Place::new(), Place::new().without_v2()] {
        let mut sandbox = Sandbox::of(place);
        let mut typist = Typist::start(&sandbox, &bash("a"));
        typist.wait_for("ready$ ");
        typist.type_in("a", "trap 'echo up > hung-up; exit' HUP; echo s''et\n");
        typist.wait_for("set\r\n");
        let began = Instant::now();
        typist.keys.start_another("shutdown", &ShutdownRequest { grace_ms: 10_000 });
        typist.keys.finish::<Empty>().unwrap();
        sandbox.wait().unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "the shell did not wait for the grace to pass");
        assert_eq!(std::fs::read_to_string(sandbox.place.workspace().join("hung-up")).unwrap(), "up\n");
    }
}

fn no_terminals() {
    const NOBODY: u32 = 65534;
    let without_namespaces = Place::new().with(|config| config["isolation"] = "off".into());
    for place in [without_namespaces, Place::of_user(NOBODY)] {
        let sandbox = Sandbox::of(place);
        let mut connection = sandbox.connect();
        assert_eq!(start(&mut connection, &bash("a")).unwrap_err().code, ErrorCode::Capability);
        start(&mut connection, &shell("a", "echo pipes")).unwrap();
        assert_eq!(follow(&mut connection, &from("a", 0, 0)).unwrap().1[0], b"pipes\n");
    }
}
