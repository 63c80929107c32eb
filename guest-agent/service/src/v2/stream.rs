//! One stream: what has arrived for its operation, how much may be sent and taken, and whether anyone listens.

use super::outbox::{Frame, Outbox};
use crate::executions::Excerpt;
use crate::guest::Control;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;
use wire::credit::Credit;
use wire::frame::{DATA_PREFIX_SIZE, Kind, data_prefix, encode, output_prefix};
use wire::limits::DATA_MAX;
use wire::message::{CHANNEL_IN, CreditGrant, Data};
use wire::{ErrorCode, Fault};

pub struct Stream {
    id: u32,
    outbox: Outbox,
    is_patient: Cell<bool>,
    state: RefCell<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// What may be sent.
    sending: Credit,
    /// What the host may send.
    receiving: Credit,
    arrived: Vec<u8>,
    /// Bytes taken by the operation and not yet granted again.
    ungranted: u64,
    complete: bool,
    cancelled: bool,
    detached: bool,
    control: Option<Rc<dyn Control>>,
}

/// What an operation gets from the host.
pub enum Arrival {
    Bytes(Vec<u8>),
    /// The host has sent everything.
    Complete,
    /// The host will send no more, and did not finish.
    Abandoned,
}

impl Stream {
    pub fn new(id: u32, outbox: Outbox) -> Self {
        Self { id, outbox, is_patient: Cell::new(false), state: RefCell::default(), changed: Notify::new() }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// Takes a DATA frame in. Error `PROTOCOL` when it is beyond what was granted or comes after the last.
    pub fn take_data(&self, data: &Data<'_>) -> Result<(), Fault> {
        let mut state = self.state.borrow_mut();
        if state.complete {
            return Err(Fault::protocol(format!("data after the last on stream {}", self.id)));
        }
        if data.channel != CHANNEL_IN {
            return Err(Fault::protocol(format!("data for channel {}", data.channel)));
        }
        state.receiving.take(data.content.len() as u64)?;
        if !state.cancelled {
            state.arrived.extend_from_slice(data.content);
        }
        state.complete = data.eof;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Takes a CREDIT frame in. Error `PROTOCOL`.
    pub fn take_credit(&self, bytes: u64) -> Result<(), Fault> {
        self.state.borrow_mut().sending.grant(bytes)?;
        self.changed.notify_waiters();
        Ok(())
    }

    /// The host has lost interest in what this stream carries.
    pub fn cancel(&self) {
        let mut state = self.state.borrow_mut();
        state.cancelled = true;
        state.arrived = Vec::new();
        self.changed.notify_waiters();
    }

    /// The connection is over.
    pub fn detach(&self) {
        self.state.borrow_mut().detached = true;
        self.cancel();
    }

    /// How many bytes may be sent now, waiting for the first; 0 when nobody listens any more.
    pub async fn room(&self) -> usize {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.borrow();
                match state.sending.available() {
                    _ if state.cancelled => return 0,
                    0 => {}
                    available => return available.min(DATA_MAX as u64) as usize,
                }
            }
            changed.await;
        }
    }

    /// How many bytes may be sent at once; none when nobody listens any more.
    pub fn room_now(&self) -> Option<usize> {
        let state = self.state.borrow();
        (!state.cancelled).then(|| state.sending.available().min(DATA_MAX as u64) as usize)
    }

    /// Ready when there may be more room, or nobody listens, since this was called.
    pub fn changed(&self) -> impl Future<Output = ()> {
        self.changed.notified()
    }

    /// Sends output with the absolute `offset` of its bytes, for which there is room.
    pub async fn output(&self, channel: u8, offset: u64, content: Excerpt) {
        self.state.borrow_mut().sending.take(content.len() as u64).expect("there is room");
        self.frame(Frame::Output(output_prefix(self.id, channel, offset, content.len()), content)).await;
    }

    /// From now on what it sends may wait for others. To be called before anything is sent, because what went before
    /// could be overtaken.
    pub fn be_patient(&self) {
        self.is_patient.set(true);
    }

    async fn frame(&self, frame: impl Into<Frame>) {
        if self.is_patient.get() {
            self.outbox.patient(frame).await;
        } else {
            self.outbox.raw(frame).await;
        }
    }

    /// Sends at most as many bytes as there was room for.
    pub async fn send_data(&self, channel: u8, bytes: &[u8]) {
        // Two channels share the credit: while one waited to send, the other may have used it.
        let mut rest = bytes;
        while !rest.is_empty() {
            let size = self.room().await.min(rest.len());
            if size == 0 {
                return;
            }
            let (now, later) = rest.split_at(size);
            self.state.borrow_mut().sending.take(size as u64).expect("there was room");
            let mut frame = Vec::with_capacity(DATA_PREFIX_SIZE + size);
            frame.extend_from_slice(&data_prefix(self.id, channel, size));
            frame.extend_from_slice(now);
            self.frame(frame).await;
            rest = later;
        }
    }

    /// The next bytes from the host, all that are there. Those taken before are granted again.
    pub async fn receive(&self) -> Arrival {
        loop {
            let changed = self.changed.notified();
            let granted = {
                let mut state = self.state.borrow_mut();
                if state.cancelled {
                    return Arrival::Abandoned;
                }
                let granted = std::mem::take(&mut state.ungranted);
                if granted > 0 && !state.complete {
                    state.receiving.grant(granted).expect("no more than was taken is granted");
                }
                if !state.complete { granted } else { 0 }
            };
            if granted > 0 {
                self.message(Kind::Credit, &CreditGrant { n: granted }).await;
            }
            {
                let mut state = self.state.borrow_mut();
                if !state.arrived.is_empty() {
                    let bytes = std::mem::take(&mut state.arrived);
                    state.ungranted = bytes.len() as u64;
                    return Arrival::Bytes(bytes);
                }
                if state.complete {
                    return Arrival::Complete;
                }
            }
            changed.await;
        }
    }

    /// Ready when the host has lost interest or the connection is over.
    pub async fn abandoned(&self) {
        loop {
            let changed = self.changed.notified();
            if self.state.borrow().cancelled {
                return;
            }
            changed.await;
        }
    }

    pub async fn message<T: Serialize>(&self, kind: Kind, message: &T) {
        if !self.state.borrow().detached {
            self.frame(encode(self.id, kind, message)).await;
        }
    }

    /// Waits until everything sent so far is on its way.
    pub async fn flush(&self) {
        self.outbox.flush().await;
    }

    /// Makes the stream's command reachable for `signal`.
    pub fn set_control(&self, control: Option<Rc<dyn Control>>) {
        self.state.borrow_mut().control = control;
    }

    /// Error `NOT_FOUND` when the stream has no running command.
    pub fn control(&self) -> Result<Rc<dyn Control>, Fault> {
        let control = self.state.borrow().control.clone();
        control.ok_or_else(|| Fault::new(ErrorCode::NotFound, format!("stream {} runs no command", self.id)))
    }
}
