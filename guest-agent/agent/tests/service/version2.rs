//! Version 2: many streams on one connection.

use crate::host::{Agent, Connection, wait_until};
use serde_bytes::ByteBuf;
use serde_json::json;
use std::io::Write;
use std::time::{Duration, Instant};
use wire::ErrorCode;
use wire::entry::Items;
use wire::frame::{Kind, encode};
use wire::limits::*;
use wire::message::*;
use wire::request::*;

fn shell(command: &str) -> ExecRequest {
    ExecRequest { command: Some(command.into()), output_max: u64::MAX, ..Default::default() }
}

fn exit(end: ExecEnd) -> (Option<i32>, Option<i32>) {
    (end.status.exit_code, end.status.signal)
}

fn write(path: &str, parents: bool) -> WriteFileRequest {
    WriteFileRequest { path: ByteBuf::from(path), mode: 0o640, parents, max: 64 << 20 }
}

fn manifest(base: Option<ByteBuf>) -> ManifestRequest {
    ManifestRequest { paths: vec![ByteBuf::from("/")], files_max: 1000, listing_max: 1 << 20, base }
}

#[test]
fn welcome_says_who_answers() {
    let agent = Agent::start();
    let welcome = agent.open().welcome.unwrap();
    assert_eq!((welcome.version, welcome.mode.as_str()), (2, "vm"));
    assert_eq!(
        welcome.features,
        ["exec", "executions", "files", "file-streams", "manifest", "ports", "shell", "identity",]
    );
    assert_eq!(agent.open().welcome.unwrap().boot, welcome.boot);
    assert_ne!(Agent::start().open().welcome.unwrap().boot, welcome.boot);
}

#[test]
fn a_guest_agent_that_is_not_the_machine_s_own_leaves_its_clock_alone() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let request = SetClockRequest { unix_ms: now.as_millis() as u64 };
    assert_eq!(connection.run("set-clock", &request).unwrap_err().code, ErrorCode::UnknownOp);
}

#[test]
fn a_wrong_token_or_version_ends_the_connection() {
    let agent = Agent::start();
    assert_eq!(Connection::greet(agent.stream(), "wrong").last_error().code, ErrorCode::Unauthorized);
    let mut connection = agent.open();
    connection.send(0, Kind::Hello, &Hello { versions: vec![2], token: String::new() });
    assert_eq!(connection.last_error().code, ErrorCode::Protocol);
}

#[test]
fn commands_and_how_they_end() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let outcome = connection.run("exec", &shell("echo out; echo err >&2; exit 3")).unwrap();
    assert_eq!((outcome.out.as_slice(), outcome.err.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert!(matches!(outcome.events.as_slice(), [Event::Started { pid: 1.. }]), "{:?}", outcome.events);
    let end: ExecEnd = outcome.end();
    assert_eq!((exit(end), end.stdout_len, end.stderr_len), ((Some(3), None), 4, 4));
    let outcome = connection.run("exec", &shell("kill -KILL $$")).unwrap();
    assert_eq!(exit(outcome.end()), (None, Some(9)));
    for (request, code) in [
        (ExecRequest { argv: Some(vec!["/no/such".into()]), ..Default::default() }, ErrorCode::ProgramNotFound),
        (ExecRequest { argv: Some(vec!["/etc".into()]), ..Default::default() }, ErrorCode::ProgramDenied),
        (ExecRequest { cwd: Some("/no/such".into()), ..shell("id") }, ErrorCode::NotFound),
        (ExecRequest::default(), ErrorCode::BadArgument),
    ] {
        assert_eq!(connection.run("exec", &request).unwrap_err().code, code);
    }
}

#[test]
fn faults_of_one_stream_leave_the_others_alone() {
    let agent = Agent::start();
    let mut connection = agent.open();
    assert_eq!(connection.run("fly", &Empty {}).unwrap_err().code, ErrorCode::UnknownOp);
    assert_eq!(connection.run("exec", &json!({"command": 7})).unwrap_err().code, ErrorCode::BadArgument);
    assert_eq!(connection.run("read-file", &json!({"max": 7})).unwrap_err().code, ErrorCode::BadArgument);
    assert_eq!(connection.run("signal", &SignalRequest { exec: 1, signal: 9 }).unwrap_err().code, ErrorCode::NotFound);
    connection.run("ping", &Empty {}).unwrap();
    connection.send(0, Kind::Ping, &Beat { t: 1 << 53 });
    let (_, kind, payload) = connection.frame().unwrap();
    assert_eq!((kind, wire::frame::decode::<Beat>(&payload).unwrap().t), (Kind::Pong, 1 << 53));
    // Frames for streams that are over are ignored.
    connection.send(1, Kind::Cancel, &Empty {});
    connection.send_data(2, b"late", true);
    connection.run("ping", &Empty {}).unwrap();
}

#[test]
fn streams_do_not_wait_for_each_other() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let slow = connection.start("exec", &shell("sleep 30"));
    let started = Instant::now();
    let quick = connection.start("exec", &shell("echo quick"));
    let mut over = false;
    while !over {
        let (stream, kind, _) = connection.frame().unwrap();
        assert!(stream == quick || kind == Kind::Event);
        over = stream == quick && kind == Kind::End;
    }
    assert!(started.elapsed() < Duration::from_secs(5));
    let signal = connection.start("signal", &SignalRequest { exec: slow, signal: 15 });
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let (stream, kind, payload) = connection.frame().unwrap();
        assert_eq!(kind, Kind::End);
        ends.push(stream);
        if stream == slow {
            assert_eq!(exit(wire::frame::decode(&payload).unwrap()), (None, Some(15)));
        }
    }
    assert!(ends.contains(&signal));
}

#[test]
fn a_gibibyte_is_counted_and_its_head_sent() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let request = ExecRequest { output_max: 3_000_000, ..shell("head -c 1G /dev/zero") };
    let outcome = connection.run("exec", &request).unwrap();
    assert_eq!(outcome.out.len(), 3_000_000);
    let end: ExecEnd = outcome.end();
    assert_eq!((end.stdout_len, exit(end)), (1 << 30, (Some(0), None)));
}

#[test]
fn all_output_arrives_within_credit() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let outcome = connection.run("exec", &shell("seq 1 2000000; seq 1 300000 >&2")).unwrap();
    let expected: String = (1..=2_000_000).map(|number| format!("{number}\n")).collect();
    assert!(outcome.out == expected.as_bytes());
    assert_eq!(outcome.err.len() as u64, outcome.end::<ExecEnd>().stderr_len);
}

#[test]
fn a_host_that_grants_nothing_holds_the_command_up() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let id = connection.start("exec", &shell("head -c 3M /dev/zero"));
    let mut received = 0;
    while received < CREDIT_INITIAL as usize {
        let (_, kind, payload) = connection.frame().unwrap();
        if kind == Kind::Data {
            received += wire::frame::decode::<Data<'_>>(&payload).unwrap().content.len();
        }
    }
    assert_eq!(received, CREDIT_INITIAL as usize);
    connection.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let silent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| connection.frame().is_some()));
    assert!(silent.is_err(), "more than was granted");
    connection.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    connection.send(id, Kind::Credit, &CreditGrant { n: 10 << 20 });
    let outcome = connection.finish(id).unwrap();
    assert_eq!(outcome.out.len(), (3 << 20) - received);
}

#[test]
fn a_cancelled_command_goes_on_and_is_counted() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let id = connection.start("exec", &shell("head -c 5M /dev/zero; exit 4"));
    connection.send(id, Kind::Cancel, &Empty {});
    let end: ExecEnd = connection.finish(id).unwrap().end();
    assert_eq!((end.stdout_len, exit(end)), (5 << 20, (Some(4), None)));
}

#[test]
fn a_closed_connection_ends_nothing() {
    let agent = Agent::start();
    let done = agent.directory.join("done");
    let mut connection = agent.open();
    let command = format!("head -c 5M /dev/zero; sleep 0.2; head -c 5M /dev/zero; echo done > '{}'", done.display());
    let id = connection.start("exec", &shell(&command));
    while connection.frame().unwrap().1 != Kind::Data {}
    assert_eq!(id, 1);
    drop(connection);
    wait_until("the command has ended", || done.exists());
}

#[test]
fn standard_input() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let request = ExecRequest { stdin: true, ..shell("wc -c; exit 5") };
    let id = connection.start("exec", &request);
    let chunk = vec![b'x'; 1 << 20];
    let mut credit = CREDIT_INITIAL;
    for round in 0..5 {
        while credit < chunk.len() as u64 {
            let (_, kind, payload) = connection.frame().unwrap();
            if kind == Kind::Credit {
                credit += wire::frame::decode::<CreditGrant>(&payload).unwrap().n;
            }
        }
        credit -= chunk.len() as u64;
        connection.send_data(id, &chunk, round == 4);
    }
    let outcome = connection.finish(id).unwrap();
    assert_eq!((outcome.out.as_slice(), exit(outcome.end())), (&b"5242880\n"[..], (Some(5), None)));
    // Without being asked for it is empty; closed by a command it does not hold the host up.
    let outcome = connection.run("exec", &shell("wc -c")).unwrap();
    assert_eq!(outcome.out, b"0\n");
    let id = connection.start("exec", &ExecRequest { stdin: true, ..shell("exec <&-; sleep 0.2; echo ok") });
    connection.send_data(id, &chunk, true);
    assert_eq!(connection.finish(id).unwrap().out, b"ok\n");
}

#[test]
fn time_limits() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let started = Instant::now();
    let request = ExecRequest { timeout_ms: 300, ..shell("trap '' TERM INT HUP; echo before; sleep 100; sleep 100") };
    let outcome = connection.run("exec", &request).unwrap();
    let end: ExecEnd = outcome.end();
    assert!(end.status.timed_out);
    assert_eq!((exit(end), outcome.out.as_slice()), ((None, Some(9)), &b"before\n"[..]));
    // An escaped daemon that holds the output open holds nobody after a time-out.
    let request = ExecRequest { timeout_ms: 300, ..shell("setsid sleep 3 & sleep 100") };
    assert!(connection.run("exec", &request).unwrap().end::<ExecEnd>().status.timed_out);
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[test]
fn output_held_open_by_a_background_process() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let outcome = connection.run("exec", &shell("(sleep 0.5; echo late) & echo early; exit 6")).unwrap();
    assert_eq!(outcome.out, b"early\nlate\n");
    let [Event::Started { .. }, Event::Exited(status)] = outcome.events.as_slice() else {
        panic!("{:?}", outcome.events);
    };
    assert_eq!(status.exit_code, Some(6));
    let started = Instant::now();
    let request = ExecRequest { kill_group: true, ..shell("sleep 100 & setsid sleep 4 & echo early; exit 6") };
    let outcome = connection.run("exec", &request).unwrap();
    assert_eq!((outcome.out.as_slice(), outcome.events.len()), (&b"early\n"[..], 1));
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[test]
fn too_many_streams_and_commands() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let ids: Vec<u32> = (0..=EXECUTIONS_MAX).map(|_| connection.start("exec", &shell("sleep 60"))).collect();
    let refused = loop {
        let (stream, kind, payload) = connection.frame().unwrap();
        if kind == Kind::Error {
            break (stream, wire::frame::decode::<Failure>(&payload).unwrap().code);
        }
    };
    assert_eq!(refused, (ids[EXECUTIONS_MAX], ErrorCode::Limit));
    let open = EXECUTIONS_MAX;
    let mut last = 0;
    for _ in open..=STREAMS_MAX {
        last = connection.start("write-file", &write("/never", true));
    }
    let refused = loop {
        let (stream, kind, payload) = connection.frame().unwrap();
        if kind == Kind::Error {
            break (stream, wire::frame::decode::<Failure>(&payload).unwrap().code);
        }
    };
    assert_eq!(refused, (last, ErrorCode::TooManyStreams));
    let mut other = agent.open();
    other.run("ping", &Empty {}).unwrap();
    assert_eq!(other.run("exec", &shell("true")).unwrap_err().code, ErrorCode::Limit);
    // The commands belong to the agent; it ends them.
    other.run("shutdown", &ShutdownRequest { grace_ms: 5000 }).unwrap();
}

#[test]
fn breaches_end_the_connection_and_nothing_else() {
    let agent = Agent::start();
    let credit = |n: u64| encode(1, Kind::Credit, &CreditGrant { n });
    let data = |id, size: usize, eof| {
        encode(id, Kind::Data, &Data { channel: 0, content: serde_bytes::Bytes::new(&vec![0; size]), eof })
    };
    let upload =
        encode(1, Kind::Open, &OpenWith { op: "exec", arguments: &ExecRequest { stdin: true, ..shell("sleep 1") } });
    let breaches: Vec<(&str, Vec<u8>)> = vec![
        ("oversize", [&(FRAME_LENGTH_MAX as u32 + 1).to_be_bytes()[..], &[0; 64]].concat()),
        ("undersize", vec![0, 0, 0, 4, 0, 0, 0, 0, 1]),
        ("unknown kind", vec![0, 0, 0, 6, 0, 0, 0, 0, 99, 0x80]),
        ("a guest's frame", encode(0, Kind::Welcome, &Empty {})),
        ("open on the connection", encode(0, Kind::Open, &Open { op: "ping" })),
        ("data before open", data(1, 1, false)),
        ("credit before open", credit(1)),
        ("not msgpack", vec![0, 0, 0, 7, 0, 0, 0, 0, 10, 0xc1, 0]),
        ("an id used twice", [upload.clone(), upload.clone()].concat()),
        ("more than was granted", [upload.clone(), data(1, 1 << 20, false), data(1, 1 << 20, false)].concat()),
        ("a DATA frame too large", [upload.clone(), data(1, (1 << 20) + 1, false)].concat()),
        ("data after the last", [upload.clone(), data(1, 1, true), data(1, 1, false)].concat()),
        ("data on a channel of the guest", {
            let data = Data { channel: 1, content: serde_bytes::Bytes::new(b"x"), eof: false };
            [upload.clone(), encode(1, Kind::Data, &data)].concat()
        }),
        ("endless credit", [upload.clone(), credit(u64::MAX)].concat()),
    ];
    for (what, bytes) in breaches {
        let mut connection = agent.open();
        // The guest may have hung up before it has taken everything.
        let _ = connection.stream.write_all(&bytes);
        assert_eq!(connection.last_error().code, ErrorCode::Protocol, "{what}");
    }
    agent.open().run("ping", &Empty {}).unwrap();
}

#[test]
fn files() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let content: Vec<u8> = (0..700_000u32).map(|number| (number * 7) as u8).collect();
    let id = connection.start("write-file", &write("/d/e/file", true));
    connection.send_data(id, &content[..300_000], false);
    connection.send_data(id, &content[300_000..], true);
    let end: FileEnd = connection.finish(id).unwrap().end();
    assert_eq!(end.size, 700_000);
    let read = ReadFileRequest { path: ByteBuf::from("/d/e/file"), max: 1 << 20 };
    let outcome = connection.run("read-file", &read).unwrap();
    assert_eq!(outcome.events, [Event::File { size: 700_000, mode: 0o640 }]);
    assert!(outcome.out == content);
    assert_eq!(outcome.end::<FileEnd>().size, 700_000);
    let small = ReadFileRequest { max: 10, ..read };
    assert_eq!(connection.run("read-file", &small).unwrap_err().code, ErrorCode::TooLarge);
    let id = connection.start("write-file", &WriteFileRequest { max: 10, ..write("/d/big", false) });
    connection.send_data(id, &content, false);
    assert_eq!(connection.finish(id).unwrap_err().code, ErrorCode::TooLarge);
    let id = connection.start("write-file", &write("/none/file", false));
    assert_eq!(connection.finish(id).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn an_upload_that_is_not_finished_writes_nothing() {
    let agent = Agent::start();
    std::fs::write(agent.directory.join("root/file"), "old").unwrap();
    let mut connection = agent.open();
    let id = connection.start("write-file", &write("/file", false));
    connection.send_data(id, b"new", false);
    connection.send(id, Kind::Cancel, &Empty {});
    assert_eq!(connection.finish(id).unwrap_err().code, ErrorCode::Cancelled);
    let id = connection.start("write-file", &write("/file", false));
    connection.send_data(id, b"new", false);
    drop(connection);
    agent.open().run("ping", &Empty {}).unwrap();
    let names = || std::fs::read_dir(agent.directory.join("root")).unwrap().count();
    wait_until("nothing is left beside the file", || names() == 1);
    assert_eq!(std::fs::read_to_string(agent.directory.join("root/file")).unwrap(), "old");
}

#[test]
fn manifests_whole_and_as_deltas() {
    let agent = Agent::start();
    let root = agent.directory.join("root");
    for number in 0..50 {
        std::fs::write(root.join(number.to_string()), number.to_string()).unwrap();
    }
    let mut connection = agent.open();
    let whole = connection.run("manifest", &manifest(None)).unwrap();
    let summary: ManifestSummary = whole.end();
    assert_eq!((summary.files, summary.entries, summary.delta), (50, 51, false));
    assert_eq!(Items::new(&whole.out).count(), 51);
    std::fs::write(root.join("7"), "changed").unwrap();
    std::fs::remove_file(root.join("8")).unwrap();
    // The listings are the agent's, not the connection's.
    let delta = agent.open().run("manifest", &manifest(Some(summary.digest))).unwrap();
    let summary: ManifestSummary = delta.end();
    assert_eq!((summary.files, summary.delta, summary.unchanged), (49, true, 48));
    assert_eq!(Items::new(&delta.out).count(), 2);
    let limited = ManifestRequest { files_max: 48, ..manifest(None) };
    assert_eq!(connection.run("manifest", &limited).unwrap_err().code, ErrorCode::Limit);
}

#[test]
fn shutdown_answers_first() {
    let mut agent = Agent::start();
    let mut connection = agent.open();
    connection.run("shutdown", &ShutdownRequest { grace_ms: 0 }).unwrap();
    assert!(agent.child.wait().unwrap().success());
}
