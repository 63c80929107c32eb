//! The virtio-serial port of a virtual machine that has no vsock: found by its name, and read and written without blocking.
//! The kernel says of a port whose host side is away that it is at its end; that passes when the host comes back.

use rustix::event::epoll;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The name that the host gives the port.
pub const PORT_NAME: &str = "org.fluxvm.agent.0";

/// A host that has come back may be heard before the kernel knows of it, which then still says that it is away.
const AWAY_AFTER: Duration = Duration::from_millis(200);

const PORTS: &str = "/sys/class/virtio-ports";

/// The port of that name, if the machine has it.
pub fn find(name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(PORTS).ok()?;
    entries.flatten().find_map(|entry| {
        let found = std::fs::read_to_string(entry.path().join("name")).ok()?;
        (found.trim_end() == name).then(|| PathBuf::from("/dev").join(entry.file_name()))
    })
}

/// Opens a port for reading and writing; one at a time may have it open.
pub fn open(path: &std::path::Path) -> io::Result<(Reader, Writer)> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let port = Rc::new(File::from(rustix::fs::open(path, flags, Mode::empty())?));
    let reader = Reader {
        readiness: Readiness::new(&port, epoll::EventFlags::IN)?,
        port: port.clone(),
        away: false,
        doubt: None,
    };
    let writer = Writer { readiness: Readiness::new(&port, epoll::EventFlags::OUT)?, port };
    Ok((reader, writer))
}

/// Says when it is worth trying again. An event set of its own, told of edges, stands between the port and the runtime:
/// for the runtime a descriptor that has ended once has ended for good.
struct Readiness {
    events: AsyncFd<OwnedFd>,
}

impl Readiness {
    fn new(port: &File, interest: epoll::EventFlags) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&events, port, epoll::EventData::new_u64(0), interest | epoll::EventFlags::ET)?;
        // SAFETY: an owned descriptor stays open, and the same one, for as long as the value that owns it.
        let events = unsafe { AsyncFd::register_with_interest(events, Interest::READABLE)? };
        Ok(Self { events })
    }

    /// Ready after something has happened to the port since the last call.
    fn poll_change(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut guard = ready!(self.events.poll_read_ready(context))?;
        let mut event = Vec::with_capacity(1);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(guard.get_inner(), rustix::buffer::spare_capacity(&mut event), Some(&now)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Poll::Ready(Err(errno.into())),
        }
        guard.clear_ready();
        Poll::Ready(Ok(()))
    }
}

pub struct Reader {
    port: Rc<File>,
    readiness: Readiness,
    /// The end has been told; it is not told again before there were bytes.
    away: bool,
    /// When the end that the kernel tells is believed.
    doubt: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Reader {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match (&*self.port).read(out.initialize_unfilled()) {
                Ok(0) if self.away => {}
                Ok(0) => {
                    let doubt = self.doubt.get_or_insert_with(|| Box::pin(sleep(AWAY_AFTER)));
                    if doubt.as_mut().poll(context).is_ready() {
                        (self.away, self.doubt) = (true, None);
                        return Poll::Ready(Ok(()));
                    }
                }
                Ok(count) => {
                    (self.away, self.doubt) = (false, None);
                    out.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.doubt = None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Poll::Ready(Err(error)),
            }
            ready!(self.readiness.poll_change(context))?;
        }
    }
}

pub struct Writer {
    port: Rc<File>,
    readiness: Readiness,
}

impl AsyncWrite for Writer {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match (&*self.port).write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                written => return Poll::Ready(written),
            }
            ready!(self.readiness.poll_change(context))?;
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
