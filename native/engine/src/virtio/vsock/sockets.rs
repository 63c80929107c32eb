//! The unix sockets of one guest behind one epoll descriptor: the listening socket, connecting to programs of the host,
//! and which sockets have changed. Changes are told once (edge-triggered), so that an unread socket costs no wake-up.

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Names a socket for as long as the device lives; never used twice.
pub type Token = u64;

/// Programs that may wait for their connection to be accepted.
const BACKLOG: i32 = 128;

/// Changes that one call takes in; more are left for the next.
const EVENTS_MAX: usize = 128;

const INCOMING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// The listening socket and the epoll descriptor of all.
pub struct Sockets {
    path: PathBuf,
    listener: UnixListener,
    epoll: OwnedFd,
    next_token: Token,
    /// Accepting failed for want of descriptors, and no edge will tell when there are some.
    accept_again: bool,
}

impl Sockets {
    /// The token of the listening socket.
    pub const LISTENER: Token = 0;

    /// Listens at `path`. A socket that an earlier run left there is replaced; anything else is an error.
    ///
    /// # Errors
    /// `EEXIST` when something that is not a socket lies at `path`, `ENAMETOOLONG` when the path of a port would not fit
    /// into an address, or what making and binding the socket says.
    pub fn listen(path: &Path) -> io::Result<Self> {
        SocketAddrUnix::new(path_of_port(path, u32::MAX))?;
        let address = SocketAddrUnix::new(path)?;
        let socket = unconnected()?;
        remove_stale(path)?;
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, EventData::new_u64(Self::LISTENER), INCOMING)?;
        Ok(Self {
            path: path.to_owned(),
            listener: UnixListener::from(socket),
            epoll,
            next_token: 1,
            accept_again: false,
        })
    }

    /// The next program that has connected, if any. One that could not be accepted for want of descriptors waits until a
    /// connection has ended, see [`Sockets::must_accept_again`].
    pub fn accept(&mut self) -> Option<UnixStream> {
        self.accept_again = false;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => return Some(stream),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.accept_again = error.kind() != io::ErrorKind::WouldBlock;
                    return None;
                }
            }
        }
    }

    /// Whether programs wait that could not be accepted.
    pub fn must_accept_again(&self) -> bool {
        self.accept_again
    }

    /// Connects to the program that listens for the guest on this port, and watches the socket. Never waits.
    ///
    /// # Errors
    /// `ENOENT` or `ECONNREFUSED` when nobody listens, `EAGAIN` when too many wait already, or another errno.
    pub fn connect(&mut self, port: u32) -> io::Result<(Token, UnixStream)> {
        let socket = unconnected()?;
        connect(&socket, &SocketAddrUnix::new(path_of_port(&self.path, port))?)?;
        let token = self.watch(socket.as_fd())?;
        Ok((token, UnixStream::from(socket)))
    }

    /// Watches a socket for bytes and its end; closing it ends that.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` when the kernel watches no more.
    pub fn watch(&mut self, socket: BorrowedFd<'_>) -> io::Result<Token> {
        let token = self.next_token;
        epoll::add(&self.epoll, socket, EventData::new_u64(token), INCOMING)?;
        self.next_token += 1;
        Ok(token)
    }

    /// Watches a socket for room to write as well, or no longer: each read of its other side would wake up the device.
    /// What is ready now is told anew.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch_room(&self, token: Token, socket: BorrowedFd<'_>, room: bool) -> io::Result<()> {
        let flags = if room { INCOMING | EventFlags::OUT } else { INCOMING };
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(token), flags)?)
    }

    /// The sockets that have changed since they were last told.
    ///
    /// # Errors
    /// What waiting on the epoll descriptor says.
    pub fn ready(&self) -> io::Result<Vec<(Token, EventFlags)>> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&Timespec::default())) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.into_iter().map(|event| (event.data.u64(), event.flags)).collect())
    }
}

impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // Who made the directory may have removed it already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether the other side has closed the socket altogether.
pub fn hung_up(socket: &UnixStream) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn path_of_port(path: &Path, port: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("_{port}"));
    PathBuf::from(name)
}

fn unconnected() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(Errno::EXIST.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
