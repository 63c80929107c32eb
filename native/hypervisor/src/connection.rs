//! One connection of the control socket: lines in, with open files that came with them, lines out, never waited for.

use crate::protocol::{LINE_BYTES_MAX, Reply};
use crate::snapshot_files::FILES_MAX;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send};
use std::fs::File;
use std::mem::{MaybeUninit, take};
use std::os::unix::net::UnixStream;
use std::time::Instant;

const PIECE_BYTES: usize = 4096;

/// What comes next from a connection.
pub(crate) enum Line {
    /// Nothing yet.
    None,
    /// A line, without its end, and the files that came until then.
    Request(Vec<u8>, Vec<File>),
    /// A line that is longer than any request.
    TooLong,
    /// The connection has ended.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The next line may be taken.
    Idle,
    /// A request of it is being done; the next one is read after the answer.
    Busy,
    /// It ends when the output is sent.
    Last,
}

/// See the head of this file.
pub(crate) struct Connection {
    /// Names it.
    pub(crate) id: u64,
    stream: UnixStream,
    input: Vec<u8>,
    /// Bytes of the input in which no end of a line was found.
    searched: usize,
    /// Of the request that comes next.
    files: Vec<File>,
    output: Vec<u8>,
    state: State,
}

impl Connection {
    /// A connection whose socket never waits.
    pub(crate) fn new(id: u64, stream: UnixStream) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        Self { id, stream, input, searched: 0, files: Vec::new(), output, state: State::Idle }
    }

    /// Whether a request of it is being done.
    pub(crate) fn is_busy(&self) -> bool {
        self.state == State::Busy
    }

    /// The next line, once all answers before it have left.
    pub(crate) fn next_line(&mut self) -> Line {
        loop {
            if self.flush().is_err() {
                return Line::End;
            }
            match self.state {
                _ if !self.output.is_empty() => return Line::None,
                State::Last => return Line::End,
                State::Busy => return Line::None,
                State::Idle => {}
            }
            if let Some(line) = self.take_line() {
                return line;
            }
            match self.receive() {
                Ok(0) => return Line::End,
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Line::None,
                Err(_) => return Line::End,
            }
        }
    }

    /// Takes what there is now; more files than a request can have are an error.
    fn receive(&mut self) -> Result<usize, Errno> {
        let mut piece = [0; PIECE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut [IoSliceMut::new(&mut piece)], &mut ancillary, flags)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files.map(File::from));
            }
        }
        // The kernel has closed what did not fit.
        if received.flags.contains(ReturnFlags::CTRUNC) || self.files.len() > FILES_MAX {
            return Err(Errno::TOOBIG);
        }
        self.input.extend_from_slice(&piece[..received.bytes]);
        Ok(received.bytes)
    }

    fn take_line(&mut self) -> Option<Line> {
        let end = self.input[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = end.map(|end| self.searched + end) else {
            self.searched = self.input.len();
            return (self.searched > LINE_BYTES_MAX).then_some(Line::TooLong);
        };
        self.searched = 0;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        let files = take(&mut self.files);
        Some(if line.len() > LINE_BYTES_MAX { Line::TooLong } else { Line::Request(line, files) })
    }

    /// Its last line is a request that somebody else answers.
    pub(crate) fn await_answer(&mut self) {
        self.state = State::Busy;
    }

    /// Answers its last line.
    pub(crate) fn answer(&mut self, reply: &Reply) {
        self.state = State::Idle;
        // A reply is words and numbers, which always have a form in JSON.
        self.output.extend(serde_json::to_vec(reply).unwrap_or_default());
        self.output.push(b'\n');
    }

    /// Ends it after the last answer.
    pub(crate) fn say_no_more(&mut self) {
        self.state = State::Last;
    }

    /// What to wait for; nothing while only the machine's thread can bring it on.
    pub(crate) fn waits_for(&self) -> Option<PollFd<'_>> {
        match self.state {
            _ if !self.output.is_empty() => Some(PollFd::new(&self.stream, PollFlags::OUT)),
            State::Idle => Some(PollFd::new(&self.stream, PollFlags::IN)),
            State::Busy | State::Last => None,
        }
    }

    /// Sends what is left, for as long as that may take.
    pub(crate) fn flush_until(&mut self, until: Instant) {
        while self.flush().is_ok() && !self.output.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or_default();
            let mut polled = [PollFd::new(&self.stream, PollFlags::OUT)];
            if poll(&mut polled, Some(&timeout)) == Ok(0) {
                return;
            }
        }
    }

    fn flush(&mut self) -> Result<(), Errno> {
        while !self.output.is_empty() {
            match send(&self.stream, &self.output, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
