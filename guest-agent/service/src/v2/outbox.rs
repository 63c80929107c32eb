//! Frames on their way to the host: two short queues that the streams of a connection share, so that a host that
//! does not read holds its streams up instead of filling memory. Where the host is slow, streams that lose nothing by
//! waiting get what the others leave them, and a small share in any case.

use crate::executions::Excerpt;
use serde::Serialize;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::{mpsc, oneshot};
use wire::frame::{Kind, OUTPUT_PREFIX_SIZE, encode};

const QUEUE_FRAMES: usize = 16;
const WRITE_BUFFER_SIZE: usize = 64 << 10;
/// While there are others, they send so many bytes for each byte of those that are patient.
const OTHERS_PER_PATIENT: usize = 7;

/// Bytes that belong together.
pub enum Frame {
    Bytes(Vec<u8>),
    /// Output, which is written from where it is.
    Output([u8; OUTPUT_PREFIX_SIZE], Excerpt),
}

impl Frame {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Output(prefix, content) => prefix.len() + content.len(),
        }
    }
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

enum Item {
    Frame(Frame),
    Flush(oneshot::Sender<()>),
}

/// The sending end. What is sent after the connection has ended is dropped.
#[derive(Clone)]
pub struct Outbox {
    items: mpsc::Sender<Item>,
    patient: mpsc::Sender<Frame>,
}

/// The end that writes.
pub struct Queue {
    items: mpsc::Receiver<Item>,
    patient: mpsc::Receiver<Frame>,
    /// Bytes that others may send before a patient frame has its turn.
    owed_to_others: usize,
}

pub fn channel() -> (Outbox, Queue) {
    let (items_in, items) = mpsc::channel(QUEUE_FRAMES);
    let (patient_in, patient) = mpsc::channel(QUEUE_FRAMES);
    (Outbox { items: items_in, patient: patient_in }, Queue { items, patient, owed_to_others: 0 })
}

impl Outbox {
    /// Queues a frame as it is.
    pub async fn raw(&self, frame: impl Into<Frame>) {
        let _ = self.items.send(Item::Frame(frame.into())).await;
    }

    /// Queues a frame that may wait for those of others. Their order holds only among themselves.
    pub async fn patient(&self, frame: impl Into<Frame>) {
        let _ = self.patient.send(frame.into()).await;
    }

    /// Queues a frame.
    pub async fn message<T: Serialize>(&self, stream: u32, kind: Kind, message: &T) {
        self.raw(encode(stream, kind, message)).await;
    }

    /// Waits until everything queued so far has been written, or never will be; all but what is patient.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.items.send(Item::Flush(done)).await.is_ok() {
            let _ = written.await;
        }
    }
}

impl Queue {
    /// Writes until every sender is gone or the connection fails.
    pub async fn write_to(mut self, writer: impl AsyncWrite + Unpin) {
        let mut writer = BufWriter::with_capacity(WRITE_BUFFER_SIZE, writer);
        while let Some(item) = self.next().await {
            let written = match item {
                Item::Frame(Frame::Bytes(bytes)) => writer.write_all(&bytes).await,
                Item::Frame(Frame::Output(prefix, content)) => write_output(&mut writer, &prefix, &content).await,
                Item::Flush(done) => {
                    let flushed = writer.flush().await;
                    let _ = done.send(());
                    flushed
                }
            };
            let is_last = self.items.is_empty() && self.patient.is_empty();
            let flushed = if written.is_ok() && is_last { writer.flush().await } else { written };
            if flushed.is_err() {
                return;
            }
        }
    }

    /// What goes next; none when every sender is gone.
    async fn next(&mut self) -> Option<Item> {
        if self.owed_to_others == 0
            && let Ok(frame) = self.patient.try_recv()
        {
            return Some(self.patiently(frame));
        }
        tokio::select! {
            biased;
            Some(item) = self.items.recv() => {
                if let Item::Frame(frame) = &item {
                    self.owed_to_others = self.owed_to_others.saturating_sub(frame.len());
                }
                Some(item)
            }
            Some(frame) = self.patient.recv() => Some(self.patiently(frame)),
            else => None,
        }
    }

    fn patiently(&mut self, frame: Frame) -> Item {
        self.owed_to_others = OTHERS_PER_PATIENT * frame.len();
        Item::Frame(frame)
    }
}

async fn write_output(
    writer: &mut (impl AsyncWrite + Unpin),
    prefix: &[u8; OUTPUT_PREFIX_SIZE],
    content: &Excerpt,
) -> io::Result<()> {
    let mut written = 0;
    while written < prefix.len() + content.len() {
        // The content is looked at only while it is being written: until the next time, more may be added behind it.
        let count = poll_fn(|context| {
            content.with(|content| {
                let slices = [
                    IoSlice::new(&prefix[written.min(prefix.len())..]),
                    IoSlice::new(&content[written.saturating_sub(prefix.len())..]),
                ];
                Pin::new(&mut *writer).poll_write_vectored(context, &slices)
            })
        });
        match count.await? {
            0 => return Err(ErrorKind::WriteZero.into()),
            count => written += count,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of what is taken while frames of one byte are waiting, and such `patient` ones.
    fn order(patient: &[u8], count: usize) -> String {
        let (outbox, mut queue) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut taken = String::new();
            for _ in 0..count {
                while outbox.items.try_send(Item::Frame(Frame::Bytes(b"o".into()))).is_ok() {}
                while outbox.patient.try_send(Frame::Bytes(patient.into())).is_ok() {}
                if let Some(Item::Frame(Frame::Bytes(bytes))) = queue.next().await {
                    taken.push(bytes[0] as char);
                }
            }
            taken
        })
    }

    #[test]
    fn patient_frames_wait_and_get_on() {
        assert_eq!(order(b"p", 17), "pooooooopooooooop");
        assert_eq!(order(b"pp", 17), "poooooooooooooopo");
    }

    #[test]
    fn without_others_patient_frames_go_at_once() {
        let (outbox, mut queue) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            outbox.patient(b"p".to_vec()).await;
            outbox.patient(b"q".to_vec()).await;
            drop(outbox);
            let mut taken = Vec::new();
            while let Some(Item::Frame(Frame::Bytes(bytes))) = queue.next().await {
                taken.extend(bytes);
            }
            assert_eq!(taken, b"pq");
        });
    }
}
