//! The native threads that run jobs: started when there is work for them, at most `THREADS_MAX`, all signals blocked.

use crate::channel::Channel;
use crate::jobs;
use crate::layout::{Completion, Job, RESULTS_MAX};
use fluxvm_sys::threads::with_signals_blocked;
use rustix::io::{Errno, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Jobs mostly wait in the kernel, so there are more threads than cores of a small host.
const THREADS_MAX: usize = 8;
/// Bound on jobs that wait for a thread.
const QUEUE_MAX: usize = 16 * 1024;
/// Jobs recurse nowhere; this leaves room for the path and copy buffers.
const STACK_BYTES: usize = 512 * 1024;

struct Task {
    channel: Arc<Channel>,
    sequence: u64,
    kind: u32,
    job: Job,
}

struct Queue {
    tasks: VecDeque<Task>,
    threads: usize,
    idle: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { tasks: VecDeque::new(), threads: 0, idle: 0 });
static WORK: Condvar = Condvar::new();

/// Queues a job; its completion goes to `channel`. `AGAIN`: too many wait.
pub fn submit(channel: Arc<Channel>, sequence: u64, kind: u32, job: Job) -> Result<()> {
    let mut queue = QUEUE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if queue.tasks.len() >= QUEUE_MAX {
        return Err(Errno::AGAIN);
    }
    if queue.idle <= queue.tasks.len() && queue.threads < THREADS_MAX {
        start_thread(&mut queue)?;
    }
    queue.tasks.push_back(Task { channel, sequence, kind, job });
    WORK.notify_one();
    Ok(())
}

/// A start that fails is an error only when no thread is left to do the work.
fn start_thread(queue: &mut Queue) -> Result<()> {
    let builder = thread::Builder::new().name("fluxvm-host".into()).stack_size(STACK_BYTES);
    match with_signals_blocked(|| builder.spawn(run)) {
        Ok(_) => queue.threads += 1,
        Err(_) if queue.threads > 0 => {}
        Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)),
    }
    Ok(())
}

fn run() {
    loop {
        let task = next();
        let outcome = catch_unwind(AssertUnwindSafe(|| jobs::run(task.job)));
        let (status, values) = match outcome {
            Ok(Ok(values)) => (0, values),
            Ok(Err(error)) => (-error.raw_os_error(), [0; RESULTS_MAX]),
            Err(_) => (-Errno::NOTRECOVERABLE.raw_os_error(), [0; RESULTS_MAX]),
        };
        task.channel.complete(&Completion { sequence: task.sequence, status, kind: task.kind, values });
    }
}

fn next() -> Task {
    let mut queue = QUEUE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    loop {
        if let Some(task) = queue.tasks.pop_front() {
            return task;
        }
        queue.idle += 1;
        queue = WORK.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
        queue.idle -= 1;
    }
}
