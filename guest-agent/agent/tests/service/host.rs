//! The host's side: a guest agent of a test's own, and connections that speak either version.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use wire::frame::{Kind, decode, encode, parse};
use wire::message::*;
use wire::preamble::Nonce;

pub const TOKEN: &str = "a token of the test";
const PATIENCE: Duration = Duration::from_secs(30);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A guest agent process with a directory of its own; both go at the end.
pub struct Agent {
    pub child: Child,
    pub directory: PathBuf,
}

impl Agent {
    pub fn start() -> Self {
        Self::start_with(Some(TOKEN), &[])
    }

    pub fn start_with(token: Option<&str>, environment: &[(&str, &str)]) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("agent-{}-{number}", std::process::id()));
        std::fs::create_dir_all(directory.join("root")).unwrap();
        if let Some(token) = token {
            std::fs::write(directory.join("token"), format!("{token}\n")).unwrap();
        }
        let child = Command::new(env!("CARGO_BIN_EXE_fluxvm-guest-agent"))
            .args(["vm", "--unix", "socket", "--token-file", "token", "--root", "root"])
            .current_dir(&directory)
            .envs(environment.iter().copied())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let agent = Self { child, directory };
        wait_until("the guest agent listens", || agent.connect().is_ok());
        agent
    }

    fn connect(&self) -> std::io::Result<UnixStream> {
        // Socket paths are short, test directories need not be.
        let directory = std::fs::File::open(&self.directory)?;
        use std::os::fd::AsRawFd;
        let stream = UnixStream::connect(format!("/proc/self/fd/{}/socket", directory.as_raw_fd()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    pub fn stream(&self) -> UnixStream {
        self.connect().unwrap()
    }

    /// One version 1 exchange; the token is added.
    pub fn call(&self, mut request: Value) -> Value {
        request["token"] = TOKEN.into();
        self.call_raw(&[request.to_string().as_bytes(), b"\n"].concat())
    }

    pub fn call_raw(&self, line: &[u8]) -> Value {
        let mut stream = self.stream();
        // The agent may answer and close before it has taken everything.
        let _ = stream.write_all(line);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with('\n'), "{answer:?}");
        serde_json::from_str(&answer).unwrap()
    }

    /// A version 2 connection past its hello.
    pub fn open(&self) -> Connection {
        let mut connection = Connection::greet(self.stream(), TOKEN);
        let (stream, kind, payload) = connection.frame().unwrap();
        assert_eq!((stream, kind), (0, Kind::Welcome));
        connection.welcome = Some(decode(&payload).unwrap());
        connection
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Asked first, so that it ends its commands; one that does not answer is killed.
        if let Ok(mut stream) = self.connect() {
            let request = serde_json::json!({"op": "shutdown", "token": TOKEN});
            let asked = stream.write_all(format!("{request}\n").as_bytes());
            let mut answer = String::new();
            let answered = asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok();
            let obeyed = answered && answer.contains("shutting-down");
            let started = Instant::now();
            while obeyed && started.elapsed() < Duration::from_secs(8) && matches!(self.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct Connection {
    pub stream: UnixStream,
    pub welcome: Option<Welcome>,
    buffer: Vec<u8>,
    id_last: u32,
}

/// How an operation went.
#[derive(Debug, Default)]
pub struct Outcome {
    pub events: Vec<Event>,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    end: Vec<u8>,
}

impl Outcome {
    pub fn end<T: DeserializeOwned>(&self) -> T {
        decode(&self.end).unwrap()
    }
}

impl Connection {
    /// Sends preamble and HELLO; the answer to the former is checked.
    pub fn greet(mut stream: UnixStream, token: &str) -> Self {
        let nonce = Nonce(*b"0123456789abcdef0123456789abcdef");
        stream.write_all(&nonce.line()).unwrap();
        let hello = Hello { versions: vec![2], token: token.into() };
        stream.write_all(&encode(0, Kind::Hello, &hello)).unwrap();
        let mut line = vec![0; nonce.line().len()];
        stream.read_exact(&mut line).unwrap();
        assert_eq!(line, nonce.line());
        Self { stream, welcome: None, buffer: Vec::new(), id_last: 0 }
    }

    /// The next frame; `None` when the connection is over.
    pub fn frame(&mut self) -> Option<(u32, Kind, Vec<u8>)> {
        loop {
            if let Some((frame, size)) = parse(&self.buffer).unwrap() {
                let frame = (frame.stream, frame.kind, frame.payload.to_vec());
                self.buffer.drain(..size);
                return Some(frame);
            }
            let mut chunk = vec![0; 256 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn send<T: Serialize>(&mut self, id: u32, kind: Kind, message: &T) {
        self.stream.write_all(&encode(id, kind, message)).unwrap();
    }

    pub fn send_data(&mut self, id: u32, content: &[u8], eof: bool) {
        self.send(id, Kind::Data, &Data { channel: CHANNEL_IN, content: serde_bytes::Bytes::new(content), eof });
    }

    pub fn start<T: Serialize>(&mut self, op: &str, arguments: &T) -> u32 {
        self.id_last += 1;
        self.send(self.id_last, Kind::Open, &OpenWith { op, arguments });
        self.id_last
    }

    /// Takes frames of `id` until it is over, granting credit for what came.
    pub fn finish(&mut self, id: u32) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        loop {
            let (stream, kind, payload) = self.frame().expect("the connection is over");
            assert_eq!(stream, id, "{kind:?}");
            match kind {
                Kind::Event => outcome.events.push(decode(&payload).unwrap()),
                Kind::Data => {
                    let data: Data<'_> = decode(&payload).unwrap();
                    let channel = if data.channel == CHANNEL_OUT { &mut outcome.out } else { &mut outcome.err };
                    channel.extend_from_slice(data.content);
                    self.send(id, Kind::Credit, &CreditGrant { n: data.content.len() as u64 });
                }
                Kind::End => {
                    outcome.end = payload;
                    return Ok(outcome);
                }
                Kind::Error => return Err(decode(&payload).unwrap()),
                Kind::Credit => {}
                other => panic!("an unexpected {other:?}"),
            }
        }
    }

    pub fn run<T: Serialize>(&mut self, op: &str, arguments: &T) -> Result<Outcome, Failure> {
        let id = self.start(op, arguments);
        self.finish(id)
    }

    /// The ERROR with which the connection ends.
    pub fn last_error(&mut self) -> Failure {
        let mut last = None;
        while let Some((stream, kind, payload)) = self.frame() {
            if (stream, kind) == (0, Kind::Error) {
                last = Some(decode(&payload).unwrap());
            }
        }
        last.expect("the connection ended without an error")
    }
}
