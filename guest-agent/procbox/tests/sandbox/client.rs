//! A small blocking client of the guest-agent protocol, one connection for each operation.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use wire::frame::{self, Kind};
use wire::message::*;
use wire::preamble::Nonce;
use wire::request::*;
use wire::{ErrorCode, Fault};

/// One connection with one operation on stream 1.
pub struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Stream of the operation.
    current: u32,
}

/// What an `exec` came to.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExecStatus,
    pub stdout: String,
    pub stderr: String,
    pub stdout_len: u64,
}

/// A frame that belongs to the operation.
pub enum Heard {
    Event,
    Data(u8, Vec<u8>),
    End(Vec<u8>),
    Failed(Fault),
}

impl Connection {
    pub fn open(socket: &Path, token: &str) -> std::io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let nonce = Nonce(*b"0123456789abcdef0123456789abcdef");
        stream.write_all(&nonce.line())?;
        let mut line = vec![0; nonce.line().len()];
        stream.read_exact(&mut line)?;
        assert_eq!(line, nonce.line());
        let mut connection = Self { stream, buffer: Vec::new(), current: 1 };
        connection.send(0, Kind::Hello, &Hello { versions: vec![2], token: token.into() })?;
        match connection.next_frame()? {
            (0, Kind::Welcome, _) => Ok(connection),
            (_, kind, payload) => Err(std::io::Error::other(format!("{kind:?} {}", String::from_utf8_lossy(&payload)))),
        }
    }

    pub fn start<T: Serialize>(&mut self, op: &str, arguments: &T) {
        self.send(self.current, Kind::Open, &OpenWith { op, arguments }).unwrap();
        // As much credit as the longest test takes.
        self.send(self.current, Kind::Credit, &CreditGrant { n: 1 << 32 }).unwrap();
    }

    pub fn send<T: Serialize>(&mut self, stream: u32, kind: Kind, message: &T) -> std::io::Result<()> {
        self.stream.write_all(&frame::encode(stream, kind, message))
    }

    pub fn send_on_current<T: Serialize>(&mut self, kind: Kind, message: &T) {
        self.send(self.current, kind, message).unwrap();
    }

    /// Starts an operation on the stream `stream`, which is the current one from then on.
    pub fn open_on<T: Serialize>(&mut self, stream: u32, op: &str, arguments: &T) {
        self.current = stream;
        self.start(op, arguments);
    }

    pub fn send_content(&mut self, content: &[u8]) {
        for chunk in content.chunks(1 << 18) {
            self.stream.write_all(&frame::data_prefix(self.current, CHANNEL_IN, chunk.len())).unwrap();
            self.stream.write_all(chunk).unwrap();
        }
        let end = Data { channel: CHANNEL_IN, content: serde_bytes::Bytes::new(b""), eof: true };
        self.send(self.current, Kind::Data, &end).unwrap();
    }

    /// Starts another operation on a stream of its own.
    pub fn start_another<T: Serialize>(&mut self, op: &str, arguments: &T) {
        self.current += 1;
        self.start(op, arguments);
    }

    /// Runs another command on the same connection.
    pub fn run_again(&mut self, request: &ExecRequest) -> Outcome {
        self.start_another("exec", request);
        self.finish_exec().unwrap()
    }

    /// The next frame of the operation; credit is of no interest to a client that sends little.
    pub fn hear(&mut self) -> Result<Heard, Fault> {
        loop {
            let (_, kind, payload) =
                self.next_frame().map_err(|error| Fault::new(ErrorCode::Internal, error.to_string()))?;
            return Ok(match kind {
                Kind::Event => Heard::Event,
                Kind::Data => {
                    let data: Data<'_> = rmp_serde::from_slice(&payload).unwrap();
                    Heard::Data(data.channel, data.content.to_vec())
                }
                Kind::End => Heard::End(payload),
                Kind::Error => {
                    let failure: Failure = decoded(&payload);
                    Heard::Failed(Fault::new(failure.code, failure.message))
                }
                _ => continue,
            });
        }
    }

    /// Hears the operation to its end and collects what came on channels 1 and 2.
    pub fn finish<T: DeserializeOwned>(&mut self) -> Result<(T, [Vec<u8>; 2]), Fault> {
        let mut channels = [Vec::new(), Vec::new()];
        loop {
            match self.hear()? {
                Heard::Data(channel, content) => channels[usize::from(channel) - 1].extend(content),
                Heard::End(payload) => return Ok((decoded(&payload), channels)),
                Heard::Failed(fault) => return Err(fault),
                Heard::Event => (),
            }
        }
    }

    pub fn finish_exec(&mut self) -> Result<Outcome, Fault> {
        let (end, [stdout, stderr]): (ExecEnd, _) = self.finish()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Outcome { status: end.status, stdout: text(stdout), stderr: text(stderr), stdout_len: end.stdout_len })
    }

    fn next_frame(&mut self) -> std::io::Result<(u32, Kind, Vec<u8>)> {
        loop {
            if let Some((found, size)) = frame::parse(&self.buffer).unwrap() {
                let result = (found.stream, found.kind, found.payload.to_vec());
                self.buffer.drain(..size);
                return Ok(result);
            }
            let mut chunk = [0; 1 << 16];
            let count = self.stream.read(&mut chunk)?;
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.buffer.extend_from_slice(&chunk[..count]);
        }
    }
}

fn decoded<T: DeserializeOwned>(payload: &[u8]) -> T {
    rmp_serde::from_slice(payload).unwrap()
}

/// A shell command with the settings that `/process` uses.
pub fn shell(command: &str) -> ExecRequest {
    ExecRequest {
        command: Some(command.into()),
        timeout_ms: 30_000,
        output_max: 16 << 20,
        kill_group: true,
        ..ExecRequest::default()
    }
}
