//! Frames on their way to the host: two short queues that the streams of a connection share, so that a host that
//! does not read holds its streams up instead of filling memory. Where the host is slow, streams that lose nothing by
//! waiting get what the others leave them, and a small share in any case.

use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::{mpsc, oneshot};
use wire::frame::{Kind, encode};

const QUEUE_FRAMES: usize = 16;
const WRITE_BUFFER_SIZE: usize = 64 << 10;
/// While there are others, a patient stream's frame goes behind so many of them.
const OTHERS_PER_PATIENT: u32 = 7;

enum Item {
    Bytes(Vec<u8>),
    Flush(oneshot::Sender<()>),
}

/// The sending end. What is sent after the connection has ended is dropped.
#[derive(Clone)]
pub struct Outbox {
    items: mpsc::Sender<Item>,
    patient: mpsc::Sender<Vec<u8>>,
}

/// The end that writes.
pub struct Queue {
    items: mpsc::Receiver<Item>,
    patient: mpsc::Receiver<Vec<u8>>,
    /// Items that were taken since the last patient one.
    others: u32,
}

pub fn channel() -> (Outbox, Queue) {
    let (items_in, items) = mpsc::channel(QUEUE_FRAMES);
    let (patient_in, patient) = mpsc::channel(QUEUE_FRAMES);
    (Outbox { items: items_in, patient: patient_in }, Queue { items, patient, others: 0 })
}

impl Outbox {
    /// Queues bytes as they are.
    pub async fn raw(&self, bytes: Vec<u8>) {
        let _ = self.items.send(Item::Bytes(bytes)).await;
    }

    /// Queues bytes that may wait for those of others. Their order holds only among themselves.
    pub async fn patient(&self, bytes: Vec<u8>) {
        let _ = self.patient.send(bytes).await;
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
                Item::Bytes(bytes) => writer.write_all(&bytes).await,
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
        if self.others >= OTHERS_PER_PATIENT
            && let Ok(bytes) = self.patient.try_recv()
        {
            self.others = 0;
            return Some(Item::Bytes(bytes));
        }
        tokio::select! {
            biased;
            Some(item) = self.items.recv() => {
                self.others = self.others.saturating_add(1);
                Some(item)
            }
            Some(bytes) = self.patient.recv() => {
                self.others = 0;
                Some(Item::Bytes(bytes))
            }
            else => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of what is taken while both kinds are waiting.
    fn order(outbox: &Outbox, queue: &mut Queue, count: usize) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut taken = String::new();
            for _ in 0..count {
                while outbox.items.try_send(Item::Bytes(b"o".into())).is_ok() {}
                while outbox.patient.try_send(b"p".into()).is_ok() {}
                if let Some(Item::Bytes(bytes)) = queue.next().await {
                    taken.push(bytes[0] as char);
                }
            }
            taken
        })
    }

    #[test]
    fn patient_frames_wait_and_get_on() {
        let (outbox, mut queue) = channel();
        assert_eq!(order(&outbox, &mut queue, 17), "ooooooopooooooopo");
    }

    #[test]
    fn without_others_patient_frames_go_at_once() {
        let (outbox, mut queue) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            outbox.patient(b"p".into()).await;
            outbox.patient(b"q".into()).await;
            drop(outbox);
            let mut taken = Vec::new();
            while let Some(Item::Bytes(bytes)) = queue.next().await {
                taken.extend(bytes);
            }
            assert_eq!(taken, b"pq");
        });
    }
}
