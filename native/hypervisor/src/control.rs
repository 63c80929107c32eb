//! The control socket: one thread that takes requests from a few connections, one request a line, and hands them to the
//! machine's thread. What concerns nobody but the asker (a ping, the metrics) is answered at once, whatever the machine does.

use crate::connection::{Connection, Line};
use crate::protocol::{Reply, Request};
use crate::service::{Event, Status};
use fluxvm_sys::Errno;
use fluxvm_sys::signals::EndSignals;
use fluxvm_sys::threads::STACK_BYTES;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// More than the agent and somebody who looks need; who came last makes room for who comes.
const CONNECTIONS_MAX: usize = 16;
/// Lines of one connection before the others have their turn.
const LINES_AT_ONCE: usize = 16;
const NO_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(20);
/// How long answers may take to leave when the machine has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where requests come from.
#[derive(Default)]
pub struct Control {
    /// Accepts connections.
    pub listener: Option<UnixListener>,
    /// Connections that are there.
    pub streams: Vec<UnixStream>,
    /// Ask the machine to end, like a request to shut down.
    pub signals: Option<EndSignals>,
}

/// What the thread is told.
enum Message {
    /// The answer for a connection.
    Answer(u64, Reply),
    /// The machine has ended.
    Finish,
}

#[derive(Clone)]
struct Messages {
    sender: Sender<Message>,
    wake: Arc<OwnedFd>,
}

impl Messages {
    fn send(&self, message: Message) {
        let _ = self.sender.send(message);
        // Only a counter that is full refuses, and then the thread is awake.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

/// Where the answer to a request goes.
pub(crate) struct ReplyTo {
    connection: u64,
    messages: Messages,
}

impl ReplyTo {
    /// Answers. A connection that has ended meanwhile concerns only who made it.
    pub(crate) fn send(self, reply: Reply) {
        self.messages.send(Message::Answer(self.connection, reply));
    }
}

/// The thread.
pub(crate) struct ControlThread {
    messages: Messages,
    thread: JoinHandle<()>,
}

impl ControlThread {
    /// Starts the thread, which tells `events` what is asked.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn start(control: Control, events: Sender<Event>, status: Arc<Status>) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, told) = channel();
        let messages = Messages { sender, wake };
        let Control { listener, streams, signals } = control;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        let mut server = Server {
            listener,
            signals,
            connections: Vec::new(),
            next: 0,
            events,
            status,
            told,
            messages: messages.clone(),
        };
        for stream in streams {
            server.add(stream)?;
        }
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || server.run())?;
        Ok(Self { messages, thread })
    }

    /// Sends what has been answered and ends the thread with all connections.
    pub(crate) fn finish(self) {
        self.messages.send(Message::Finish);
        let _ = self.thread.join();
    }
}

struct Server {
    listener: Option<UnixListener>,
    signals: Option<EndSignals>,
    connections: Vec<Connection>,
    next: u64,
    events: Sender<Event>,
    status: Arc<Status>,
    told: Receiver<Message>,
    messages: Messages,
}

impl Server {
    fn run(mut self) {
        while self.take_messages() {
            let is_more = self.talk();
            if !self.wait(is_more) {
                return;
            }
        }
        let until = Instant::now() + LAST_WORDS;
        for connection in &mut self.connections {
            connection.flush_until(until);
        }
    }

    /// Whether the machine goes on.
    fn take_messages(&mut self) -> bool {
        for message in self.told.try_iter() {
            match message {
                Message::Finish => return false,
                Message::Answer(id, reply) => {
                    if let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) {
                        connection.answer(&reply);
                    }
                }
            }
        }
        true
    }

    /// Reads, does and answers as far as nobody has to be waited for. Tells whether somebody has more to say, who is not
    /// listened to any longer because others want to be.
    fn talk(&mut self) -> bool {
        let Self { connections, status, events, messages, .. } = self;
        let mut is_more = false;
        connections.retain_mut(|connection| {
            for _ in 0..LINES_AT_ONCE {
                match connection.next_line() {
                    Line::None => return true,
                    Line::End => return false,
                    Line::TooLong => {
                        connection.answer(&Reply::Error { message: "the request is longer than 64 KiB".to_owned() });
                        connection.say_no_more();
                    }
                    Line::Request(line, files) => match parse(&line, files) {
                        Ok(Request::Ping) => connection.answer(&Reply::OK),
                        Ok(Request::Metrics) => connection.answer(&status.reply()),
                        Ok(request) => {
                            if matches!(request, Request::Shutdown) {
                                // Nobody wants what takes long any more.
                                status.give_up();
                            }
                            connection.await_answer();
                            let reply_to = ReplyTo { connection: connection.id, messages: messages.clone() };
                            // The service outlives this thread.
                            let _ = events.send(Event::Request(request, reply_to));
                        }
                        Err(message) => connection.answer(&Reply::Error { message }),
                    },
                }
            }
            is_more = true;
            true
        });
        is_more
    }

    /// Waits until there is something to do, or only looks. False when waiting is impossible.
    fn wait(&mut self, is_more: bool) -> bool {
        let mut polled = vec![PollFd::new(&*self.messages.wake, PollFlags::IN)];
        let watched = self.connections.iter().filter_map(Connection::waits_for);
        polled.extend(self.listener.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        polled.extend(self.signals.iter().map(|signals| PollFd::new(signals, PollFlags::IN)));
        polled.extend(watched);
        match poll(&mut polled, is_more.then_some(&Timespec::default())) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        let _ = rustix::io::read(&*self.messages.wake, &mut [0; 8]);
        if self.signals.as_ref().is_some_and(EndSignals::have_come) {
            self.status.give_up();
            let _ = self.events.send(Event::Shutdown);
        }
        self.accept();
        true
    }

    /// Only so many at once, so that who connects again and again keeps nobody else from being heard.
    fn accept(&mut self) {
        for _ in 0..CONNECTIONS_MAX {
            match self.listener.as_ref().map(UnixListener::accept) {
                Some(Ok((stream, _))) => {
                    if self.connections.len() == CONNECTIONS_MAX {
                        self.drop_one();
                    }
                    let _ = self.add(stream);
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                    // There is no descriptor left, and the listener stays ready until there is one.
                    if !self.drop_one() {
                        std::thread::sleep(NO_DESCRIPTORS_PAUSE);
                    }
                    return;
                }
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Ends the connection that came last, of those that wait for nothing if there are any: who has been here for long is
    /// driven out by nobody. False when there is none.
    fn drop_one(&mut self) -> bool {
        let rank = |connection: &Connection| (!connection.is_busy(), connection.id);
        let last = self.connections.iter().enumerate().max_by_key(|(_, connection)| rank(connection));
        let Some((index, _)) = last else { return false };
        self.connections.swap_remove(index);
        true
    }

    fn add(&mut self, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        self.next += 1;
        self.connections.push(Connection::new(self.next, stream));
        Ok(())
    }
}

fn parse(line: &[u8], files: Vec<File>) -> Result<Request, String> {
    let mut request: Request = serde_json::from_slice(line).map_err(|error| format!("no request: {error}"))?;
    if !request.take_files(files) {
        return Err("no request that files come with".to_owned());
    }
    Ok(request)
}
