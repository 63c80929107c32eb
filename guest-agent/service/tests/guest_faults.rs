//! Guests that misbehave, and hosts that say nothing: what the server makes of them.

use rustix::pipe::{PipeFlags, pipe_with};
use serde::Serialize;
use serde_json::json;
use service::*;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::unix::pipe;
use tokio::task::{LocalSet, spawn_local};
use wire::execution::*;
use wire::file_request::*;
use wire::frame::{Kind, decode, encode, parse};
use wire::message::*;
use wire::preamble::Nonce;
use wire::request::*;
use wire::{ErrorCode, Fault};

/// Bytes that the command `write` writes; the guest keeps less than twice as many.
const WRITTEN: u64 = 600_000;

/// Does what a command's text says, and has no facets.
#[derive(Default)]
struct OddGuest {
    walk_dropped: Rc<Cell<bool>>,
    stopped: Rc<Cell<bool>>,
}

struct Deaf;

impl Control for Deaf {
    fn signal(&self, _: i32) -> Result<(), Fault> {
        Err(gone())
    }

    fn kill_all(&self) {}
}

fn gone() -> Fault {
    Fault::new(ErrorCode::Gone, "the sandbox has ended")
}

fn new_pipe() -> (pipe::Receiver, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (pipe::Receiver::from_owned_fd(reader).unwrap(), writer)
}

impl Guest for OddGuest {
    fn description(&self) -> Description {
        Description { agent: "odd".into(), mode: "procbox", boot: "1".into() }
    }

    async fn exec(&self, request: ExecRequest) -> Result<Execution, Fault> {
        let (stdout, out) = new_pipe();
        let (stderr, err) = new_pipe();
        let ended: LocalFuture<Result<Ended, Fault>> = match request.command.as_deref() {
            Some("panic") => panic!("on purpose"),
            Some("write") => {
                drop(err);
                let mut out = pipe::Sender::from_owned_fd(out).unwrap();
                Box::pin(async move {
                    out.write_all(&[b'x'; WRITTEN as usize]).await.unwrap();
                    Ok(Ended { status: ExitStatus::Code(0), oom_killed: false })
                })
            }
            Some("gone") => Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                drop((out, err));
                Err(gone())
            }),
            _ => Box::pin(async move {
                let _held = (out, err);
                std::future::pending().await
            }),
        };
        Ok(Execution { pid: 1, stdin: None, stdout, stderr, control: Box::new(Deaf), ended })
    }

    fn output_kept_max(&self) -> u64 {
        2 * WRITTEN - 1
    }

    async fn read_file(&self, _: ReadFileRequest) -> Result<FileDownload, Fault> {
        let (bytes, _) = new_pipe();
        let cut = Fault::new(ErrorCode::Interrupted, "the worker was killed");
        Ok(FileDownload { size: 5, mode: 0o644, bytes, ended: Box::pin(async { Err(cut) }) })
    }

    async fn write_file(&self, _: WriteFileRequest) -> Result<FileUpload, Fault> {
        Err(gone())
    }

    async fn file(&self, _: FileRequest) -> Result<Download, Fault> {
        let (bytes, _) = new_pipe();
        let cut = Fault::new(ErrorCode::Interrupted, "the worker was killed");
        Ok(Download {
            opened: Opened { size: 5, length: 5, ..Opened::default() },
            bytes,
            ended: Box::pin(async { Err(cut) }),
        })
    }

    async fn file_upload(&self, _: FileUploadRequest) -> Result<Upload, Fault> {
        Err(gone())
    }

    async fn manifest(&self, _: ManifestRequest) -> Result<ManifestDownload, Fault> {
        let (bytes, held) = new_pipe();
        let flag = SetOnDrop(self.walk_dropped.clone());
        let ended = Box::pin(async move {
            let _kept = (flag, held);
            std::future::pending().await
        });
        Ok(ManifestDownload { bytes, ended })
    }

    fn shutdown(&self, _: ShutdownRequest) {
        self.stopped.set(true);
    }
}

struct SetOnDrop(Rc<Cell<bool>>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

struct Host {
    stream: DuplexStream,
    buffer: Vec<u8>,
}

impl Host {
    async fn frame(&mut self) -> Option<(u32, Kind, Vec<u8>)> {
        loop {
            if let Some((frame, size)) = parse(&self.buffer).unwrap() {
                let frame = (frame.stream, frame.kind, frame.payload.to_vec());
                self.buffer.drain(..size);
                return Some(frame);
            }
            if self.stream.read_buf(&mut self.buffer).await.unwrap() == 0 {
                return None;
            }
        }
    }

    async fn open(&mut self, id: u32, op: &str, arguments: &impl Serialize) {
        self.stream.write_all(&encode(id, Kind::Open, &OpenWith { op, arguments })).await.unwrap();
    }

    /// The code with which stream `id` ends; `None` for END.
    async fn end_of(&mut self, id: u32) -> Option<ErrorCode> {
        loop {
            match self.frame().await.expect("the connection is over") {
                (stream, Kind::End, _) if stream == id => return None,
                (stream, Kind::Error, payload) if stream == id => {
                    return Some(decode::<Failure>(&payload).unwrap().code);
                }
                _ => {}
            }
        }
    }
}

fn serve(guest: OddGuest) -> DuplexStream {
    let (ours, theirs) = duplex(1 << 16);
    let server = Server::new(guest, Authority::token(b"t"));
    spawn_local(server.serve(theirs));
    ours
}

async fn greet(guest: OddGuest) -> Host {
    let mut stream = serve(guest);
    let nonce = Nonce([b'a'; 32]);
    stream.write_all(&nonce.line()).await.unwrap();
    stream.write_all(&encode(0, Kind::Hello, &Hello { versions: vec![2], token: "t".into() })).await.unwrap();
    let mut line = vec![0; nonce.line().len()];
    stream.read_exact(&mut line).await.unwrap();
    let mut host = Host { stream, buffer: Vec::new() };
    let (_, kind, payload) = host.frame().await.unwrap();
    assert_eq!(kind, Kind::Welcome);
    assert_eq!(
        decode::<Welcome>(&payload).unwrap().features,
        ["exec", "executions", "files", "file-streams", "manifest"]
    );
    host
}

fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

fn execution(id: &str, command: &str, block: bool) -> ExecutionStartRequest {
    let command = Some(command.into());
    ExecutionStartRequest { id: id.into(), command, ring_max: 1 << 20, block, ..Default::default() }
}

fn offsets(id: &str, stdout: u64) -> ExecutionOffsets {
    ExecutionOffsets { id: id.into(), stdout, stderr: 0 }
}

fn manifest() -> ManifestRequest {
    ManifestRequest { paths: vec![serde_bytes::ByteBuf::from("/")], files_max: 1, listing_max: 1, base: None }
}

#[test]
fn a_guest_that_panics_fails_one_operation() {
    run(async {
        let mut host = greet(OddGuest::default()).await;
        host.open(1, "exec", &json!({"command": "panic"})).await;
        assert_eq!(host.end_of(1).await, Some(ErrorCode::Internal));
        host.open(2, "ping", &Empty {}).await;
        assert_eq!(host.end_of(2).await, None);
    });
}

#[test]
fn operations_whose_guest_ends_or_is_cut_say_so() {
    run(async {
        let mut host = greet(OddGuest::default()).await;
        host.open(1, "exec", &json!({"command": "gone"})).await;
        assert_eq!(host.end_of(1).await, Some(ErrorCode::Gone));
        host.open(2, "read-file", &ReadFileRequest { path: b"/a".to_vec().into(), max: 9 }).await;
        assert_eq!(host.end_of(2).await, Some(ErrorCode::Interrupted));
        let upload = WriteFileRequest { path: b"/a".to_vec().into(), mode: 0, parents: false, max: 9 };
        host.open(3, "write-file", &upload).await;
        assert_eq!(host.end_of(3).await, Some(ErrorCode::Gone));
        host.open(4, "reset-identity", &Empty {}).await;
        assert_eq!(host.end_of(4).await, Some(ErrorCode::UnknownOp));
        host.open(5, "set-clock", &SetClockRequest { unix_ms: 0 }).await;
        assert_eq!(host.end_of(5).await, Some(ErrorCode::UnknownOp));
    });
}

#[test]
fn signals_reach_the_guest_with_its_own_answer() {
    run(async {
        let mut host = greet(OddGuest::default()).await;
        host.open(1, "exec", &json!({"command": "stay"})).await;
        while host.frame().await.unwrap().1 != Kind::Event {}
        host.open(2, "signal", &SignalRequest { exec: 1, signal: 15 }).await;
        assert_eq!(host.end_of(2).await, Some(ErrorCode::Gone));
        for (id, signal) in [(3, 0), (4, 65), (5, -9)] {
            host.open(id, "signal", &SignalRequest { exec: 1, signal }).await;
            assert_eq!(host.end_of(id).await, Some(ErrorCode::BadArgument), "{signal}");
        }
    });
}

#[test]
fn a_walk_that_nobody_waits_for_is_given_up() {
    run(async {
        let guest = OddGuest::default();
        let dropped = guest.walk_dropped.clone();
        let mut host = greet(guest).await;
        host.open(1, "manifest", &manifest()).await;
        host.open(2, "ping", &Empty {}).await;
        assert_eq!(host.end_of(2).await, None);
        assert!(!dropped.get());
        host.stream.write_all(&encode(1, Kind::Cancel, &Empty {})).await.unwrap();
        assert_eq!(host.end_of(1).await, Some(ErrorCode::Cancelled));
        assert!(dropped.replace(false));
        host.open(3, "manifest", &manifest()).await;
        host.open(4, "ping", &Empty {}).await;
        assert_eq!(host.end_of(4).await, None);
        drop(host);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(dropped.get());
    });
}

#[test]
fn hosts_that_say_nothing_are_cut_off() {
    run(async {
        let nonce = Nonce([b'a'; 32]).line();
        let cut_hello = [&nonce[..], &[0, 0, 0]].concat();
        for beginning in [&b""[..], b"{", b"{\"op\":\"pi", b"F", b"FLUXVM/2 aa", &nonce, &cut_hello] {
            let mut stream = serve(OddGuest::default());
            stream.write_all(beginning).await.unwrap();
            let mut answer = Vec::new();
            let waiting = stream.read_to_end(&mut answer);
            tokio::time::timeout(Duration::from_secs(15), waiting).await.expect("served for ever").unwrap();
        }
    });
}

#[test]
fn random_frames_break_the_connection_and_not_the_server() {
    run(async {
        let mut seed = 1u64;
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        let requests = [
            encode(1, Kind::Open, &OpenWith { op: "exec", arguments: &json!({"command": "stay", "stdin": true}) }),
            encode(1, Kind::Open, &OpenWith { op: "manifest", arguments: &manifest() }),
            encode(1, Kind::Open, &OpenWith { op: "execution-start", arguments: &execution("a", "stay", true) }),
            encode(1, Kind::Open, &OpenWith { op: "execution-attach", arguments: &offsets("a", 0) }),
            encode(1, Kind::Open, &OpenWith { op: "execution-stdin", arguments: &json!({"id": "a", "offset": 0}) }),
            encode(1, Kind::Open, &OpenWith { op: "execution-list", arguments: &Empty {} }),
            encode(1, Kind::Data, &Data { channel: 0, content: serde_bytes::Bytes::new(b"data"), eof: false }),
            encode(1, Kind::Credit, &CreditGrant { n: 1 << 40 }),
            encode(1, Kind::Cancel, &Empty {}),
            encode(0, Kind::Ping, &Beat { t: 1 }),
        ];
        for round in 0..2000 {
            let (mut ours, theirs) = duplex(1 << 20);
            let serving = spawn_local(Server::new(OddGuest::default(), Authority::Anyone).serve(theirs));
            let hello = encode(0, Kind::Hello, &Hello { versions: vec![2], token: String::new() });
            let mut bytes = [Nonce([b'a'; 32]).line(), hello].concat();
            let sound = bytes.len() as u64;
            for _ in 0..below(8) {
                let mut frame = requests[below(requests.len() as u64) as usize].clone();
                frame[7] = below(4) as u8;
                bytes.extend_from_slice(&frame);
            }
            let fragile = if below(10) == 0 { 0 } else { sound };
            for _ in 0..below(4) {
                let place = fragile + below((bytes.len() as u64 - fragile).max(1));
                if let Some(byte) = bytes.get_mut(place as usize) {
                    *byte = below(256) as u8;
                }
            }
            ours.write_all(&bytes).await.unwrap();
            ours.shutdown().await.unwrap();
            let mut answer = Vec::new();
            ours.read_to_end(&mut answer).await.unwrap();
            serving.await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    });
}

/// What executions `ids` keep of their output.
async fn kept(host: &mut Host, stream: u32, ids: [&str; 2]) -> [KeptOutput; 2] {
    host.open(stream, "execution-list", &Empty {}).await;
    let (_, kind, payload) = host.frame().await.unwrap();
    assert_eq!(kind, Kind::End);
    let list = decode::<ExecutionListEnd>(&payload).unwrap().executions;
    ids.map(|id| list.iter().find(|state| state.id == id).unwrap().stdout)
}

/// What two executions that write too much together keep, where the second begins so long after the first.
async fn kept_after(pause: Duration) -> [KeptOutput; 2] {
    let mut host = greet(OddGuest::default()).await;
    for (stream, id) in [(1, "a"), (2, "b")] {
        host.open(stream, "execution-start", &execution(id, "write", false)).await;
        assert_eq!(host.end_of(stream).await, None);
        tokio::time::sleep(pause).await;
    }
    kept(&mut host, 3, ["a", "b"]).await
}

#[test]
fn a_guest_that_keeps_too_much_drops_what_ended_long_ago() {
    run(async {
        let nothing = KeptOutput { base: WRITTEN, end: WRITTEN };
        let whole = KeptOutput { base: 0, end: WRITTEN };
        assert_eq!(kept_after(Duration::from_secs(61)).await, [nothing, whole]);
    });
}

#[test]
fn a_guest_that_keeps_too_much_loses_the_oldest_bytes_of_the_fullest() {
    run(async {
        let all_but_one = KeptOutput { base: 1, end: WRITTEN };
        let whole = KeptOutput { base: 0, end: WRITTEN };
        assert_eq!(kept_after(Duration::from_millis(100)).await, [all_but_one, whole]);
    });
}

#[test]
fn a_guest_that_keeps_much_holds_up_those_that_can_wait() {
    run(async {
        let mut host = greet(OddGuest::default()).await;
        for (stream, id, block) in [(1, "a", false), (2, "b", true)] {
            host.open(stream, "execution-start", &execution(id, "write", block)).await;
            assert_eq!(host.end_of(stream).await, None);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let [whole, held_up] = kept(&mut host, 3, ["a", "b"]).await;
        assert_eq!(whole, KeptOutput { base: 0, end: WRITTEN });
        assert!((1..WRITTEN / 2).contains(&held_up.end), "{held_up:?}");
        host.open(4, "execution-ack", &offsets("a", WRITTEN)).await;
        assert_eq!(host.end_of(4).await, None);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut end = kept(&mut host, 5, ["a", "b"]).await[1].end;
        assert!(end > held_up.end, "others got out of the way");
        // What it keeps itself holds it up too, and only confirming helps.
        for stream in (6..).step_by(2) {
            if end == WRITTEN {
                break;
            }
            host.open(stream, "execution-ack", &offsets("b", end)).await;
            assert_eq!(host.end_of(stream).await, None);
            tokio::time::sleep(Duration::from_millis(100)).await;
            let before = std::mem::replace(&mut end, kept(&mut host, stream + 1, ["a", "b"]).await[1].end);
            assert!(end > before, "a confirmed execution goes on");
        }
    });
}

#[test]
fn an_execution_whose_guest_ends_is_gone() {
    run(async {
        let mut host = greet(OddGuest::default()).await;
        host.open(1, "execution-start", &execution("a", "gone", false)).await;
        assert_eq!(host.end_of(1).await, None);
        host.open(2, "execution-attach", &offsets("a", 0)).await;
        assert_eq!(host.end_of(2).await, Some(ErrorCode::Gone));
        let on_terminal = ExecutionStartRequest { tty: Some(TerminalSize::default()), ..execution("b", "stay", false) };
        host.open(3, "execution-start", &on_terminal).await;
        assert_eq!(host.end_of(3).await, Some(ErrorCode::Capability));
        host.open(4, "execution-start", &execution("b", "panic", false)).await;
        assert_eq!(host.end_of(4).await, Some(ErrorCode::Internal));
        host.open(5, "execution-start", &execution("b", "stay", false)).await;
        assert_eq!(host.end_of(5).await, None, "the id is free again");
    });
}

#[test]
fn shutdown_comes_after_its_answer() {
    run(async {
        let guest = OddGuest::default();
        let stopped = guest.stopped.clone();
        let mut host = greet(guest).await;
        host.open(1, "shutdown", &Empty {}).await;
        assert_eq!(host.end_of(1).await, None);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(stopped.get());
    });
}

#[test]
fn version_1_says_what_a_guest_lacks() {
    run(async {
        for request in [r#"{"op":"open-shell","token":"t"}"#, r#"{"op":"reset-identity","token":"t"}"#] {
            let mut stream = serve(OddGuest::default());
            stream.write_all(format!("{request}\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.contains("this guest has no"), "{answer}");
        }
    });
}
