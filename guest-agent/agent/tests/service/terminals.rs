//! Executions on terminals.

use crate::executions::*;
use crate::host::{Agent, Connection, wait_until};
use std::time::{Duration, Instant};
use wire::ErrorCode;
use wire::execution::*;
use wire::request::ShutdownRequest;

/// A person at a terminal.
struct Typist {
    screen: Connection,
    keys: Connection,
    id: String,
    stream: u32,
    followed: Followed,
    typed: u64,
    seen: usize,
}

impl Typist {
    fn start(agent: &Agent, request: &ExecutionStartRequest) -> Self {
        let mut screen = agent.open();
        let begun = screen.execute(request).unwrap();
        assert!(begun.execution.tty && !begun.execution.stdin.closed);
        let stream = screen.attach(&from(&request.id, 0, 0));
        let keys = agent.open();
        Self { screen, keys, id: request.id.clone(), stream, followed: Followed::default(), typed: 0, seen: 0 }
    }

    fn type_in(&mut self, text: &str) {
        let request = piece(&self.id, self.typed, text.as_bytes(), false);
        let end: ExecutionStdinEnd = self.keys.run("execution-stdin", &request).unwrap().end();
        self.typed += text.len() as u64;
        assert_eq!(end, ExecutionStdinEnd { accepted: self.typed, closed: false, gap: false });
    }

    /// Waits until `text` comes behind what was waited for before.
    fn wait_for(&mut self, text: &str) {
        let seen = self.seen;
        let place = |followed: &Followed| find(&followed.out[seen..], text.as_bytes());
        let end = self.screen.follow(self.stream, &mut self.followed, |followed| place(followed).is_some());
        assert!(end.is_none(), "over; seen: {}", String::from_utf8_lossy(&self.followed.out));
        self.seen += place(&self.followed).unwrap() + text.len();
    }

    fn wait_for_the_end(&mut self) -> ExecutionState {
        self.screen.follow(self.stream, &mut self.followed, |_| false).unwrap().unwrap()
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

fn on_terminal(id: &str, program: &[&str]) -> ExecutionStartRequest {
    ExecutionStartRequest {
        command: None,
        argv: Some(program.iter().map(|word| word.to_string()).collect()),
        env: [("PS1".into(), "ready$ ".into())].into(),
        tty: Some(TerminalSize { cols: 91, rows: 17 }),
        ..shell(id, "")
    }
}

fn bash(id: &str) -> ExecutionStartRequest {
    on_terminal(id, &["bash", "--norc", "--noprofile", "--noediting", "-i"])
}

#[test]
fn size_and_what_a_terminal_is() {
    let agent = Agent::start();
    let mut typist = Typist::start(&agent, &bash("a"));
    typist.wait_for("ready$ ");
    typist.type_in("stty size; echo $TERM; tty | cut -c1-9; echo tothetty > /dev/tty; test -t 0 -a -t 1 -a -t 2 && echo all''three\n");
    typist.wait_for("17 91\r\nxterm-256color\r\n/dev/pts/\r\ntothetty\r\nallthree\r\n");
    let resize = ExecutionResizeRequest { id: "a".into(), cols: 100, rows: 40 };
    typist.keys.run("execution-resize", &resize).unwrap();
    typist.type_in("stty size\n");
    typist.wait_for("40 100\r\n");
    typist.type_in("echo err''or >&2; exit 9\n");
    typist.wait_for("error\r\n");
    let end = typist.wait_for_the_end();
    assert_eq!((end.status.exit_code, end.stderr.end), (Some(9), 0));
    assert_eq!(typist.keys.run("execution-resize", &resize).unwrap_err().code, ErrorCode::Ended);
}

#[test]
fn job_control() {
    let agent = Agent::start();
    let mut typist = Typist::start(&agent, &bash("a"));
    typist.wait_for("ready$ ");
    let began = Instant::now();
    typist.type_in("sleep 101\n");
    typist.wait_for("sleep 101\r\n");
    std::thread::sleep(Duration::from_millis(200));
    typist.type_in("\u{3}");
    typist.wait_for("^C");
    typist.wait_for("ready$ ");
    typist.type_in("sleep 102 &\n");
    typist.wait_for("[1] ");
    typist.type_in("jobs\n");
    typist.wait_for("Running");
    typist.type_in("fg\n");
    typist.wait_for("sleep 102\r\n");
    std::thread::sleep(Duration::from_millis(200));
    typist.type_in("\u{1a}");
    typist.wait_for("Stopped");
    typist.type_in("fg\n");
    typist.wait_for("sleep 102\r\n");
    std::thread::sleep(Duration::from_millis(200));
    typist.type_in("\u{3}");
    typist.wait_for("^C");
    typist.wait_for("ready$ ");
    typist.type_in("\u{4}");
    assert_eq!(typist.wait_for_the_end().stdin.accepted, typist.typed);
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn bytes_are_raw() {
    let agent = Agent::start();
    let program = "stty raw -echo; printf ok; head -c 256 | od -An -v -tu1 | tr -d '\\n'";
    let mut typist = Typist::start(&agent, &on_terminal("a", &["sh", "-c", program]));
    typist.wait_for("ok");
    let all: Vec<u8> = (0..=255).collect();
    typist.keys.run("execution-stdin", &piece("a", 0, &all, false)).unwrap();
    typist.wait_for_the_end();
    let numbers: Vec<u8> = String::from_utf8_lossy(&typist.followed.out[2..])
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    assert_eq!(numbers, all);
    // And what a program writes comes as it is.
    let program = "stty raw; seq 1 100000";
    let mut typist = Typist::start(&agent, &on_terminal("b", &["sh", "-c", program]));
    typist.wait_for_the_end();
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert!(typist.followed.out == expected.as_bytes());
}

#[test]
fn a_terminal_outlives_connections() {
    let agent = Agent::start();
    let mut typist = Typist::start(&agent, &bash("a"));
    typist.wait_for("ready$ ");
    typist.type_in("export KEPT=yes\n");
    typist.wait_for("ready$ ");
    drop((typist.screen, typist.keys));
    let mut screen = agent.open();
    assert_eq!(screen.state("a").exited_at_ms, None);
    let stream = screen.attach(&from("a", typist.followed.next[0], 0));
    let mut typist = Typist { screen, stream, keys: agent.open(), ..typist };
    typist.type_in("echo kept=$KEPT; exit\n");
    typist.wait_for("kept=yes\r\n");
    typist.wait_for_the_end();
    assert_eq!(typist.followed.jumps, 0);
}

#[test]
fn a_terminal_has_no_end_of_input() {
    let agent = Agent::start();
    let mut typist = Typist::start(&agent, &bash("a"));
    let refused = typist.keys.run("execution-stdin", &piece("a", 0, b"", true)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::BadArgument);
    typist.type_in("exit 4\n");
    assert_eq!(typist.wait_for_the_end().status.exit_code, Some(4));
}

#[test]
fn sessions_are_hung_up_before_the_guest_stops() {
    let agent = Agent::start();
    let mut typist = Typist::start(&agent, &bash("a"));
    typist.wait_for("ready$ ");
    let mark = agent.directory.join("hung-up");
    // An interactive shell ignores SIGTERM.
    typist.type_in(&format!("trap 'echo up > {}; exit' HUP; echo s''et\n", mark.display()));
    typist.wait_for("set\r\n");
    let began = Instant::now();
    agent.open().run("shutdown", &ShutdownRequest { grace_ms: 10_000 }).unwrap();
    wait_until("the shell was hung up", || mark.exists());
    assert!(began.elapsed() < Duration::from_secs(5));
}
