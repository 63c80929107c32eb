//! What the host writes to an execution: taken by absolute offset, so that a piece may come twice, and kept in a
//! bounded buffer until the command reads it.

use std::cell::RefCell;
use tokio::sync::Notify;
use wire::Fault;
use wire::execution::{ExecutionStdinEnd, ExecutionStdinRequest, StdinState};
use wire::limits::STDIN_BUFFER_MAX;

/// Bytes that go to the command at once.
const PIECE_SIZE: usize = 64 << 10;

pub struct Input {
    state: RefCell<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    accepted: u64,
    /// Nothing more is taken.
    closed: bool,
    waiting: Vec<u8>,
    /// Bytes that have left `waiting` and not reached the command yet.
    under_way: usize,
}

/// What is to be done for the command.
pub enum Next {
    Write(Vec<u8>),
    /// The command is to see the end.
    End,
}

impl Input {
    pub fn new(closed: bool) -> Self {
        Self { state: RefCell::new(State { closed, ..State::default() }), changed: Notify::new() }
    }

    pub fn state(&self) -> StdinState {
        let state = self.state.borrow();
        StdinState { accepted: state.accepted, closed: state.closed }
    }

    /// Takes a piece, waiting until there is room for all of it. Dropping the future leaves what was taken taken.
    /// Error `BAD_ARGUMENT` for an end before what was taken.
    pub async fn take(&self, request: &ExecutionStdinRequest) -> Result<ExecutionStdinEnd, Fault> {
        let end = request.end()?;
        loop {
            let changed = self.changed.notified();
            if let Some(answer) = self.take_now(request, end)? {
                return Ok(answer);
            }
            changed.await;
        }
    }

    /// Takes what there is room for; an answer when that is all.
    fn take_now(&self, request: &ExecutionStdinRequest, end: u64) -> Result<Option<ExecutionStdinEnd>, Fault> {
        let mut state = self.state.borrow_mut();
        let Some(known) = state.accepted.checked_sub(request.offset) else {
            return Ok(Some(ExecutionStdinEnd { accepted: state.accepted, closed: state.closed, gap: true }));
        };
        let rest = request.content.get(known as usize..).unwrap_or_default();
        if !state.closed && !rest.is_empty() {
            let room = STDIN_BUFFER_MAX - state.waiting.len() - state.under_way;
            let count = rest.len().min(room);
            state.waiting.extend_from_slice(&rest[..count]);
            state.accepted += count as u64;
            if count > 0 {
                self.changed.notify_waiters();
            }
            if count < rest.len() {
                return Ok(None);
            }
        }
        if request.eof && !state.closed {
            if end < state.accepted {
                return Err(Fault::bad_argument(format!("{} bytes of input were taken already", state.accepted)));
            }
            state.closed = true;
            self.changed.notify_waiters();
        }
        Ok(Some(ExecutionStdinEnd { accepted: state.accepted, closed: state.closed, gap: false }))
    }

    /// The command takes no more: what waits is dropped.
    pub fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        state.waiting = Vec::new();
        self.changed.notify_waiters();
    }

    /// What is next for the command; what was handed out before has reached it.
    pub async fn next(&self) -> Next {
        loop {
            let changed = self.changed.notified();
            if let Some(next) = self.next_now() {
                return next;
            }
            changed.await;
        }
    }

    fn next_now(&self) -> Option<Next> {
        let mut state = self.state.borrow_mut();
        if std::mem::take(&mut state.under_way) > 0 {
            self.changed.notify_waiters();
        }
        if state.waiting.is_empty() {
            state.waiting = Vec::new();
            return state.closed.then_some(Next::End);
        }
        let size = state.waiting.len().min(PIECE_SIZE);
        let piece: Vec<u8> = state.waiting.drain(..size).collect();
        state.under_way = piece.len();
        Some(Next::Write(piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_bytes::ByteBuf;

    fn piece(offset: u64, content: &[u8], eof: bool) -> ExecutionStdinRequest {
        ExecutionStdinRequest { id: "a".into(), offset, content: ByteBuf::from(content), eof }
    }

    fn put(input: &Input, offset: u64, content: &[u8], eof: bool) -> (u64, bool, bool) {
        let request = piece(offset, content, eof);
        let end = input.take_now(&request, request.end().unwrap()).unwrap().expect("there is room");
        (end.accepted, end.closed, end.gap)
    }

    fn written(input: &Input) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(Next::Write(piece)) = input.next_now() {
            bytes.extend(piece);
        }
        bytes
    }

    #[test]
    fn pieces_that_come_again_count_once() {
        let input = Input::new(false);
        assert_eq!(put(&input, 0, b"hello", false), (5, false, false));
        assert_eq!(put(&input, 0, b"hello", false), (5, false, false));
        assert_eq!(put(&input, 3, b"lo world", false), (11, false, false));
        assert_eq!(put(&input, 1, b"el", false), (11, false, false));
        assert_eq!(written(&input), b"hello world");
    }

    #[test]
    fn nothing_is_taken_beyond_a_gap() {
        let input = Input::new(false);
        assert_eq!(put(&input, 1, b"b", true), (0, false, true));
        assert_eq!(put(&input, 0, b"a", false), (1, false, false));
        assert_eq!(written(&input), b"a");
    }

    #[test]
    fn the_end_lies_behind_all_and_may_be_said_again() {
        let input = Input::new(false);
        assert_eq!(put(&input, 0, b"abc", false), (3, false, false));
        let early = piece(0, b"ab", true);
        assert!(input.take_now(&early, 2).is_err());
        assert_eq!(put(&input, 2, b"cd", true), (4, true, false));
        assert_eq!(put(&input, 2, b"cd", true), (4, true, false));
        assert_eq!(put(&input, 4, b"", true), (4, true, false));
        assert_eq!(put(&input, 0, b"ab", true), (4, true, false), "closed long ago");
        assert_eq!(put(&input, 4, b"more", false), (4, true, false));
        assert_eq!(put(&input, 9, b"", false), (4, true, true));
        assert_eq!(written(&input), b"abcd");
        assert!(matches!(input.next_now(), Some(Next::End)));
    }

    #[test]
    fn a_full_buffer_takes_a_part_and_the_rest_later() {
        let input = Input::new(false);
        let block = vec![b'x'; 256 << 10];
        for number in 0..4 {
            put(&input, number << 18, &block, false);
        }
        let more = piece(4 << 18, &block, true);
        assert!(input.take_now(&more, more.end().unwrap()).unwrap().is_none());
        // What is under way to the command still counts.
        assert!(matches!(input.next_now(), Some(Next::Write(_))));
        assert!(input.take_now(&more, more.end().unwrap()).unwrap().is_none());
        assert_eq!(input.state().accepted, 1 << 20);
        assert!(matches!(input.next_now(), Some(Next::Write(_))));
        assert!(input.take_now(&more, more.end().unwrap()).unwrap().is_none());
        assert_eq!(input.state().accepted, (1 << 20) + (64 << 10));
        input.close();
        assert_eq!(put(&input, 4 << 18, &block, true), ((1 << 20) + (64 << 10), true, false));
        assert!(matches!(input.next_now(), Some(Next::End)));
    }

    #[test]
    fn an_input_that_was_never_open_takes_nothing() {
        let input = Input::new(true);
        assert_eq!(put(&input, 0, b"a", false), (0, true, false));
        assert_eq!(put(&input, 0, b"", true), (0, true, false));
    }
}
