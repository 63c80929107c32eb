//! The executions of a guest by their ids. They belong to the guest: connections come and go.

mod channel;
mod input;
mod piece;
mod retained;
mod ring;

pub use piece::Excerpt;
pub use retained::{CHANNELS, Retained};

use crate::guest::Guest;
use crate::server::Server;
use retained::{Pool, Started, Streams};
use ring::Budget;
use sha2::{Digest, Sha256};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use wire::execution::{ExecutionStartRequest, ExecutionState};
use wire::limits::EXECUTIONS_KNOWN_MAX;
use wire::{ErrorCode, Fault};

const TERM_DEFAULT: &str = "xterm-256color";

/// All executions; copies are one table.
#[derive(Clone)]
pub struct Executions(Rc<Table>);

struct Table {
    known: RefCell<HashMap<String, Known>>,
    pool: Rc<Pool>,
    /// Counts starts and ends.
    clock: Cell<u64>,
}

struct Known {
    /// Of what it runs.
    digest: [u8; 32],
    what: What,
}

enum What {
    /// Tells those who wait for the outcome.
    Starting(Rc<Notify>),
    Started(Rc<Retained>),
}

impl Executions {
    /// None yet; they may keep `kept_max` bytes of output together.
    pub fn new(kept_max: u64) -> Self {
        let table = Rc::new_cyclic(|table: &Weak<Table>| {
            let table = table.clone();
            let make_room = move |bytes| {
                if let Some(table) = table.upgrade() {
                    Self(table).make_room(bytes);
                }
            };
            let pool = Rc::new(Pool::new(Budget::new(kept_max), Box::new(make_room)));
            Table { known: RefCell::default(), pool, clock: Cell::new(0) }
        });
        Self(table)
    }

    /// Starts an execution, or gives the one of this id that runs the same; true = it was known. Errors: `EXISTS`,
    /// `LIMIT`, and those of `Guest::exec` and `Guest::exec_on_terminal`.
    pub async fn start<G: Guest>(
        &self,
        server: &Rc<Server<G>>,
        request: ExecutionStartRequest,
    ) -> Result<(Rc<Retained>, bool), Fault> {
        request.check()?;
        let digest = digest(&request);
        loop {
            let outcome = match self.0.known.borrow().get(&request.id) {
                None => break,
                Some(known) if known.digest != digest => {
                    return Err(Fault::new(ErrorCode::Exists, "the id belongs to another command"));
                }
                Some(Known { what: What::Started(retained), .. }) => return Ok((retained.clone(), true)),
                Some(Known { what: What::Starting(outcome), .. }) => outcome.clone(),
            };
            outcome.notified().await;
        }
        let retained = self.start_new(server, request, digest).await?;
        Ok((retained, false))
    }

    async fn start_new<G: Guest>(
        &self,
        server: &Rc<Server<G>>,
        mut request: ExecutionStartRequest,
        digest: [u8; 32],
    ) -> Result<Rc<Retained>, Fault> {
        if request.tty.is_some() {
            request.env.entry("TERM".into()).or_insert_with(|| TERM_DEFAULT.into());
        }
        let exec = request.exec_request();
        exec.program()?;
        let slot = server.execution_slot()?;
        self.forget_beyond(EXECUTIONS_KNOWN_MAX - 1);
        let starting = Starting::enter(self, &request.id, digest);
        let started_at = SystemTime::now();
        let timeout = (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms));
        let (pid, control, streams, ended) = match request.tty {
            None => {
                let running = server.guest.exec(exec).await?;
                let streams = Streams::Pipes { stdin: running.stdin, stdout: running.stdout, stderr: running.stderr };
                (running.pid, running.control, streams, running.ended)
            }
            Some(size) => {
                let running = server.guest.exec_on_terminal(exec, size).await?;
                (running.pid, running.control, Streams::Terminal(running.master), running.ended)
            }
        };
        let started = Started { number: self.tick(), request, pid, control, streams, started_at };
        let retained = Retained::new(started, self.0.pool.clone())?;
        starting.succeed(retained.clone());
        let (watched, table) = (retained.clone(), self.clone());
        spawn_local(async move {
            watched.watch(ended, timeout, || table.tick()).await;
            drop(slot);
        });
        Ok(retained)
    }

    /// Error `NOT_FOUND`.
    pub fn get(&self, id: &str) -> Result<Rc<Retained>, Fault> {
        match self.0.known.borrow().get(id) {
            Some(Known { what: What::Started(retained), .. }) => Ok(retained.clone()),
            _ => Err(Fault::new(ErrorCode::NotFound, "no execution has this id")),
        }
    }

    /// All that have started, in that order.
    pub fn list(&self) -> Vec<ExecutionState> {
        let mut all = self.all();
        all.sort_by_key(|retained| retained.number);
        all.iter().map(|retained| retained.state()).collect()
    }

    /// Drops one that has ended. Errors `NOT_FOUND`, `BUSY`.
    pub fn forget(&self, id: &str) -> Result<(), Fault> {
        let retained = self.get(id)?;
        if retained.end().is_none() {
            return Err(Fault::new(ErrorCode::Busy, "the execution runs"));
        }
        self.remove(&retained);
        Ok(())
    }

    /// Tells what runs on a terminal that it is about to lose it.
    pub fn hang_up(&self) {
        const SIGHUP: i32 = 1;
        for retained in self.all().iter().filter(|retained| retained.has_terminal()) {
            // One that has ended needs it no more.
            let _ = retained.signal(SIGHUP);
        }
    }

    fn all(&self) -> Vec<Rc<Retained>> {
        let known = self.0.known.borrow();
        let started = known.values().filter_map(|known| match &known.what {
            What::Started(retained) => Some(retained.clone()),
            What::Starting(_) => None,
        });
        started.collect()
    }

    fn tick(&self) -> u64 {
        self.0.clock.set(self.0.clock.get() + 1);
        self.0.clock.get()
    }

    fn remove(&self, retained: &Retained) {
        retained.abandon();
        self.0.known.borrow_mut().remove(retained.id());
    }

    /// Forgets those that ended first, and of those whose output is over before the others, until `max` are known.
    fn forget_beyond(&self, max: usize) {
        while self.0.known.borrow().len() > max {
            let ended = self.all().into_iter().filter_map(|retained| {
                let end = retained.end()?;
                Some(((retained.is_output_open(), end.number), retained))
            });
            let Some((_, oldest)) = ended.min_by_key(|(order, _)| *order) else { return };
            self.remove(&oldest);
        }
    }

    /// Makes room for `bytes` more: what executions keep that ended long ago goes first, the oldest before the others,
    /// then the oldest bytes of whoever keeps the most. None that is held up loses anything, so there may be no room.
    fn make_room(&self, bytes: u64) {
        let budget = &self.0.pool.budget;
        let all = self.all();
        let ended = all.iter().filter_map(|retained| Some((retained.end()?, retained)));
        let mut ended: Vec<_> = ended.filter(|(end, _)| end.is_long_ago()).collect();
        ended.sort_by_key(|(end, _)| end.number);
        for (_, retained) in ended {
            if budget.excess(bytes) == 0 {
                return;
            }
            retained.acknowledge([u64::MAX; 2]);
        }
        while budget.excess(bytes) > 0 {
            let most = all.iter().map(|retained| (retained.most_kept(), retained)).max_by_key(|(kept, _)| *kept);
            match most {
                Some((1.., fullest)) => fullest.lose(budget.excess(bytes)),
                _ => return,
            }
        }
    }
}

/// A place in the table for an execution whose start is under way, given back unless that succeeds.
struct Starting<'a> {
    executions: &'a Executions,
    id: String,
    digest: [u8; 32],
    outcome: Rc<Notify>,
    succeeded: bool,
}

impl<'a> Starting<'a> {
    fn enter(executions: &'a Executions, id: &str, digest: [u8; 32]) -> Self {
        let outcome = Rc::new(Notify::new());
        let known = Known { digest, what: What::Starting(outcome.clone()) };
        executions.0.known.borrow_mut().insert(id.into(), known);
        Self { executions, id: id.into(), digest, outcome, succeeded: false }
    }

    fn succeed(mut self, retained: Rc<Retained>) {
        let known = Known { digest: self.digest, what: What::Started(retained) };
        self.executions.0.known.borrow_mut().insert(self.id.clone(), known);
        self.succeeded = true;
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if !self.succeeded {
            self.executions.0.known.borrow_mut().remove(&self.id);
        }
        self.outcome.notify_waiters();
    }
}

/// Of what an execution runs: two that run the same have the same.
fn digest(request: &ExecutionStartRequest) -> [u8; 32] {
    let mut hash = Sha256::new();
    let words = request.command.as_slice().iter().chain(request.argv.iter().flatten());
    hash.update([u8::from(request.command.is_some()), u8::from(request.argv.is_some())]);
    for word in words {
        hash.update((word.len() as u64).to_be_bytes());
        hash.update(word);
    }
    hash.finalize().into()
}
