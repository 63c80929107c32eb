//! Executions: what they write and read outlives connections, byte for byte.

use crate::host::{Agent, Connection, wait_until};
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};
use wire::ErrorCode;
use wire::execution::*;
use wire::frame::{Kind, decode};
use wire::limits::*;
use wire::message::*;

pub fn shell(id: &str, command: &str) -> ExecutionStartRequest {
    ExecutionStartRequest { id: id.into(), command: Some(command.into()), ring_max: RING_MAX, ..Default::default() }
}

pub fn from(id: &str, stdout: u64, stderr: u64) -> ExecutionOffsets {
    ExecutionOffsets { id: id.into(), stdout, stderr }
}

pub fn piece(id: &str, offset: u64, content: &[u8], eof: bool) -> ExecutionStdinRequest {
    ExecutionStdinRequest { id: id.into(), offset, content: content.to_vec().into(), eof }
}

pub fn signal(id: &str, signal: i32) -> ExecutionSignalRequest {
    ExecutionSignalRequest { id: id.into(), signal }
}

/// What an attach brought.
#[derive(Debug, Default)]
pub struct Followed {
    /// First offset and bytes of each channel; a jump is recorded as such.
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    first: [Option<u64>; 2],
    pub next: [u64; 2],
    pub jumps: u64,
    pub exited: Option<ExecutionState>,
    pub wrote: Wrote,
}

impl Followed {
    fn take(&mut self, output: &Output<'_>) {
        let index = usize::from(output.channel) - 1;
        assert!(output.offset >= self.next[index], "offsets go backwards");
        let first = *self.first[index].get_or_insert(output.offset);
        self.jumps += u64::from(output.offset != self.next[index] && output.offset != first);
        self.next[index] = output.offset + output.content.len() as u64;
        let bytes = if index == 0 { &mut self.out } else { &mut self.err };
        bytes.extend_from_slice(output.content);
    }
}

pub trait Executions {
    fn execute(&mut self, request: &ExecutionStartRequest) -> Result<ExecutionStartEnd, Failure>;
    fn attach(&mut self, from: &ExecutionOffsets) -> u32;
    /// Follows an attach until `enough`, or to its end.
    fn follow(
        &mut self,
        stream: u32,
        followed: &mut Followed,
        enough: impl Fn(&Followed) -> bool,
    ) -> Option<Result<ExecutionState, Failure>>;
    fn follow_to_the_end(&mut self, from: &ExecutionOffsets) -> (Followed, Result<ExecutionState, Failure>);
    fn state(&mut self, id: &str) -> ExecutionState;
}

impl Executions for Connection {
    fn execute(&mut self, request: &ExecutionStartRequest) -> Result<ExecutionStartEnd, Failure> {
        self.run("execution-start", request).map(|outcome| outcome.end())
    }

    fn attach(&mut self, from: &ExecutionOffsets) -> u32 {
        self.start("execution-attach", from)
    }

    fn follow(
        &mut self,
        stream: u32,
        followed: &mut Followed,
        enough: impl Fn(&Followed) -> bool,
    ) -> Option<Result<ExecutionState, Failure>> {
        while !enough(followed) {
            let (id, kind, payload) = self.frame().expect("the connection is over");
            assert_eq!(id, stream, "{kind:?}");
            match kind {
                Kind::Data => {
                    let output: Output<'_> = decode(&payload).unwrap();
                    followed.take(&output);
                    self.send(stream, Kind::Credit, &CreditGrant { n: output.content.len() as u64 });
                }
                Kind::Event => {
                    let ExecutionEvent::Exited { execution, wrote } = decode(&payload).unwrap();
                    assert!(followed.exited.replace(execution).is_none(), "told twice");
                    followed.wrote = wrote;
                }
                Kind::End => return Some(Ok(decode::<ExecutionEnd>(&payload).unwrap().execution)),
                Kind::Error => return Some(Err(decode(&payload).unwrap())),
                other => panic!("an unexpected {other:?}"),
            }
        }
        None
    }

    fn follow_to_the_end(&mut self, from: &ExecutionOffsets) -> (Followed, Result<ExecutionState, Failure>) {
        let stream = self.attach(from);
        let mut followed = Followed { next: [from.stdout, from.stderr], ..Default::default() };
        let end = self.follow(stream, &mut followed, |_| false).expect("it goes to the end");
        (followed, end)
    }

    fn state(&mut self, id: &str) -> ExecutionState {
        let list: ExecutionListEnd = self.run("execution-list", &Empty {}).unwrap().end();
        list.executions.into_iter().find(|state| state.id == id).unwrap_or_else(|| panic!("no {id}"))
    }
}

#[test]
fn an_execution_from_start_to_end() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let begun = connection.execute(&shell("a", "echo out; echo err >&2; exit 3")).unwrap();
    assert!(!begun.existing && begun.execution.pid > 0 && begun.execution.started_at_ms > 1_600_000_000_000);
    let (followed, end) = connection.follow_to_the_end(&from("a", 0, 0));
    let end = end.unwrap();
    assert_eq!((followed.out.as_slice(), followed.err.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((end.status.exit_code, end.status.signal), (Some(3), None));
    assert_eq!((end.command.as_deref(), end.output_open), (Some("echo out; echo err >&2; exit 3"), false));
    assert!(followed.exited.unwrap().exited_at_ms >= Some(begun.execution.started_at_ms));
    // Read again, in part, by another connection.
    let (followed, end) = agent.open().follow_to_the_end(&from("a", 2, 4));
    assert_eq!((followed.out.as_slice(), followed.err.as_slice(), end.is_ok()), (&b"t\n"[..], &b""[..], true));
    connection.run("execution-ack", &from("a", 3, u64::MAX)).unwrap();
    let state = connection.state("a");
    assert_eq!((state.stdout, state.stderr), (KeptOutput { base: 3, end: 4 }, KeptOutput { base: 4, end: 4 }));
    let (followed, _) = connection.follow_to_the_end(&from("a", 0, 0));
    assert_eq!((followed.first[0], followed.out.as_slice(), followed.first[1]), (Some(3), &b"\n"[..], None));
    connection.run("execution-forget", &ExecutionForgetRequest { id: "a".into() }).unwrap();
    assert_eq!(connection.follow_to_the_end(&from("a", 0, 0)).1.unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn the_same_id_is_the_same_execution() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let count = agent.directory.join("count");
    let command = format!("echo x >> '{}'; sleep 0.3", count.display());
    // Asked for at the same time and again.
    let streams: Vec<u32> = (0..3).map(|_| connection.start("execution-start", &shell("a", &command))).collect();
    let mut existing = Vec::new();
    for _ in streams {
        let (_, kind, payload) = connection.frame().unwrap();
        assert_eq!(kind, Kind::End);
        existing.push(decode::<ExecutionStartEnd>(&payload).unwrap().existing);
    }
    existing.sort_unstable();
    assert_eq!(existing, [false, true, true]);
    for other in [
        shell("a", "true"),
        ExecutionStartRequest { command: None, argv: Some(vec![command.clone()]), ..shell("a", "") },
    ] {
        assert_eq!(connection.execute(&other).unwrap_err().code, ErrorCode::Exists);
    }
    connection.follow_to_the_end(&from("a", 0, 0)).1.unwrap();
    assert!(connection.execute(&shell("a", &command)).unwrap().existing);
    assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n");
    // A start that failed leaves the id free.
    let missing = ExecutionStartRequest { command: None, argv: Some(vec!["/no/such".into()]), ..shell("b", "") };
    assert_eq!(connection.execute(&missing).unwrap_err().code, ErrorCode::ProgramNotFound);
    assert!(!connection.execute(&shell("b", "true")).unwrap().existing);
}

#[test]
fn arguments_that_make_no_sense() {
    let agent = Agent::start();
    let mut connection = agent.open();
    for request in [
        shell("", "true"),
        shell("a/b", "true"),
        shell(&"x".repeat(EXECUTION_ID_MAX + 1), "true"),
        ExecutionStartRequest { ring_max: 0, ..shell("a", "true") },
        ExecutionStartRequest { ring_max: RING_MAX + 1, ..shell("a", "true") },
        ExecutionStartRequest { command: None, ..shell("a", "true") },
        ExecutionStartRequest { env: [("A=".into(), "".into())].into(), ..shell("a", "true") },
    ] {
        assert_eq!(connection.execute(&request).unwrap_err().code, ErrorCode::BadArgument, "{request:?}");
    }
    for op in ["attach", "ack", "mode", "stdin", "signal", "resize", "forget", "start"] {
        let code = connection.run(&format!("execution-{op}"), &Empty {}).unwrap_err().code;
        assert_eq!(code, ErrorCode::BadArgument, "{op}");
    }
    assert_eq!(connection.run("execution-fly", &Empty {}).unwrap_err().code, ErrorCode::UnknownOp);
    for (op, request) in [
        ("execution-attach", serde_json::json!({"id": "a"})),
        ("execution-ack", serde_json::json!({"id": "a"})),
        ("execution-mode", serde_json::json!({"id": "a", "block": true})),
        ("execution-stdin", serde_json::json!({"id": "a", "offset": 0})),
        ("execution-signal", serde_json::json!({"id": "a", "signal": 9})),
        ("execution-resize", serde_json::json!({"id": "a", "cols": 1, "rows": 1})),
        ("execution-forget", serde_json::json!({"id": "a"})),
    ] {
        assert_eq!(connection.run(op, &request).unwrap_err().code, ErrorCode::NotFound, "{op}");
    }
    connection.execute(&shell("a", "sleep 60")).unwrap();
    for number in [0, 65, -9] {
        assert_eq!(connection.run("execution-signal", &signal("a", number)).unwrap_err().code, ErrorCode::BadArgument);
    }
    let resize = ExecutionResizeRequest { id: "a".into(), cols: 1, rows: 1 };
    assert_eq!(connection.run("execution-resize", &resize).unwrap_err().code, ErrorCode::BadArgument);
    let forget = ExecutionForgetRequest { id: "a".into() };
    assert_eq!(connection.run("execution-forget", &forget).unwrap_err().code, ErrorCode::Busy);
    let long = piece("a", 0, &vec![0; STDIN_PIECE_MAX + 1], false);
    assert_eq!(connection.run("execution-stdin", &long).unwrap_err().code, ErrorCode::BadArgument);
    connection.run("execution-signal", &signal("a", 15)).unwrap();
    let (_, end) = connection.follow_to_the_end(&from("a", 0, 0));
    assert_eq!(end.unwrap().status.signal, Some(15));
    assert_eq!(connection.run("execution-signal", &signal("a", 15)).unwrap_err().code, ErrorCode::Ended);
}

#[test]
fn a_full_ring_drops_the_oldest() {
    let agent = Agent::start();
    let mut connection = agent.open();
    connection.execute(&shell("a", "head -c 8388612 /dev/zero; echo end >&2")).unwrap();
    wait_until("it has ended", || agent.open().state("a").exited_at_ms.is_some());
    wait_until("all was read", || agent.open().state("a").stdout.end == RING_MAX + 4);
    let (followed, end) = connection.follow_to_the_end(&from("a", 0, 0));
    assert_eq!((followed.first[0], followed.out.len() as u64), (Some(4), RING_MAX));
    assert_eq!(end.unwrap().stdout, KeptOutput { base: 4, end: RING_MAX + 4 });
}

#[test]
fn block_holds_the_process_up() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let request = ExecutionStartRequest { ring_max: 100_000, block: true, ..shell("a", "seq 1 200000; echo $? >&2") };
    connection.execute(&request).unwrap();
    wait_until("the ring is full", || agent.open().state("a").stdout.end == 100_000);
    std::thread::sleep(Duration::from_millis(200));
    let state = connection.state("a");
    assert_eq!((state.stdout, state.exited_at_ms, state.block), (KeptOutput { base: 0, end: 100_000 }, None, true));
    // Reading frees nothing, acknowledging does.
    let stream = connection.attach(&from("a", 0, 0));
    let mut followed = Followed::default();
    connection.follow(stream, &mut followed, |followed| followed.out.len() == 100_000);
    assert_eq!(agent.open().state("a").stdout.end, 100_000);
    let mut acknowledging = agent.open();
    let end = loop {
        acknowledging.run("execution-ack", &from("a", followed.next[0], 0)).unwrap();
        let size = followed.out.len();
        if let Some(end) = connection.follow(stream, &mut followed, |followed| followed.out.len() > size) {
            break end.unwrap();
        }
    };
    let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    assert!(followed.out == expected.as_bytes() && followed.jumps == 0);
    assert_eq!((followed.err.as_slice(), end.status.exit_code), (&b"0\n"[..], Some(0)));
}

#[test]
fn block_gives_way_to_ring() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let request = ExecutionStartRequest { ring_max: 1000, block: true, ..shell("a", "seq 1 20000") };
    connection.execute(&request).unwrap();
    wait_until("the ring is full", || agent.open().state("a").stdout.end == 1000);
    let mode = ExecutionModeRequest { id: "a".into(), block: false };
    let end: ExecutionEnd = connection.run("execution-mode", &mode).unwrap().end();
    assert!(!end.execution.block);
    let (followed, end) = connection.follow_to_the_end(&from("a", 0, 0));
    let total = (1..=20_000).map(|number: u32| number.to_string().len() as u64 + 1).sum::<u64>();
    assert_eq!((end.unwrap().stdout.end, followed.next[0]), (total, total));
    assert!(followed.out.ends_with(b"19999\n20000\n"));
}

#[test]
fn a_broken_connection_loses_and_repeats_nothing() {
    let agent = Agent::start();
    // Digests on both sides of a stream in which nothing repeats.
    let make = "seq 1 1500000; seq 1 300000 >&2";
    let request = ExecutionStartRequest { block: true, ..shell("a", make) };
    agent.open().execute(&request).unwrap();
    let mut whole = Followed::default();
    let mut cuts = 0;
    let end = loop {
        let mut connection = agent.open();
        let stream = connection.attach(&from("a", whole.next[0], whole.next[1]));
        let target = whole.out.len() + whole.err.len() + 700_000 + cuts * 12_345;
        let enough = |followed: &Followed| followed.out.len() + followed.err.len() >= target;
        if let Some(end) = connection.follow(stream, &mut whole, enough) {
            break end.unwrap();
        }
        whole.exited = None;
        drop(connection);
        cuts += 1;
        agent.open().run("execution-ack", &from("a", whole.next[0], whole.next[1])).unwrap();
    };
    assert!(cuts > 5 && end.status.exit_code == Some(0) && whole.jumps == 0, "{cuts} {end:?}");
    let expected = |count: u32| (1..=count).map(|number| format!("{number}\n")).collect::<String>();
    assert_eq!(Sha256::digest(&whole.out), Sha256::digest(expected(1_500_000)));
    assert_eq!(Sha256::digest(&whole.err), Sha256::digest(expected(300_000)));
}

#[test]
fn the_newest_attach_wins() {
    let agent = Agent::start();
    let mut first = agent.open();
    first.execute(&shell("a", "echo one; sleep 0.5")).unwrap();
    let stream = first.attach(&from("a", 0, 0));
    let mut followed = Followed::default();
    let (_, end) = agent.open().follow_to_the_end(&from("a", 0, 0));
    end.unwrap();
    let refused = first.follow(stream, &mut followed, |_| false).unwrap().unwrap_err();
    assert_eq!(refused.code, ErrorCode::Superseded);
    first.execute(&shell("b", "sleep 60")).unwrap();
    let stream = first.attach(&from("b", 0, 0));
    first.send(stream, Kind::Cancel, &Empty {});
    let given_up = first.follow(stream, &mut Followed::default(), |_| false).unwrap().unwrap_err();
    assert_eq!(given_up.code, ErrorCode::Cancelled);
}

#[test]
fn input_by_offset() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let mut put = |request: ExecutionStdinRequest| -> (u64, bool, bool) {
        let end: ExecutionStdinEnd = connection.run("execution-stdin", &request).unwrap().end();
        (end.accepted, end.closed, end.gap)
    };
    let mut other = agent.open();
    other.execute(&ExecutionStartRequest { stdin: true, ..shell("a", "cat; exit 7") }).unwrap();
    assert_eq!(put(piece("a", 0, b"hello ", false)), (6, false, false));
    assert_eq!(put(piece("a", 0, b"hello wor", false)), (9, false, false));
    assert_eq!(put(piece("a", 20, b"lost", true)), (9, false, true));
    assert_eq!(put(piece("a", 9, b"ld", true)), (11, true, false));
    assert_eq!(put(piece("a", 9, b"ld", true)), (11, true, false));
    assert_eq!(put(piece("a", 11, b"more", false)), (11, true, false));
    let (followed, end) = other.follow_to_the_end(&from("a", 0, 0));
    let end = end.unwrap();
    assert_eq!((followed.out.as_slice(), end.status.exit_code), (&b"hello world"[..], Some(7)));
    assert_eq!(end.stdin, StdinState { accepted: 11, closed: true }, "what was taken is known after the end");
    assert_eq!(put(piece("a", 0, b"hello", false)), (11, true, false));
    // Without input it is at its end from the start.
    other.execute(&shell("b", "cat; echo done")).unwrap();
    let (followed, _) = other.follow_to_the_end(&from("b", 0, 0));
    assert_eq!(followed.out, b"done\n");
    assert_eq!(put(piece("b", 0, b"x", false)), (0, true, false));
}

#[test]
fn input_waits_for_the_command() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let command = "sleep 60";
    connection.execute(&ExecutionStartRequest { stdin: true, ..shell("a", command) }).unwrap();
    let block: Vec<u8> = (0..STDIN_PIECE_MAX as u32).map(|number| (number * 31) as u8).collect();
    let mut offset = 0;
    // The pipe and the buffer take some; then the answer stays out.
    let waiting = loop {
        let stream = connection.start("execution-stdin", &piece("a", offset, &block, false));
        connection.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let answered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| connection.frame()));
        connection.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        if answered.is_err() {
            break stream;
        }
        offset += block.len() as u64;
    };
    assert!((1 << 20..2 << 20).contains(&offset), "{offset}");
    connection.send(waiting, Kind::Cancel, &Empty {});
    assert_eq!(connection.finish(waiting).unwrap_err().code, ErrorCode::Cancelled);
    connection.run("execution-signal", &signal("a", 15)).unwrap();
    let (_, end) = connection.follow_to_the_end(&from("a", 0, 0));
    assert_eq!(end.unwrap().status.signal, Some(15));

    connection.execute(&ExecutionStartRequest { stdin: true, ..shell("b", "sleep 0.3; wc -c") }).unwrap();
    for number in 0..20 {
        let request = piece("b", number * block.len() as u64, &block, number == 19);
        let end: ExecutionStdinEnd = connection.run("execution-stdin", &request).unwrap().end();
        assert_eq!(end.accepted, (number + 1) * block.len() as u64);
    }
    let (followed, _) = connection.follow_to_the_end(&from("b", 0, 0));
    assert_eq!(followed.out, format!("{}\n", 20 * block.len()).as_bytes());
}

#[test]
fn a_daemon_holds_the_output_open() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let began = Instant::now();
    connection.execute(&shell("a", "(sleep 0.7; echo late) & echo early; exit 6")).unwrap();
    let stream = connection.attach(&from("a", 0, 0));
    let mut followed = Followed::default();
    connection.follow(stream, &mut followed, |followed| followed.exited.is_some());
    assert!(began.elapsed() < Duration::from_millis(600), "the end is told at once");
    let exited = followed.exited.clone().unwrap();
    assert_eq!((exited.output_open, exited.status.exit_code), (true, Some(6)));
    assert_eq!(followed.wrote, Wrote { stdout: 6, stderr: 0 });
    assert!(agent.open().state("a").output_open);
    let end = connection.follow(stream, &mut followed, |_| false).unwrap().unwrap();
    assert_eq!((followed.out.as_slice(), end.output_open), (&b"early\nlate\n"[..], false));
}

#[test]
fn what_a_command_wrote_is_known_at_its_end_although_it_is_not_read_yet() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let mut request = shell("a", "head -c 20000 /dev/zero; head -c 7 /dev/zero >&2; (sleep 1; echo late) &");
    (request.ring_max, request.block) = (1000, true);
    connection.execute(&request).unwrap();
    let stream = connection.attach(&from("a", 0, 0));
    let mut followed = Followed::default();
    connection.follow(stream, &mut followed, |followed| followed.exited.is_some());
    assert_eq!(followed.wrote, Wrote { stdout: 20_000, stderr: 7 });
    assert_eq!(followed.exited.unwrap().stdout.end, 1000);
}

#[test]
fn the_end_is_told_to_a_host_that_grants_nothing() {
    let agent = Agent::start();
    let mut connection = agent.open();
    connection.execute(&shell("a", "head -c 3M /dev/zero; exit 5")).unwrap();
    let stream = connection.attach(&from("a", 0, 0));
    let mut received = 0;
    loop {
        let (id, kind, payload) = connection.frame().unwrap();
        assert_eq!(id, stream);
        match kind {
            Kind::Data => received += decode::<Output<'_>>(&payload).unwrap().content.len(),
            Kind::Event => break,
            other => panic!("an unexpected {other:?}"),
        }
    }
    assert!(received <= CREDIT_INITIAL as usize);
}

#[test]
fn time_limits_kill_everything() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let request = ExecutionStartRequest { timeout_ms: 300, ..shell("a", "trap '' TERM; echo on; sleep 60; sleep 60") };
    connection.execute(&request).unwrap();
    let (followed, end) = connection.follow_to_the_end(&from("a", 0, 0));
    let end = end.unwrap();
    assert_eq!((followed.out.as_slice(), end.status.timed_out, end.status.signal), (&b"on\n"[..], true, Some(9)));
}

#[test]
fn limits_and_retention() {
    let agent = Agent::start();
    let mut connection = agent.open();
    connection.execute(&shell("first", "true")).unwrap();
    wait_until("it has ended", || agent.open().state("first").exited_at_ms.is_some());
    for number in 0..EXECUTIONS_MAX {
        connection.execute(&shell(&format!("r{number}"), "sleep 60")).unwrap();
    }
    assert_eq!(connection.execute(&shell("more", "true")).unwrap_err().code, ErrorCode::Limit);
    connection.run("execution-signal", &signal("r0", 9)).unwrap();
    connection.follow_to_the_end(&from("r0", 0, 0)).1.unwrap();
    for number in EXECUTIONS_MAX + 1..=EXECUTIONS_KNOWN_MAX {
        let id = format!("s{number}");
        connection.execute(&shell(&id, "true")).unwrap();
        connection.follow_to_the_end(&from(&id, 0, 0)).1.unwrap();
    }
    let list: ExecutionListEnd = connection.run("execution-list", &Empty {}).unwrap().end();
    assert_eq!(list.executions.len(), EXECUTIONS_KNOWN_MAX);
    let ids: Vec<&str> = list.executions.iter().map(|state| state.id.as_str()).collect();
    assert_eq!(ids[..2], ["r0", "r1"], "the one that ended first was forgotten");
    assert_eq!(*ids.last().unwrap(), format!("s{EXECUTIONS_KNOWN_MAX}"));
}

#[test]
fn many_at_once_are_all_whole() {
    const COUNT: usize = 64;
    let agent = Agent::start();
    let mut connection = agent.open();
    for number in 0..COUNT {
        let command = format!("seq {number}00000 {number}99999; seq {number}00000 {number}99999");
        connection.execute(&ExecutionStartRequest { block: true, ..shell(&number.to_string(), &command) }).unwrap();
    }
    let streams: Vec<u32> = (0..COUNT).map(|number| connection.attach(&from(&number.to_string(), 0, 0))).collect();
    let mut followed: Vec<Followed> = (0..COUNT).map(|_| Followed::default()).collect();
    let mut acknowledging = agent.open();
    let mut left = COUNT;
    while left > 0 {
        let (stream, kind, payload) = connection.frame().unwrap();
        let number = streams.iter().position(|id| *id == stream).unwrap();
        match kind {
            Kind::Data => {
                let output: Output<'_> = decode(&payload).unwrap();
                followed[number].take(&output);
                connection.send(stream, Kind::Credit, &CreditGrant { n: output.content.len() as u64 });
                acknowledging.run("execution-ack", &from(&number.to_string(), followed[number].next[0], 0)).unwrap();
            }
            Kind::Event => {}
            Kind::End => left -= 1,
            other => panic!("an unexpected {other:?}"),
        }
    }
    for (number, followed) in followed.iter().enumerate() {
        let begin = number * 100_000;
        let half: String = (begin..begin + 100_000).map(|number| format!("{number}\n")).collect();
        assert!(followed.out == half.repeat(2).as_bytes() && followed.jumps == 0, "{number}");
    }
}
