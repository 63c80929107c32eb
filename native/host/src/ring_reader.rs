//! Readers of ring buffers: each is a thread that carries records from the kernel to a socket of the event loop. When that
//! is full it waits, so what is lost is lost in the kernel, which counts it. It ends when the socket's other end does.

use fluxvm_libbpf::{Map, Ring};
use fluxvm_sys::threads::with_signals_blocked;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const READERS_MAX: usize = 16;
const STACK_BYTES: usize = 128 * 1024;
/// Records between two looks at the socket.
const RECORDS_AT_ONCE: usize = 64;

static READERS: AtomicUsize = AtomicUsize::new(0);

/// Starts a reader; returns the descriptor of the socket that its records arrive by, which the caller then owns.
/// `INVAL`: no ring buffer; `MFILE`: too many are read already.
pub fn open(map: &Map) -> Result<i32> {
    let ring = Ring::open(map)?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if READERS.fetch_add(1, Ordering::Relaxed) >= READERS_MAX {
        READERS.fetch_sub(1, Ordering::Relaxed);
        return Err(Errno::MFILE);
    }
    let builder = thread::Builder::new().name("fluxvm-ring".into()).stack_size(STACK_BYTES);
    let started = with_signals_blocked(|| {
        builder.spawn(move || {
            let _ = carry(ring, &ours);
            READERS.fetch_sub(1, Ordering::Relaxed);
        })
    });
    if let Err(error) = started {
        READERS.fetch_sub(1, Ordering::Relaxed);
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
    }
    Ok(theirs.into_raw_fd())
}

/// Returns when the other end is closed.
fn carry(mut ring: Ring, socket: &OwnedFd) -> Result<()> {
    loop {
        let mut events = [PollFd::new(&ring, PollFlags::IN), PollFd::new(socket, PollFlags::empty())];
        match poll(&mut events, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        if !events[1].revents().is_empty() {
            return Ok(());
        }
        let records = ring.take(RECORDS_AT_ONCE)?;
        let mut sent = 0;
        while sent < records.len() {
            match send(socket, &records[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            }
        }
    }
}
