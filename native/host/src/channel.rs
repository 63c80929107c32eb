//! Channels: how native threads wake TypeScript. Each is a socket pair; one end is adopted by the event loop, the other
//! gets one fixed-size record for every finished job.

use crate::layout::Completion;
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::collections::HashMap;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// Bound on channels in one process: one for the main thread and one for each worker that asks.
const CHANNELS_MAX: usize = 64;

/// The native end of one channel.
pub struct Channel {
    socket: Mutex<OwnedFd>,
}

impl Channel {
    /// Sends one record whole. A reader that went away loses its records; nobody waits for them any more.
    pub fn complete(&self, completion: &Completion) {
        let record = completion.encode();
        let socket = self.socket.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut sent = 0;
        while sent < record.len() {
            match send(&*socket, &record[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            }
        }
    }
}

struct Table {
    next: i32,
    channels: HashMap<i32, Arc<Channel>>,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Makes a channel. Returns its number and the descriptor for the event loop, which then owns it.
pub fn open() -> Result<(i32, i32)> {
    let mut table = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let table = table.get_or_insert_with(|| Table { next: 1, channels: HashMap::new() });
    if table.channels.len() >= CHANNELS_MAX {
        return Err(Errno::MFILE);
    }
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let number = table.next;
    table.next = number.checked_add(1).ok_or(Errno::OVERFLOW)?;
    table.channels.insert(number, Arc::new(Channel { socket: Mutex::new(ours) }));
    Ok((number, theirs.into_raw_fd()))
}

/// The channel of that number. `BADF`: closed or never opened.
pub fn get(number: i32) -> Result<Arc<Channel>> {
    let table = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    table.as_ref().and_then(|table| table.channels.get(&number)).cloned().ok_or(Errno::BADF)
}

/// Forgets a channel; its socket closes when the last running job of it has ended.
pub fn close(number: i32) -> Result<()> {
    let mut table = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    table.as_mut().and_then(|table| table.channels.remove(&number)).map(|_| ()).ok_or(Errno::BADF)
}
