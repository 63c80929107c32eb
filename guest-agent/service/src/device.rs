//! Version 2 on a byte device that knows no connections, such as a serial port: the host may go away and come back at any
//! byte, and another may take its place, without anything being closed. A mark that occurs nowhere else begins anew.

use crate::guest::Guest;
use crate::server::{HANDSHAKE_TIMEOUT, Server};
use crate::v2;
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use wire::device::{Decoder, MARK, Step, encode};
use wire::preamble::{Nonce, Scanner};

const READ_SIZE: usize = 32 << 10;
const WRITE_SIZE: usize = 32 << 10;
/// Ends of the device in a row, without a byte between them, after which it is taken for gone.
const ENDS_MAX: u32 = 2;

impl<G: Guest> Server<G> {
    /// Serves one connection after the other. `reader` may end when the host has gone away; when reading on ends at
    /// once again, so does this. Must run inside a `LocalSet`.
    pub async fn serve_device(
        self: Rc<Self>,
        reader: impl AsyncRead + Unpin,
        writer: impl AsyncWrite + Unpin + 'static,
    ) {
        let mut incoming = Incoming::new(reader);
        let outgoing = Outgoing(Rc::new(RefCell::new(Writer { inner: writer, encoded: Vec::new(), written: 0 })));
        // A host that still has a connection to a guest agent before this one learns that it is over.
        outgoing.begin();
        outgoing.try_flush().await;
        loop {
            match incoming.preamble().await {
                Begun::With(nonce) => {
                    outgoing.begin();
                    v2::serve(self.clone(), nonce, &mut incoming, outgoing.clone()).await;
                }
                Begun::Badly => {}
                Begun::Gone => return,
            }
        }
    }
}

/// What came after a mark.
enum Begun {
    With(Nonce),
    /// No preamble in time, or another mark.
    Badly,
    /// The device itself has ended.
    Gone,
}

/// The host's bytes of one connection; it ends where the next one begins, and where the host goes away.
struct Incoming<R> {
    inner: R,
    decoder: Decoder,
    /// Read from the device; of its first `filled` bytes those from `taken` on are not decoded yet.
    raw: Box<[u8]>,
    filled: usize,
    taken: usize,
    /// A mark was read: what follows is another connection's.
    marked: bool,
    /// The connection is over until a mark comes.
    over: bool,
    ends: u32,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    fn new(inner: R) -> Self {
        let (decoder, raw) = (Decoder::default(), vec![0; READ_SIZE].into());
        Self { inner, decoder, raw, filled: 0, taken: 0, marked: false, over: true, ends: 0 }
    }

    /// Drops what comes before the next mark, and reads the preamble behind it.
    async fn preamble(&mut self) -> Begun {
        let mut dropped = [0; 4096];
        while !self.marked {
            self.over = false;
            match self.read(&mut dropped).await {
                Ok(0) if !self.marked && self.ends >= ENDS_MAX => return Begun::Gone,
                Ok(_) => {}
                Err(_) => return Begun::Gone,
            }
        }
        (self.marked, self.over) = (false, false);
        let mut scanner = Scanner::default();
        let scan = async {
            loop {
                match self.read_u8().await {
                    Ok(byte) => {
                        if let Some(nonce) = scanner.push(byte) {
                            return Begun::With(nonce);
                        }
                    }
                    Err(_) => return Begun::Badly,
                }
            }
        };
        tokio::time::timeout(HANDSHAKE_TIMEOUT, scan).await.unwrap_or(Begun::Badly)
    }

    /// Waits until there are raw bytes; `false` when the device has none because the host is away.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.taken < self.filled {
            return Poll::Ready(Ok(true));
        }
        let mut buffer = ReadBuf::new(&mut self.raw);
        ready!(Pin::new(&mut self.inner).poll_read(context, &mut buffer))?;
        let count = buffer.filled().len();
        (self.filled, self.taken) = (count, 0);
        self.ends = if count == 0 { self.ends + 1 } else { 0 };
        Poll::Ready(Ok(count > 0))
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Incoming<R> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = out.filled().len();
        while !this.over && out.filled().len() == before && out.remaining() > 0 {
            if !ready!(this.poll_fill(context))? {
                this.over = true;
                break;
            }
            let sent = &this.raw[this.taken..this.filled];
            // What is decoded is never longer; no more of the reader's memory is touched.
            let room = out.remaining().min(sent.len());
            let (count, step) = this.decoder.decode(sent, out.initialize_unfilled_to(room));
            this.taken += count.read;
            out.advance(count.written);
            match step {
                Step::Data => {}
                Step::Marked => (this.marked, this.over) = (true, true),
                Step::Broken => this.over = true,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The device's writing side, for one connection after the other.
struct Writer<W> {
    inner: W,
    /// Encoded bytes, written up to `written`.
    encoded: Vec<u8>,
    written: usize,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.encoded.len() {
            let count = ready!(Pin::new(&mut self.inner).poll_write(context, &self.encoded[self.written..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
        }
        self.encoded.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

struct Outgoing<W>(Rc<RefCell<Writer<W>>>);

impl<W> Clone for Outgoing<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W> Outgoing<W> {
    /// Forgets what was left of the connection before; the host drops its beginning.
    fn begin(&self) {
        let mut writer = self.0.borrow_mut();
        writer.encoded = vec![MARK];
        writer.written = 0;
    }
}

impl<W: AsyncWrite + Unpin> Outgoing<W> {
    /// Writes what the device takes now; a host that is away has nothing to learn.
    async fn try_flush(&self) {
        let mut writer = self.clone();
        std::future::poll_fn(|context| {
            let _ = Pin::new(&mut writer).poll_flush(context);
            Poll::Ready(())
        })
        .await;
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Outgoing<W> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut writer = self.0.borrow_mut();
        if writer.encoded.len() >= WRITE_SIZE {
            ready!(writer.poll_drain(context))?;
        }
        let bytes = &bytes[..bytes.len().min(WRITE_SIZE)];
        encode(bytes, &mut writer.encoded);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = self.0.borrow_mut();
        ready!(writer.poll_drain(context))?;
        Pin::new(&mut writer.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
