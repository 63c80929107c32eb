//! Frames on their way to the host: a short queue that every stream of a connection shares, so that a host that
//! does not read holds its streams up instead of filling memory.

use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::{mpsc, oneshot};
use wire::frame::{Kind, encode};

const QUEUE_FRAMES: usize = 16;
const WRITE_BUFFER_SIZE: usize = 64 << 10;

enum Item {
    Bytes(Vec<u8>),
    Flush(oneshot::Sender<()>),
}

/// The sending end. What is sent after the connection has ended is dropped.
#[derive(Clone)]
pub struct Outbox {
    items: mpsc::Sender<Item>,
}

/// The end that writes.
pub struct Queue {
    items: mpsc::Receiver<Item>,
}

pub fn channel() -> (Outbox, Queue) {
    let (sender, receiver) = mpsc::channel(QUEUE_FRAMES);
    (Outbox { items: sender }, Queue { items: receiver })
}

impl Outbox {
    /// Queues bytes as they are.
    pub async fn raw(&self, bytes: Vec<u8>) {
        let _ = self.items.send(Item::Bytes(bytes)).await;
    }

    /// Queues a frame.
    pub async fn message<T: Serialize>(&self, stream: u32, kind: Kind, message: &T) {
        self.raw(encode(stream, kind, message)).await;
    }

    /// Waits until everything queued so far has been written, or never will be.
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
        while let Some(item) = self.items.recv().await {
            let written = match item {
                Item::Bytes(bytes) => writer.write_all(&bytes).await,
                Item::Flush(done) => {
                    let flushed = writer.flush().await;
                    let _ = done.send(());
                    flushed
                }
            };
            let flushed = if written.is_ok() && self.items.is_empty() { writer.flush().await } else { written };
            if flushed.is_err() {
                return;
            }
        }
    }
}
