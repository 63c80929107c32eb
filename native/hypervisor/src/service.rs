//! A machine and its control, on the thread that calls: requests are done one after the other until the guest ends, the host
//! asks, or a signal comes.

use crate::control::{Control, ControlThread, ReplyTo};
use crate::devices::Live;
use crate::prepared::Prepared;
use crate::protocol::{Metrics, Reply, Request};
use crate::session::{Session, SessionError};
use fluxvm_engine::vcpu::End;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// What the machine's thread is told.
pub(crate) enum Event {
    /// Something is asked.
    Request(Request, ReplyTo),
    /// The guest ended.
    Ended(End),
    /// The host wants the end.
    Shutdown,
}

/// What the control's thread knows of the machine without asking it.
pub(crate) struct Status {
    metrics: Mutex<(Metrics, Live)>,
    given_up: AtomicBool,
}

impl Status {
    pub(crate) fn new() -> Self {
        Self { metrics: Mutex::new((Metrics::NONE, Live::default())), given_up: AtomicBool::new(false) }
    }

    /// What is answered to a request for metrics.
    pub(crate) fn reply(&self) -> Reply {
        let (mut metrics, live) = self.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        live.tell(&mut metrics);
        Reply::Metrics(metrics)
    }

    /// `live` is looked at whenever somebody asks.
    pub(crate) fn set(&self, metrics: Metrics, live: Live) {
        *self.metrics.lock().unwrap_or_else(PoisonError::into_inner) = (metrics, live);
    }

    /// The machine is to end: what takes long is broken off.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Whether what takes long may go on.
    ///
    /// # Errors
    /// `Interrupted` when the machine is to end.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the machine is to end"));
        }
        Ok(())
    }
}

/// Ends a service from another thread.
#[derive(Clone)]
pub struct Stopper {
    events: Sender<Event>,
    status: Arc<Status>,
}

impl Stopper {
    /// Asks for the end, as a request to shut down does. Again does no harm.
    pub fn stop(&self) {
        self.status.give_up();
        let _ = self.events.send(Event::Shutdown);
    }
}

/// See the head of this file. Dropping it ends the machine and all threads.
pub struct Service {
    session: Session,
    control: Option<ControlThread>,
    events: Receiver<Event>,
    stopper: Stopper,
}

impl Service {
    /// Starts to listen to the control; requests are done from [`Service::serve`] on.
    ///
    /// # Errors
    /// When the thread of the control cannot be started.
    pub fn start(control: Control) -> io::Result<Self> {
        let (sender, events) = channel();
        let status = Arc::new(Status::new());
        let control = ControlThread::start(control, sender.clone(), Arc::clone(&status))?;
        let ends = sender.clone();
        let ended = Arc::new(move |end| drop(ends.send(Event::Ended(end))));
        let session = Session::new(Arc::clone(&status), ended);
        Ok(Self { session, control: Some(control), events, stopper: Stopper { events: sender, status } })
    }

    /// What ends this service.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Makes a machine and lets it run. In a jail the process is sealed first: it starts no thread afterwards.
    ///
    /// # Errors
    /// When the machine cannot be made; nothing of it is left then.
    pub fn boot(&mut self, prepared: Prepared) -> Result<(), SessionError> {
        self.session.boot(prepared)
    }

    /// Does what is asked until the end, and tells how the guest ended, or nothing when the host asked.
    pub fn serve(mut self) -> Option<End> {
        while let Ok(event) = self.events.recv() {
            match event {
                Event::Ended(end) => return Some(end),
                Event::Shutdown => return None,
                Event::Request(request, reply_to) => {
                    let is_last = matches!(request, Request::Shutdown);
                    reply_to.send(self.session.handle(request));
                    if is_last {
                        return None;
                    }
                }
            }
        }
        None
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // First, so that who reads a last answer finds nothing of the machine any more.
        self.session.close();
        self.control.take().into_iter().for_each(ControlThread::finish);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    struct Client {
        reader: BufReader<UnixStream>,
    }

    impl Client {
        fn new(stream: UnixStream) -> Self {
            Self { reader: BufReader::new(stream) }
        }

        fn ask(&mut self, line: &str) -> String {
            self.send(format!("{line}\n").as_bytes())
        }

        fn send(&mut self, bytes: &[u8]) -> String {
            self.reader.get_mut().write_all(bytes).unwrap();
            self.reply()
        }

        fn reply(&mut self) -> String {
            let mut reply = String::new();
            self.reader.read_line(&mut reply).unwrap();
            reply
        }
    }

    const OK: &str = "{\"status\":\"ok\"}\n";

    /// A service without a machine, and a client of it.
    fn service() -> (Stopper, std::thread::JoinHandle<Option<End>>, Client) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let service = Service::start(Control { streams: vec![theirs], ..Control::default() }).unwrap();
        let stopper = service.stopper();
        (stopper, std::thread::spawn(|| service.serve()), Client::new(ours))
    }

    #[test]
    fn a_request_to_shut_down_breaks_off_what_takes_long() {
        let (stopper, serving, mut client) = service();
        assert!(stopper.status.go_on().is_ok());
        assert_eq!(client.ask(r#"{"action":"shutdown"}"#), OK);
        assert!(stopper.status.go_on().is_err());
        assert_eq!(serving.join().unwrap(), None);
    }

    #[test]
    fn who_connects_again_and_again_keeps_nobody_from_being_heard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let listener = Some(UnixListener::bind(&path).unwrap());
        let service = Service::start(Control { listener, streams: vec![theirs], signals: None }).unwrap();
        let stopper = service.stopper();
        let serving = std::thread::spawn(|| service.serve());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let _ = UnixStream::connect(&path);
                    }
                });
            }
            let mut client = Client::new(ours);
            client.reader.get_ref().set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            let heard = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                (0..50).all(|_| client.ask(r#"{"action":"ping"}"#) == OK)
            }));
            over.store(true, Ordering::Relaxed);
            stopper.stop();
            assert!(heard.is_ok_and(|heard| heard));
        });
        assert_eq!(serving.join().unwrap(), None);
    }

    #[test]
    fn requests_are_answered_in_order_and_nonsense_does_not_end_the_connection() {
        let (_, serving, mut client) = service();
        assert_eq!(client.ask(r#"{"action":"ping"}"#), OK);
        assert!(client.ask("nonsense").starts_with(r#"{"status":"error""#));
        assert!(client.ask(r#"{"action":"pause"}"#).contains("there is no machine yet"));
        assert!(client.ask(r#"{"action":"metrics"}"#).contains(r#""lifecycle":"created""#));
        let refused = client.ask(r#"{"action":"boot","kernel":"/none/kernel","memory_mib":64,"vcpus":1}"#);
        assert!(refused.contains("kernel: /none/kernel cannot be opened: No such file"), "{refused}");
        let both = "{\"action\":\"pause\"}\n{\"action\":\"ping\"}\n";
        assert!(client.send(both.as_bytes()).contains("no machine"));
        assert_eq!(client.reply(), OK);
        assert_eq!(client.ask(r#"{"action":"shutdown"}"#), OK);
        assert_eq!(client.reply(), "", "the connection ends");
        assert_eq!(serving.join().unwrap(), None);
    }

    #[test]
    fn a_line_that_is_too_long_is_answered_at_the_limit_and_ends_the_connection() {
        let (stopper, serving, mut client) = service();
        // No end of line: the answer comes as soon as the limit is passed.
        assert!(client.send(&vec![b'x'; (64 << 10) + 1]).contains("longer than 64 KiB"));
        assert_eq!(client.reply(), "");
        stopper.stop();
        assert_eq!(serving.join().unwrap(), None);
    }

    #[test]
    fn whoever_comes_is_served_however_many_are_silent_or_do_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let service = Service::start(Control { listener: Some(listener), ..Control::default() }).unwrap();
        let stopper = service.stopper();
        let serving = std::thread::spawn(|| service.serve());
        let mut agent = Client::new(UnixStream::connect(&path).unwrap());
        // One that never stops asking, and reads what it is told.
        let chatter = UnixStream::connect(&path).unwrap();
        let reader = chatter.try_clone().unwrap();
        let reading = std::thread::spawn(move || std::io::copy(&mut &reader, &mut std::io::sink()));
        let asking = std::thread::spawn(move || {
            let lines = "{\"action\":\"ping\"}\n".repeat(2000);
            while (&chatter).write_all(lines.as_bytes()).is_ok() {}
        });
        let mut others = Vec::new();
        for _ in 0..40 {
            let other = UnixStream::connect(&path).unwrap();
            other.set_nonblocking(true).unwrap();
            // Answers that nobody reads.
            while (&other).write(b"{\"action\":\"metrics\"}\n").is_ok_and(|sent| sent > 0) {}
            others.push(other);
            assert_eq!(agent.ask(r#"{"action":"ping"}"#), OK);
        }
        stopper.stop();
        assert_eq!(serving.join().unwrap(), None);
        asking.join().unwrap();
        // It ends with the answers to what was asked, or is cut off.
        let _ = reading.join().unwrap();
    }
}
