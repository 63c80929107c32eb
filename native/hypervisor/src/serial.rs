//! The first serial port as the host sees it: a log of what the guest prints, and a socket by which one program at a time
//! reads what is printed from then on, and types.

use crate::socket::PlacedSocket;
use fluxvm_engine::devices::serial::SerialPort;
use fluxvm_sys::threads::STACK_BYTES;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The guest takes its input at its own pace: when its buffer is full, it is looked at again after this.
const TYPING_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
const PIECE_BYTES: usize = 256;

/// Who reads and types at the moment.
#[derive(Clone, Default)]
pub(crate) struct Client(Arc<Mutex<Option<Arc<UnixStream>>>>);

impl Client {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<UnixStream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the port prints.
pub(crate) struct Output {
    /// Otherwise it is the standard output.
    pub(crate) log: Option<File>,
    pub(crate) client: Client,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(client) = self.client.lock().as_deref() {
            // A client that does not read misses what the guest prints meanwhile: the guest waits for nobody.
            let _ = send(client, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        match &mut self.log {
            Some(log) => log.write(bytes),
            None => io::stdout().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.log.is_some() { Ok(()) } else { io::stdout().flush() }
    }
}

/// The socket and its thread; dropping it ends both.
pub(crate) struct SerialSocket {
    _socket: PlacedSocket,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl SerialSocket {
    /// Serves a port on a socket.
    ///
    /// # Errors
    /// What making the thread says.
    pub(crate) fn start(socket: PlacedSocket, client: Client, port: Arc<Mutex<SerialPort>>) -> io::Result<Self> {
        let listener = socket.listener()?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let typist = Typist { listener, stop: Arc::clone(&stop), client, port, typed: Vec::new() };
        let thread = std::thread::Builder::new()
            .name("serial".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || typist.run())?;
        Ok(Self { _socket: socket, stop, thread: Some(thread) })
    }
}

impl Drop for SerialSocket {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

struct Typist {
    listener: UnixListener,
    stop: Arc<OwnedFd>,
    client: Client,
    port: Arc<Mutex<SerialPort>>,
    /// What has been read and is not in the guest's buffer yet.
    typed: Vec<u8>,
}

impl Typist {
    fn run(mut self) {
        while self.wait() {
            // Who comes takes the place of who was there: an agent that was restarted, mostly.
            while let Ok((stream, _)) = self.listener.accept() {
                *self.client.lock() = Some(Arc::new(stream));
            }
            self.read();
            self.give();
        }
        *self.client.lock() = None;
    }

    /// Waits for something to do. False when it is over.
    fn wait(&self) -> bool {
        let client = self.client.lock().clone();
        let mut polled = vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        let has_room = self.typed.is_empty();
        polled.extend(client.iter().filter(|_| has_room).map(|client| PollFd::new(&**client, PollFlags::IN)));
        match poll(&mut polled, (!has_room).then_some(&TYPING_PAUSE)) {
            Ok(_) | Err(Errno::INTR) => polled[0].revents().is_empty(),
            Err(_) => false,
        }
    }

    fn read(&mut self) {
        let Some(client) = self.client.lock().clone().filter(|_| self.typed.is_empty()) else { return };
        let mut piece = [0; PIECE_BYTES];
        match recv(&*client, &mut piece, RecvFlags::DONTWAIT) {
            Ok((length, _)) if length > 0 => self.typed.extend_from_slice(&piece[..length]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => *self.client.lock() = None,
        }
    }

    fn give(&mut self) {
        if !self.typed.is_empty() {
            let taken = self.port.lock().unwrap_or_else(PoisonError::into_inner).enqueue(&self.typed);
            // An interrupt that cannot be signalled is one that the guest misses.
            self.typed.drain(..taken.unwrap_or(0).min(self.typed.len()));
        }
    }
}
