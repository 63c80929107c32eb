//! The reactor's thread: it delivers events, stands still when asked, and sleeps when there is nothing to do.

use super::reactor::{EventHandler, Events, Interest, Reactor, ReactorError, Readiness};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

/// Counts what arrives at its end of a stream.
struct Counter {
    stream: Mutex<UnixStream>,
    bytes: AtomicU32,
    hung_up: AtomicBool,
    resumed: AtomicU32,
    refuses: AtomicBool,
    delay: Mutex<Duration>,
}

impl EventHandler for Counter {
    fn handle(&self, token: u32, readiness: Readiness) {
        assert_eq!(token, 7);
        let mut stream = self.stream.lock().expect("a stream");
        let mut buffer = [0; 16];
        if readiness.readable {
            let bytes = stream.read(&mut buffer).unwrap_or(0);
            self.bytes.fetch_add(bytes as u32, Ordering::SeqCst);
        }
        if readiness.hung_up {
            self.hung_up.store(true, Ordering::SeqCst);
        }
    }

    fn quiesce(&self) -> Result<(), String> {
        std::thread::sleep(*self.delay.lock().expect("a delay"));
        if self.refuses.load(Ordering::SeqCst) { Err("busy".to_owned()) } else { Ok(()) }
    }

    fn resume(&self) {
        self.resumed.fetch_add(1, Ordering::SeqCst);
    }
}

fn counter(reactor: &Reactor) -> (Arc<Counter>, UnixStream, Events) {
    let (near, far) = UnixStream::pair().expect("a socket pair");
    near.set_nonblocking(true).expect("not to wait");
    let mut kept = None;
    let counter = reactor
        .register(|events| {
            events.watch(&near, 7, Interest::READ)?;
            kept = Some(events);
            let counter = Counter {
                stream: Mutex::new(near),
                bytes: AtomicU32::new(0),
                hung_up: AtomicBool::new(false),
                resumed: AtomicU32::new(0),
                refuses: AtomicBool::new(false),
                delay: Mutex::new(Duration::ZERO),
            };
            Ok::<_, io::Error>(Arc::new(counter))
        })
        .expect("registered");
    (counter, far, kept.expect("its events"))
}

fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn events_reach_their_handler_until_they_are_not_wanted() {
    let reactor = Reactor::start("test").expect("a reactor");
    let (counter, mut far, events) = counter(&reactor);
    far.write_all(b"abc").expect("written");
    until(|| counter.bytes.load(Ordering::SeqCst) == 3);
    events.unwatch(&*counter.stream.lock().expect("a stream")).expect("watched before");
    far.write_all(b"d").expect("written");
    reactor.quiesce(PATIENCE).expect("still");
    reactor.resume();
    assert_eq!(counter.bytes.load(Ordering::SeqCst), 3);
    assert!(events.unwatch(&far).is_err(), "it was never watched");
}

#[test]
fn a_peer_that_goes_is_noticed_whatever_is_asked() {
    let reactor = Reactor::start("test").expect("a reactor");
    let (counter, far, events) = counter(&reactor);
    events.change(&*counter.stream.lock().expect("a stream"), 7, Interest::default()).expect("watched before");
    drop(far);
    until(|| counter.hung_up.load(Ordering::SeqCst));
}

#[test]
fn nothing_is_delivered_while_it_stands_still_and_nothing_is_lost() {
    let reactor = Reactor::start("test").expect("a reactor");
    let (counter, mut far, _) = counter(&reactor);
    for round in 1..=20 {
        reactor.quiesce(PATIENCE).expect("still");
        reactor.quiesce(PATIENCE).expect("still is still");
        far.write_all(b"x").expect("written");
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(counter.bytes.load(Ordering::SeqCst), round - 1);
        reactor.resume();
        until(|| counter.bytes.load(Ordering::SeqCst) == round);
        assert_eq!(counter.resumed.load(Ordering::SeqCst), round);
    }
}

#[test]
fn a_handler_that_cannot_rest_is_told_about_and_everything_goes_on() {
    let reactor = Reactor::start("test").expect("a reactor");
    let (counter, mut far, _) = counter(&reactor);
    counter.refuses.store(true, Ordering::SeqCst);
    let refused = reactor.quiesce(PATIENCE).expect_err("refused");
    assert_eq!(refused.to_string(), "a device did not come to rest: busy");
    far.write_all(b"x").expect("written");
    until(|| counter.bytes.load(Ordering::SeqCst) == 1);
    counter.refuses.store(false, Ordering::SeqCst);
    reactor.quiesce(PATIENCE).expect("still");
}

#[test]
fn whoever_waits_too_long_gives_up_and_everything_goes_on() {
    let reactor = Reactor::start("test").expect("a reactor");
    let (counter, mut far, _) = counter(&reactor);
    *counter.delay.lock().expect("a delay") = Duration::from_millis(200);
    assert!(matches!(reactor.quiesce(Duration::from_millis(20)), Err(ReactorError::Timeout(_))));
    far.write_all(b"x").expect("written");
    until(|| counter.bytes.load(Ordering::SeqCst) == 1);
    *counter.delay.lock().expect("a delay") = Duration::ZERO;
    reactor.quiesce(PATIENCE).expect("still");
}

/// A handler with a defect.
struct Defect;

impl EventHandler for Defect {
    fn handle(&self, _: u32, _: Readiness) {}

    fn quiesce(&self) -> Result<(), String> {
        panic!("a defect");
    }
}

#[test]
fn nobody_waits_for_a_thread_that_died_and_somebody_is_told() {
    let reactor = Reactor::start("test").expect("a reactor");
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    reactor.when_broken(move || tell.store(true, Ordering::SeqCst));
    reactor.register(|_| Ok::<_, io::Error>(Arc::new(Defect))).expect("registered");
    let began = Instant::now();
    assert!(matches!(reactor.quiesce(PATIENCE), Err(ReactorError::Stopped)));
    assert!(matches!(reactor.quiesce(PATIENCE), Err(ReactorError::Stopped)));
    assert!(began.elapsed() < PATIENCE);
    until(|| told.load(Ordering::SeqCst));
}

#[test]
fn it_ends_also_while_it_stands_still_and_nobody_is_told() {
    let reactor = Reactor::start("test").expect("a reactor");
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    reactor.when_broken(move || tell.store(true, Ordering::SeqCst));
    reactor.quiesce(PATIENCE).expect("still");
    drop(reactor);
    assert!(!told.load(Ordering::SeqCst));
}

/// How often a thread of this process was put to sleep by itself, by its name.
fn switches(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let of = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let field =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim).map(str::to_owned);
        if field("Name:").as_deref() != Some(name) {
            return 0;
        }
        field("voluntary_ctxt_switches:").and_then(|count| count.parse().ok()).unwrap_or(0)
    };
    tasks.filter_map(Result::ok).map(|task| of(task.path())).sum()
}

#[test]
fn an_idle_machine_is_not_woken() {
    let reactor = Reactor::start("idle-reactor").expect("a reactor");
    let (counter, mut far, _) = counter(&reactor);
    far.write_all(b"x").expect("written");
    until(|| counter.bytes.load(Ordering::SeqCst) == 1);
    std::thread::sleep(Duration::from_millis(50));
    let before = switches("idle-reactor");
    assert!(before > 0, "the thread is found");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(switches("idle-reactor"), before);
}

#[test]
fn without_a_thread_events_are_served_in_turns_and_there_is_no_barrier() {
    let reactor = Reactor::threadless().expect("a reactor");
    let (counter, mut far, _events) = counter(&reactor);
    far.write_all(b"x").expect("room");
    assert_eq!(counter.bytes.load(Ordering::SeqCst), 0);
    assert_eq!(reactor.turn(0).expect("a turn"), 1);
    assert_eq!((counter.bytes.load(Ordering::SeqCst), reactor.turn(0).expect("a turn")), (1, 0));
    assert!(matches!(reactor.quiesce(PATIENCE), Err(ReactorError::Stopped)));
}
