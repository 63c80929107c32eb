//! One output of an execution as the guest holds it: what is kept of it, and the pipe that more comes from.

use super::ring::Ring;
use rustix::io::ioctl_fionread;
use std::rc::Rc;
use tokio::net::unix::pipe;

pub struct Channel {
    pub ring: Ring,
    /// Where more may come from; none at its end.
    pub pipe: Option<Rc<pipe::Receiver>>,
}

impl Channel {
    /// The offset behind what has been written so far, read or not.
    pub fn written(&self) -> u64 {
        self.ring.kept().end + self.unread() as u64
    }

    /// How much it is worth to read at once, at most `room`. The memory that is there is filled without asking how much
    /// there is to be read: whoever asks a pipe waits for its writer.
    pub fn wanted(&self, room: usize) -> usize {
        room.min(self.ring.spare().unwrap_or_else(|| self.unread()))
    }

    fn unread(&self) -> usize {
        self.pipe.as_ref().map_or(0, |pipe| unread(pipe))
    }
}

/// Bytes that wait in a pipe.
pub fn unread(pipe: &pipe::Receiver) -> usize {
    ioctl_fionread(pipe).unwrap_or(0) as usize
}
