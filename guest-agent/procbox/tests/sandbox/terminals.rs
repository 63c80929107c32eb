//! Terminals of a process sandbox: what a person at one has, whose they are, and how they end.

use crate::Case;
use crate::client::{Connection, Heard};
use crate::executions::{follow, from, shell, start, state, wait_until};
use crate::fixture::{Place, Sandbox};
use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};
use wire::ErrorCode;
use wire::execution::*;
use wire::message::Empty;
use wire::request::ShutdownRequest;

/// The user that owns nothing.
const NOBODY: u32 = 65534;

pub const CASES: &[Case] = &[
    ("a terminal has a size, a session and job control", terminals),
    ("a terminal works without control groups of version 2", minded_terminals),
    ("terminals belong to the sandbox and are bounded", bounded_terminals),
    ("terminals are hung up before a shutdown", hang_up),
    ("an ordinary user's sandboxes have terminals", user_terminals),
    ("a sandbox sees its own terminals only", own_terminals),
    ("without a mount namespace there are no terminals", no_terminals),
];

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

fn on_terminal(id: &str, command: &str) -> ExecutionStartRequest {
    ExecutionStartRequest { tty: Some(TerminalSize { cols: 80, rows: 24 }), ..shell(id, command) }
}

/// A person at a terminal.
struct Typist {
    screen: Connection,
    keys: Connection,
    text: String,
    /// All that ever came.
    heard: String,
    typed: u64,
    /// The end was told, which may come before the last output.
    exited: bool,
}

impl Typist {
    fn start(sandbox: &Sandbox, request: &ExecutionStartRequest) -> Self {
        let (mut screen, keys) = (sandbox.connect(), sandbox.connect());
        assert!(start(&mut screen, request).unwrap().tty);
        screen.start_another("execution-attach", &from(&request.id, 0, 0));
        Self { screen, keys, text: String::new(), heard: String::new(), typed: 0, exited: false }
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
                Ok(Heard::Data(1, content)) => {
                    let content = String::from_utf8_lossy(&content);
                    self.text.push_str(&content);
                    self.heard.push_str(&content);
                }
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
        // The job may still be the shell that is about to become it.
        sandbox.output("until pkill -f 'sleep 10[3]'; do sleep 0.05; done");
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
    start(&mut connection, &on_terminal("owner", "stat -c %u $(tty)")).unwrap();
    let (_, [out, _]) = follow(&mut connection, &from("owner", 0, 0)).unwrap();
    assert_eq!(String::from_utf8_lossy(&out).trim_end(), uid.to_string());
    // A command takes all that there are; afterwards there are some again.
    let hoard = "import os,sys,time\nheld=[]\ntry:\n while True: held.append(os.open('/dev/ptmx', os.O_RDWR))\n\
                 except OSError: pass\nprint(len(held), flush=True)\ntime.sleep(60)";
    let argv = ["python3", "-c", hoard].map(String::from).to_vec();
    start(&mut connection, &ExecutionStartRequest { command: None, argv: Some(argv), ..shell("hoard", "") }).unwrap();
    wait_until("it has them all", || state(&mut connection, "hoard").stdout.end > 0);
    assert_eq!(start(&mut connection, &on_terminal("none", "true")).unwrap_err().code, ErrorCode::Limit);
    let signal = ExecutionSignalRequest { id: "hoard".into(), signal: libc::SIGKILL };
    connection.start_another("execution-signal", &signal);
    connection.finish::<Empty>().unwrap();
    follow(&mut connection, &from("hoard", 0, 0)).unwrap();
    start(&mut connection, &on_terminal("some", "echo again")).unwrap();
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

fn user_terminals() {
    for place in [Place::of_user(NOBODY), Place::of_user_with_groups(NOBODY)] {
        let sandbox = Sandbox::of(place);
        let mut typist = Typist::start(&sandbox, &bash("a"));
        typist.work("a");
        typist.type_in("a", "exit 5\n");
        assert_eq!(typist.leave(&sandbox, "a").status.exit_code, Some(5));
        let mut connection = sandbox.connect();
        start(&mut connection, &on_terminal("owner", "stat -c %u $(tty)")).unwrap();
        assert_eq!(follow(&mut connection, &from("owner", 0, 0)).unwrap().1[0], format!("{NOBODY}\r\n").as_bytes());
    }
}

fn own_terminals() {
    // This terminal of the host is not theirs, and neither is the other's.
    let host = File::open("/dev/ptmx").unwrap();
    for make in [Place::new, || Place::of_user(NOBODY)] {
        let (one, other) = (Sandbox::of(make()), Sandbox::of(make()));
        let mut typists = [&one, &other].map(|sandbox| Typist::start(sandbox, &bash("a")));
        for typist in &mut typists {
            typist.wait_for("ready$ ");
            typist.type_in("a", "tty; echo /dev/pts/*; (exec setsid -w sh -c ': < /dev/tty') || echo n''one\n");
            typist.wait_for("/dev/pts/0\r\n/dev/pts/0 /dev/pts/ptmx\r\n");
            typist.wait_for("No such device or address\r\nnone\r\n");
        }
        typists[0].type_in("a", "echo t''ext > /dev/pts/0\n");
        typists[0].wait_for("text\r\n");
        typists[1].type_in("a", "echo e''nd\n");
        typists[1].wait_for("end\r\n");
        assert!(!typists[1].heard.contains("text"), "{}", typists[1].heard);
        // Nothing but the sandbox's own root leads to a terminal, whatever its name.
        assert_eq!(
            one.output("for pid in /proc/[0-9]*; do ls $pid/root/dev/pts 2>/dev/null; done | sort -u"),
            "0\nptmx"
        );
    }
    drop(host);
}

fn no_terminals() {
    for place in [Place::new(), Place::of_user(NOBODY)] {
        let sandbox = Sandbox::of(place.with(|config| config["isolation"] = "off".into()));
        let mut connection = sandbox.connect();
        let refused = start(&mut connection, &bash("a")).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Capability);
        assert!(refused.message.contains("allow user namespaces"), "{}", refused.message);
        start(&mut connection, &shell("a", "echo pipes")).unwrap();
        assert_eq!(follow(&mut connection, &from("a", 0, 0)).unwrap().1[0], b"pipes\n");
    }
}
