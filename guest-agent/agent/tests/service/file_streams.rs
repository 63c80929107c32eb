//! Files that are looked at, arranged, streamed and watched through the guest agent of a virtual machine.

use crate::host::{Agent, wait_until};
use serde_bytes::ByteBuf;
use std::os::unix::fs::symlink;
use wire::ErrorCode;
use wire::file_request::*;
use wire::frame::Kind;
use wire::message::{Data, Empty, Event};

fn path(text: &str) -> PathRequest {
    PathRequest { path: ByteBuf::from(text) }
}

fn range(text: &str, offset: u64, length: Option<u64>) -> ReadRangeRequest {
    ReadRangeRequest { path: ByteBuf::from(text), offset, from_end: false, length }
}

#[test]
fn content_streams_both_ways_and_links_lead_within_the_root() {
    let agent = Agent::start();
    let root = agent.directory.join("root");
    let mut connection = agent.open();
    let content: Vec<u8> = (0..3_000_000u32).map(|number| (number * 7) as u8).collect();
    let request = WriteStreamRequest { path: ByteBuf::from("/d/file"), mode: Some(0o600), parents: true, offset: None };
    let id = connection.start("write-stream", &request);
    connection.send_data(id, &content[..500_000], false);
    connection.send_data(id, &content[500_000..1_000_000], true);
    assert_eq!(connection.finish(id).unwrap().end::<FileSummary>().size, 1_000_000);
    symlink("/d", root.join("link")).unwrap();
    let outcome = connection.run("read-range", &range("/link/file", 10, Some(900_000))).unwrap();
    assert!(outcome.out == content[10..900_010]);
    let Event::Opened(opened) = outcome.events[0].clone() else { panic!("{:?}", outcome.events) };
    assert_eq!((opened.size, opened.offset, opened.length, opened.mode), (1_000_000, 10, 900_000, 0o600));
    assert_eq!(connection.run("list", &path("/link")).unwrap().end::<FileSummary>().entries, 1);
    assert_eq!(connection.run("stat", &path("/none")).unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(connection.run("stat", &path("/../etc")).unwrap_err().code, ErrorCode::BadArgument);
    let archive = connection.run("archive-read", &path("/d")).unwrap().out;
    let id = connection.start("archive-write", &path("/copy"));
    connection.send_data(id, &archive[..1_000_000], false);
    connection.send_data(id, &archive[1_000_000..], true);
    assert_eq!(connection.finish(id).unwrap().end::<FileSummary>().entries, 1);
    assert!(std::fs::read(root.join("copy/file")).unwrap() == content[..1_000_000]);
    let remove = RemoveRequest { path: ByteBuf::from("/copy"), recursive: true };
    assert_eq!(connection.run("remove", &remove).unwrap().end::<FileSummary>().entries, 2);
}

#[test]
fn watches_tell_changes_and_end_when_nobody_watches() {
    let agent = Agent::start();
    let root = agent.directory.join("root");
    std::fs::create_dir(root.join("d")).unwrap();
    let watches = || {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", agent.child.id())).unwrap();
        descriptors
            .filter(|it| {
                std::fs::read_link(it.as_ref().unwrap().path()).is_ok_and(|to| to.ends_with("anon_inode:inotify"))
            })
            .count()
    };
    let directory_before = output(&agent, "pwd");
    let mut connection = agent.open();
    let request = WatchRequest { path: ByteBuf::from("/d"), recursive: true };
    let cancelled = connection.start("watch", &request);
    assert_eq!(connection.frame().unwrap().1, Kind::Event);
    let id = connection.start("watch", &request);
    assert_eq!(connection.frame().unwrap().1, Kind::Event);
    connection.send(cancelled, Kind::Cancel, &Empty {});
    assert_eq!(connection.finish(cancelled).unwrap_err().code, ErrorCode::Cancelled);
    std::fs::write(root.join("d/file"), "x").unwrap();
    let (stream, kind, payload) = connection.frame().unwrap();
    assert_eq!((stream, kind), (id, Kind::Data));
    let data: Data<'_> = wire::frame::decode(&payload).unwrap();
    assert_eq!(data.content.as_ref(), b"\x93\x00\xc4\x07/d/file\xc4\x00");
    wait_until("only the other watch is left", || watches() == 1);
    // Commands start where they did before there were watches.
    assert_eq!(output(&agent, "pwd"), directory_before);
    drop(connection);
    wait_until("a watch ends with its connection", || watches() == 0);
}

fn output(agent: &Agent, command: &str) -> Vec<u8> {
    let request = serde_json::json!({"command": command, "timeout_ms": 5000, "kill_group": true});
    agent.open().run("exec", &request).unwrap().out
}
