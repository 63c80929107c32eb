//! Version 2 on a byte device: hosts that come and go at any byte, and what is left of them.

use rustix::pipe::{PipeFlags, pipe_with};
use serde::Serialize;
use service::*;
use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::net::unix::pipe;
use tokio::task::{LocalSet, spawn_local};
use wire::device::{Decoder, MARK, Step, encode as coded};
use wire::file_request::*;
use wire::frame::{Kind, decode, encode, parse};
use wire::message::*;
use wire::preamble::Nonce;
use wire::request::*;
use wire::{ErrorCode, Fault};

/// What every file holds: each value that the coding changes, at the beginning, the end and in pairs.
const CONTENT: &[u8] = &[0xc1, 0xfe, 0x01, b'a', 0xc1, 0xc1, 0xfe, 0xfe, 0x02, 0xc1];
const TOKEN: &str = "t";

/// Has files of one content, and remembers the commands that it was told to run.
struct Keeper(Rc<RefCell<Vec<String>>>);

fn refused<T>() -> Result<T, Fault> {
    Err(Fault::new(ErrorCode::Capability, "not here"))
}

impl Guest for Keeper {
    fn description(&self) -> Description {
        Description { agent: "keeper".into(), mode: "vm", boot: "1".into() }
    }

    async fn exec(&self, request: ExecRequest) -> Result<Execution, Fault> {
        self.0.borrow_mut().push(request.command.unwrap());
        refused()
    }

    async fn read_file(&self, _: ReadFileRequest) -> Result<FileDownload, Fault> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        std::fs::File::from(writer).write_all(CONTENT).unwrap();
        let bytes = pipe::Receiver::from_owned_fd(reader).unwrap();
        let size = CONTENT.len() as u64;
        Ok(FileDownload { size, mode: 0o644, bytes, ended: Box::pin(async move { Ok(size) }) })
    }

    async fn write_file(&self, _: WriteFileRequest) -> Result<FileUpload, Fault> {
        refused()
    }

    async fn file(&self, _: FileRequest) -> Result<Download, Fault> {
        refused()
    }

    async fn file_upload(&self, _: FileUploadRequest) -> Result<Upload, Fault> {
        refused()
    }

    async fn manifest(&self, _: ManifestRequest) -> Result<ManifestDownload, Fault> {
        refused()
    }

    fn shutdown(&self, _: ShutdownRequest) {}
}

/// The host's side of the device.
struct Host {
    reader: ReadHalf<DuplexStream>,
    writer: WriteHalf<DuplexStream>,
    decoder: Decoder,
    raw: Vec<u8>,
    content: Vec<u8>,
    commands: Rc<RefCell<Vec<String>>>,
}

impl Host {
    /// With a device that holds so many bytes in each direction.
    fn new(device_size: usize) -> Self {
        let commands = Rc::default();
        let server = Server::new(Keeper(Rc::clone(&commands)), Authority::token(TOKEN.as_bytes()));
        let (device, theirs) = duplex(device_size);
        let (reader, writer) = split(theirs);
        spawn_local(server.serve_device(reader, writer));
        let (reader, writer) = split(device);
        Self { reader, writer, decoder: Decoder::default(), raw: Vec::new(), content: Vec::new(), commands }
    }

    async fn send(&mut self, content: &[u8]) {
        let mut sent = Vec::new();
        coded(content, &mut sent);
        self.send_raw(&sent).await;
    }

    /// Reads while it waits: a host that only wrote could wait for ever, and the guest agent with it.
    async fn send_raw(&mut self, sent: &[u8]) {
        let Self { reader, writer, raw, .. } = self;
        let mut writing = std::pin::pin!(writer.write_all(sent));
        loop {
            tokio::select! {
                written = &mut writing => return written.unwrap(),
                read = reader.read_buf(raw) => assert!(read.unwrap() > 0, "the device has ended"),
            }
        }
    }

    async fn send_frame<T: Serialize>(&mut self, id: u32, kind: Kind, message: &T) {
        self.send(&encode(id, kind, message)).await;
    }

    /// Begins a connection and reads up to the answer to its own nonce.
    async fn begin(&mut self, digit: u8, token: &str) {
        let nonce = Nonce([digit; 32]);
        self.send_raw(&[MARK]).await;
        self.send(&nonce.line()).await;
        self.send_frame(0, Kind::Hello, &Hello { versions: vec![2], token: token.into() }).await;
        // Answers to others, and what is left of them, come first.
        let line = nonce.line();
        let mut marked = false;
        while !(marked && self.content.starts_with(&line)) {
            if self.fill().await == Step::Marked {
                self.content.clear();
                marked = true;
            }
        }
        self.content.drain(..line.len());
    }

    /// Decodes more.
    async fn fill(&mut self) -> Step {
        if self.raw.is_empty() {
            assert!(self.reader.read_buf(&mut self.raw).await.unwrap() > 0, "the device has ended");
        }
        let mut out = [0; 512];
        let (count, step) = self.decoder.decode(&self.raw, &mut out);
        self.raw.drain(..count.read);
        self.content.extend_from_slice(&out[..count.written]);
        step
    }

    async fn frame(&mut self) -> (u32, Kind, Vec<u8>) {
        loop {
            if let Some((frame, size)) = parse(&self.content).unwrap() {
                let frame = (frame.stream, frame.kind, frame.payload.to_vec());
                self.content.drain(..size);
                return frame;
            }
            assert_eq!(self.fill().await, Step::Data, "another beginning within a connection");
        }
    }

    async fn welcomed(&mut self, digit: u8) {
        self.begin(digit, TOKEN).await;
        assert_eq!(self.frame().await.1, Kind::Welcome);
    }

    /// Reads a file on stream `id`.
    async fn read_file(&mut self, id: u32) -> Vec<u8> {
        let request = ReadFileRequest { path: serde_bytes::ByteBuf::from("/a"), max: 100 };
        self.send_frame(id, Kind::Open, &OpenWith { op: "read-file", arguments: &request }).await;
        let mut content = Vec::new();
        loop {
            match self.frame().await {
                (_, Kind::Data, payload) => content.extend_from_slice(decode::<Data<'_>>(&payload).unwrap().content),
                (_, Kind::End, _) => return content,
                (_, Kind::Event, _) => {}
                (_, kind, _) => panic!("an unexpected {kind:?}"),
            }
        }
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn content_of_every_value_comes_through() {
    run(async {
        for device_size in [1, 7, 1 << 16] {
            let mut host = Host::new(device_size);
            host.send_raw(b"left by somebody else FLUXVM/2 \n").await;
            host.welcomed(b'a').await;
            assert_eq!(host.read_file(1).await, CONTENT, "{device_size}");
            assert_eq!(host.read_file(2).await, CONTENT, "{device_size}");
        }
    });
}

#[test]
fn a_new_beginning_ends_a_connection_at_any_byte_and_nothing_half_is_done() {
    run(async {
        let request = serde_json::json!({
            "argv": null, "env": {}, "timeout_ms": 0, "output_max": 100, "stdin": false, "kill_group": true,
            "command": format!("remove /home/user/{}", "x".repeat(60)),
        });
        let frame = encode(1, Kind::Open, &OpenWith { op: "exec", arguments: &request });
        for cut in (0..frame.len()).step_by(3) {
            let mut host = Host::new(1 << 16);
            host.welcomed(b'a').await;
            host.send(&frame[..cut]).await;
            host.welcomed(b'b').await;
            assert_eq!(host.read_file(1).await, CONTENT, "{cut}");
            assert!(host.commands.borrow().is_empty(), "{cut}: {:?}", host.commands.borrow());
        }
    });
}

#[test]
fn a_host_that_reads_nothing_leaves_nothing_behind_for_the_next() {
    run(async {
        let mut host = Host::new(64);
        host.welcomed(b'a').await;
        for id in 1..=40 {
            let request = ReadFileRequest { path: serde_bytes::ByteBuf::from("/a"), max: 100 };
            let open = encode(id, Kind::Open, &OpenWith { op: "read-file", arguments: &request });
            let sending = host.writer.write_all(&open);
            // In the end the guest agent takes nothing more, since nobody takes what it says.
            if tokio::time::timeout(std::time::Duration::from_millis(20), sending).await.is_err() {
                break;
            }
        }
        host.welcomed(b'b').await;
        assert_eq!(host.read_file(1).await, CONTENT);
    });
}

#[test]
fn a_wrong_token_is_refused_and_the_device_goes_on() {
    run(async {
        let mut host = Host::new(1 << 16);
        host.begin(b'a', "wrong").await;
        let (stream, kind, payload) = host.frame().await;
        assert_eq!((stream, kind), (0, Kind::Error));
        assert_eq!(decode::<Failure>(&payload).unwrap().code, ErrorCode::Unauthorized);
        host.welcomed(b'b').await;
    });
}

#[test]
fn what_makes_no_sense_is_dropped_up_to_the_next_beginning() {
    run(async {
        let mut host = Host::new(1 << 16);
        host.welcomed(b'a').await;
        // No sender writes this pair.
        host.send_raw(&[0xfe, 0x77, 1, 2, 3]).await;
        host.welcomed(b'b').await;
        host.send_raw(&[MARK, MARK, b'x', MARK]).await;
        host.welcomed(b'c').await;
        assert_eq!(host.read_file(1).await, CONTENT);
    });
}
