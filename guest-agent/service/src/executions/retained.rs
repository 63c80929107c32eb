//! One execution that the guest knows: its process, what it wrote, what is to be written to it, how it ended. Its
//! tasks empty and fill its pipes whether or not a host is there.

use super::channel::{Channel, unread};
use super::input::{Input, Next};
use super::piece::{Excerpt, PIECE_SIZE_MAX};
use super::ring::{Budget, Ring};
use crate::guest::{Control, Ended, ExitStatus, LocalFuture};
use rustix::pipe::fcntl_setpipe_size;
use rustix::termios::{Winsize, tcsetwinsize};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::Instant;
use wire::execution::*;
use wire::limits::LISTED_COMMAND_MAX;
use wire::message::ExecStatus;
use wire::{ErrorCode, Fault};

/// What a pipe holds, unless it is told otherwise …
const PIPE_SIZE: usize = 64 << 10;
/// … and what one is told that was found full: its writer waits less often.
const WIDE_PIPE_SIZE: usize = 256 << 10;

/// How long a host may be away before what ended meanwhile is given up before anything else.
const HOST_AWAY_MAX: Duration = Duration::from_secs(60);

/// The channels by their place in arrays.
pub const CHANNELS: [usize; 2] = [0, 1];

pub struct Retained {
    /// Higher for a later start.
    pub number: u64,
    id: String,
    /// What it runs, where that is short enough to be repeated.
    listed: (Option<String>, Option<Vec<String>>),
    pid: u32,
    started_at_ms: u64,
    /// To set its size; none without a terminal, or when it has ended.
    terminal: RefCell<Option<OwnedFd>>,
    tty: bool,
    block: Cell<bool>,
    channels: [RefCell<Channel>; 2],
    pub input: Input,
    control: Box<dyn Control>,
    end: Cell<Option<End>>,
    /// The number of the newest attach.
    attached: Cell<u64>,
    changed: Notify,
    pool: Rc<Pool>,
    /// Those that read its output.
    pumps: RefCell<Vec<AbortHandle>>,
    /// The one that writes its input.
    feeder: RefCell<Option<AbortHandle>>,
}

/// What the executions of a guest share.
pub struct Pool {
    pub budget: Rc<Budget>,
    /// Frees what can be of so many bytes by which the budget would be exceeded.
    pub make_room: Box<dyn Fn(u64)>,
}

impl Pool {
    pub fn new(budget: Budget, make_room: Box<dyn Fn(u64)>) -> Self {
        Self { budget: Rc::new(budget), make_room }
    }
}

/// How and when an execution ended.
#[derive(Clone, Copy)]
pub struct End {
    /// Higher for a later end.
    pub number: u64,
    at_ms: u64,
    /// The same by the clock that nobody sets.
    at: Instant,
    /// None when the guest ended under it.
    ended: Option<Ended>,
    timed_out: bool,
    /// The offset behind what the command itself wrote to each channel.
    pub wrote: [u64; 2],
}

impl End {
    /// Whether a host that is only away for a moment has had the time to come back for what is kept.
    pub fn is_long_ago(&self) -> bool {
        self.at.elapsed() > HOST_AWAY_MAX
    }
}

/// A command that has just been started, on pipes or on a terminal.
pub struct Started {
    pub number: u64,
    pub request: ExecutionStartRequest,
    pub pid: u32,
    pub control: Box<dyn Control>,
    pub streams: Streams,
    pub started_at: SystemTime,
}

pub enum Streams {
    Pipes {
        stdin: Option<pipe::Sender>,
        stdout: pipe::Receiver,
        stderr: pipe::Receiver,
    },
    /// The master side, non-blocking.
    Terminal(OwnedFd),
}

impl Retained {
    /// Takes a command over, with tasks that move its bytes. Error `INTERNAL`; it has been killed then.
    pub fn new(started: Started, pool: Rc<Pool>) -> Result<Rc<Self>, Fault> {
        let Started { number, request, pid, control, streams, started_at } = started;
        let unusable = |error: io::Error| Fault::new(ErrorCode::Internal, format!("no streams: {error}"));
        let (input, outputs, terminal) = match streams {
            Streams::Pipes { stdin, stdout, stderr } => (stdin, vec![stdout, stderr], None),
            Streams::Terminal(master) => {
                let ends = terminal_ends(&master).inspect_err(|_| control.kill_all());
                let (screen, keys) = ends.map_err(unusable)?;
                (Some(keys), vec![screen], Some(master))
            }
        };
        let outputs: Vec<_> = outputs.into_iter().map(Rc::new).collect();
        let channel = |index: usize| {
            let ring = Ring::new(request.ring_max, pool.budget.clone());
            RefCell::new(Channel { ring, pipe: outputs.get(index).cloned() })
        };
        let retained = Rc::new(Self {
            number,
            listed: listed(&request),
            id: request.id,
            pid,
            started_at_ms: unix_ms(started_at),
            tty: terminal.is_some(),
            terminal: RefCell::new(terminal),
            block: Cell::new(request.block),
            channels: CHANNELS.map(channel),
            input: Input::new(input.is_none()),
            control,
            end: Cell::new(None),
            attached: Cell::new(0),
            changed: Notify::new(),
            pool,
            pumps: RefCell::default(),
            feeder: RefCell::default(),
        });
        for (index, pipe) in outputs.into_iter().enumerate() {
            let pumping = spawn_local(retained.clone().pump(index, pipe));
            retained.pumps.borrow_mut().push(pumping.abort_handle());
        }
        let feeder = input.map(|pipe| spawn_local(retained.clone().feed(pipe)).abort_handle());
        *retained.feeder.borrow_mut() = feeder;
        Ok(retained)
    }

    /// Reads a channel to its end.
    async fn pump(self: Rc<Self>, index: usize, pipe: Rc<pipe::Receiver>) {
        let mut is_wide = false;
        while pipe.readable().await.is_ok() {
            let (changed, relieved) = (self.changed(), self.pool.budget.relieved());
            let room = self.room(index);
            if room == 0 {
                tokio::select! {
                    () = changed => {}
                    () = relieved => {}
                }
                continue;
            }
            let Some(count) = self.read_from(index, &pipe, room) else { break };
            if count >= PIPE_SIZE && !is_wide {
                is_wide = true;
                // A terminal has no such size, and a user may have too many wide ones: it works as it is.
                let _ = fcntl_setpipe_size(&*pipe, WIDE_PIPE_SIZE);
            }
            tokio::task::coop::consume_budget().await;
        }
        self.channels[index].borrow_mut().pipe = None;
        self.changed.notify_waiters();
    }

    /// Keeps what there is, at most `room` bytes: how many; none at the end.
    fn read_from(&self, index: usize, pipe: &pipe::Receiver, room: usize) -> Option<usize> {
        let mut wanted = self.channels[index].borrow().wanted(room);
        if self.pool.budget.excess(wanted as u64) > 0 {
            wanted = wanted.min(unread(pipe));
            (self.pool.make_room)(wanted as u64);
        }
        // The end has to be read too, though nothing is waiting there.
        match self.channels[index].borrow_mut().ring.fill(wanted.max(1), |space| pipe.try_read(space)) {
            Ok(0) => None,
            Ok(count) => {
                self.changed.notify_waiters();
                Some(count)
            }
            // A terminal ends with an error.
            Err(error) => (error.kind() == io::ErrorKind::WouldBlock).then_some(0),
        }
    }

    /// How many bytes may be read; a channel that keeps nothing may always have some, so that all get on.
    fn room(&self, index: usize) -> usize {
        if !self.block.get() {
            return PIECE_SIZE_MAX;
        }
        let channel = self.channels[index].borrow();
        let at_once = match (self.pool.budget.is_strained(), channel.ring.len()) {
            (true, 0) => PIPE_SIZE,
            (true, _) => 0,
            (false, _) => PIECE_SIZE_MAX,
        };
        channel.ring.room().min(at_once as u64) as usize
    }

    /// Writes the input until its end, or until the command reads no more.
    async fn feed(self: Rc<Self>, mut pipe: pipe::Sender) {
        while let Next::Write(piece) = self.input.next().await {
            if pipe.write_all(&piece).await.is_err() {
                break;
            }
        }
        self.input.close();
    }

    /// Sees the process to its end, and kills everything when it takes longer than `timeout`.
    pub async fn watch(
        &self,
        mut ended: LocalFuture<Result<Ended, Fault>>,
        timeout: Option<Duration>,
        next_end: impl FnOnce() -> u64,
    ) {
        let in_time = match timeout {
            Some(timeout) => tokio::time::timeout(timeout, &mut ended).await.ok(),
            None => Some((&mut ended).await),
        };
        let timed_out = in_time.is_none();
        let ended = match in_time {
            Some(ended) => ended,
            None => {
                self.control.kill_all();
                ended.await
            }
        };
        let at_ms = unix_ms(SystemTime::now());
        let wrote = CHANNELS.map(|index| self.channels[index].borrow().written());
        let end = End { number: next_end(), at_ms, at: Instant::now(), ended: ended.ok(), timed_out, wrote };
        self.end.set(Some(end));
        self.input.close();
        let _ = self.feeder.take().map(|feeder| feeder.abort());
        drop(self.terminal.take());
        self.changed.notify_waiters();
    }

    pub fn state(&self) -> ExecutionState {
        let end = self.end.get();
        let kept = |index: usize| self.channels[index].borrow().ring.kept();
        let (command, argv) = self.listed.clone();
        ExecutionState {
            id: self.id.clone(),
            command,
            argv,
            pid: self.pid,
            tty: self.tty,
            started_at_ms: self.started_at_ms,
            exited_at_ms: end.map(|end| end.at_ms),
            status: end.map(status).unwrap_or_default(),
            output_open: end.is_some() && self.is_output_open(),
            block: self.block.get(),
            stdout: kept(0),
            stderr: kept(1),
            stdin: self.input.state(),
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn end(&self) -> Option<End> {
        self.end.get()
    }

    /// Error `GONE` when the guest ended under it.
    pub fn check_guest(&self) -> Result<(), Fault> {
        match self.end.get() {
            Some(End { ended: None, .. }) => Err(Fault::new(ErrorCode::Gone, "the sandbox has ended")),
            _ => Ok(()),
        }
    }

    pub fn is_output_open(&self) -> bool {
        self.channels.iter().any(|channel| channel.borrow().pipe.is_some())
    }

    /// Ready when something about it has changed since this was called.
    pub fn changed(&self) -> impl Future<Output = ()> {
        self.changed.notified()
    }

    /// Becomes the newest attach: its number.
    pub fn attach(&self) -> u64 {
        self.attached.set(self.attached.get() + 1);
        self.changed.notify_waiters();
        self.attached.get()
    }

    /// Error `SUPERSEDED` when attach `number` is not the newest.
    pub fn check_attached(&self, number: u64) -> Result<(), Fault> {
        if self.attached.get() == number {
            return Ok(());
        }
        Err(Fault::new(ErrorCode::Superseded, "another attach took this one's place"))
    }

    /// The bytes that are next for a reader at `offset`, at most `max`, and their own offset, if there are such.
    pub fn read(&self, index: usize, offset: u64, max: usize) -> Option<(u64, Excerpt)> {
        let channel = self.channels[index].borrow();
        let offset = offset.max(channel.ring.kept().base);
        Some((offset, channel.ring.excerpt(offset, max)?))
    }

    /// Whether a reader at `offsets` has had everything that will ever be.
    pub fn is_finished(&self, offsets: [u64; 2]) -> bool {
        let read = |index: usize| {
            let channel = self.channels[index].borrow();
            let kept = channel.ring.kept();
            channel.pipe.is_none() && offsets[index].max(kept.base) >= kept.end
        };
        self.end.get().is_some() && CHANNELS.into_iter().all(read)
    }

    /// Lets what is below `offsets` go.
    pub fn acknowledge(&self, offsets: [u64; 2]) {
        for (channel, offset) in self.channels.iter().zip(offsets) {
            channel.borrow_mut().ring.drop_below(offset);
        }
        self.changed.notify_waiters();
    }

    /// Bytes of the channel that keeps more than the other, of one that can lose them: it is not held up instead.
    pub fn most_kept(&self) -> u64 {
        let is_held_up = self.block.get() && self.end.get().is_none();
        let kept = CHANNELS.map(|index| self.channels[index].borrow().ring.len());
        if is_held_up { 0 } else { kept[0].max(kept[1]) }
    }

    /// Loses the `count` oldest bytes of the channel that keeps more.
    pub fn lose(&self, count: u64) {
        let [out, err] = &self.channels;
        let fuller = if out.borrow().ring.len() >= err.borrow().ring.len() { out } else { err };
        let mut channel = fuller.borrow_mut();
        let base = channel.ring.kept().base + count;
        channel.ring.drop_below(base);
        self.changed.notify_waiters();
    }

    /// Whether it is held up where others would lose something.
    pub fn is_block(&self) -> bool {
        self.block.get()
    }

    pub fn set_block(&self, block: bool) {
        self.block.set(block);
        self.changed.notify_waiters();
    }

    /// Signals the process group. Errors `ENDED`, `BAD_ARGUMENT`, `GONE`.
    pub fn signal(&self, signal: i32) -> Result<(), Fault> {
        self.check_running()?;
        self.control.signal(signal)
    }

    /// Sets the size of its terminal. Errors `BAD_ARGUMENT` without one, `ENDED`.
    pub fn resize(&self, size: TerminalSize) -> Result<(), Fault> {
        if !self.tty {
            return Err(Fault::bad_argument("the execution has no terminal"));
        }
        self.check_running()?;
        let terminal = self.terminal.borrow();
        let Some(terminal) = terminal.as_ref() else { return Ok(()) };
        let size = Winsize { ws_col: size.cols, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(terminal, size).map_err(|errno| Fault::new(ErrorCode::Internal, format!("cannot resize: {errno}")))
    }

    pub fn has_terminal(&self) -> bool {
        self.tty
    }

    fn check_running(&self) -> Result<(), Fault> {
        match self.end.get() {
            Some(_) => Err(Fault::new(ErrorCode::Ended, "the execution has ended")),
            None => Ok(()),
        }
    }

    /// Closes its pipes. What still holds the other ends sees that.
    pub fn abandon(&self) {
        self.pumps.borrow_mut().drain(..).for_each(|pump| pump.abort());
        self.channels.iter().for_each(|channel| channel.borrow_mut().pipe = None);
    }
}

/// The master as something to read from and something to write to. It is no pipe, but polls like one.
fn terminal_ends(master: &OwnedFd) -> io::Result<(pipe::Receiver, pipe::Sender)> {
    let screen = pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?;
    Ok((screen, pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?))
}

fn listed(request: &ExecutionStartRequest) -> (Option<String>, Option<Vec<String>>) {
    const WORD_EXTRA: usize = 5;
    let is_short =
        |argv: &&Vec<String>| argv.iter().map(|word| word.len() + WORD_EXTRA).sum::<usize>() <= LISTED_COMMAND_MAX;
    let command = request.command.as_ref().filter(|command| command.len() <= LISTED_COMMAND_MAX);
    (command.cloned(), request.argv.as_ref().filter(is_short).cloned())
}

fn status(end: End) -> ExecStatus {
    let (exit_code, signal) = match end.ended.map(|ended| ended.status) {
        Some(ExitStatus::Code(code)) => (Some(code), None),
        Some(ExitStatus::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let oom_killed = end.ended.is_some_and(|ended| ended.oom_killed);
    ExecStatus { exit_code, signal, timed_out: end.timed_out, oom_killed }
}

fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
