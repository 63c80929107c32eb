//! A running command from its start to its last byte: both pipes are emptied all the time, wanted bytes go to a
//! sink, the others are only counted, and the time limit is kept.

use crate::guest::{Ended, Execution};
use std::cell::Cell;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, sleep_until};
use wire::Fault;

const CHUNK_SIZE: usize = 64 << 10;
/// How long output may take to follow the end of its command before the host is told of the end alone.
const TRAIL: Duration = Duration::from_millis(50);
/// When nothing more is waited for, how long an open but silent pipe is listened to …
const SILENCE: Duration = Duration::from_millis(100);
/// … and one that keeps talking.
const OVERTIME: Duration = Duration::from_secs(2);

/// Takes the output of one channel.
pub trait Sink {
    /// How many bytes it would take now; waits while a reader is slow. 0 = it wants no more, ever.
    async fn room(&mut self) -> usize;

    /// Takes at most as many bytes as there was room for.
    async fn put(&mut self, bytes: &[u8]);
}

/// What to do about output that stays open after the command's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailing {
    /// Wait for its end, however long something left behind keeps it open; not after a time-out.
    Wait,
    /// Take what comes at once.
    GiveUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    pub ended: Ended,
    pub timed_out: bool,
    pub stdout_len: u64,
    pub stderr_len: u64,
}

/// Drives `execution` to its end. `exited` is called when the command has ended while its output is still open
/// and waited for. Error `GONE` when the guest ended under it.
pub async fn drive(
    execution: Execution,
    timeout: Option<Duration>,
    trailing: Trailing,
    (out, err): (&mut impl Sink, &mut impl Sink),
    exited: impl AsyncFnOnce(Ended),
) -> Result<Finished, Fault> {
    let Execution { stdout, stderr, control, mut ended, .. } = execution;
    let (out_flow, err_flow) = (Flow::default(), Flow::default());
    let mut pumps = std::pin::pin!(async { tokio::join!(pump(stdout, out, &out_flow), pump(stderr, err, &err_flow)) });
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut timer = std::pin::pin!(async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    });
    let (mut timed_out, mut pumped) = (false, false);
    let ended = loop {
        tokio::select! {
            ended = &mut ended => break ended?,
            _ = &mut timer, if !timed_out => {
                timed_out = true;
                control.kill_all();
            }
            _ = &mut pumps, if !pumped => pumped = true,
        }
    };
    if !pumped && trailing == Trailing::Wait && !timed_out {
        let in_time = tokio::time::timeout(TRAIL, &mut pumps).await.is_ok();
        if !in_time {
            exited(ended).await;
            pumps.await;
        }
    } else if !pumped {
        tokio::select! {
            _ = &mut pumps => {}
            _ = fallen_silent([&out_flow, &err_flow]) => {}
        }
    }
    Ok(Finished { ended, timed_out, stdout_len: out_flow.bytes.get(), stderr_len: err_flow.bytes.get() })
}

/// How a channel is getting on.
#[derive(Default)]
struct Flow {
    bytes: Cell<u64>,
    /// Its reader is slow; that is not the channel's silence.
    held_up: Cell<bool>,
}

async fn pump(mut pipe: pipe::Receiver, sink: &mut impl Sink, flow: &Flow) {
    let mut buffer = vec![0; CHUNK_SIZE];
    loop {
        flow.held_up.set(true);
        let room = sink.room().await;
        flow.held_up.set(false);
        let size = if room == 0 { CHUNK_SIZE } else { room.min(CHUNK_SIZE) };
        let count = match pipe.read(&mut buffer[..size]).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        flow.bytes.set(flow.bytes.get() + count as u64);
        if room > 0 {
            flow.held_up.set(true);
            sink.put(&buffer[..count]).await;
        }
    }
}

/// Ready when neither channel has said anything for a while, or one has gone on for too long.
async fn fallen_silent(flows: [&Flow; 2]) {
    let (mut silence, mut overtime) = (Duration::ZERO, Duration::ZERO);
    let bytes = || flows.iter().map(|flow| flow.bytes.get()).sum::<u64>();
    let mut before = bytes();
    let tick = SILENCE / 4;
    while silence < SILENCE && overtime < OVERTIME {
        sleep(tick).await;
        if flows.iter().any(|flow| flow.held_up.get()) {
            continue;
        }
        overtime += tick;
        silence = if bytes() == before { silence + tick } else { Duration::ZERO };
        before = bytes();
    }
}

/// Keeps the head of a channel in memory.
pub struct Head {
    pub bytes: Vec<u8>,
    max: usize,
}

impl Head {
    pub fn new(max: usize) -> Self {
        Self { bytes: Vec::new(), max }
    }
}

impl Sink for Head {
    async fn room(&mut self) -> usize {
        self.max - self.bytes.len()
    }

    async fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}
