//! One thread per virtual machine that waits for the descriptors of all devices, and the barrier that stops it. It sleeps
//! in one call without a timeout: an idle machine causes no wake-up.

use fluxvm_sys::threads::{STACK_BYTES, with_signals_blocked};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use thiserror::Error;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Events that one call of the kernel may deliver.
const EVENTS_AT_ONCE: usize = 64;
/// The slot of the reactor's own wake-up; no handler has it.
const OWN_SLOT: u32 = u32::MAX;
/// A wait without an end.
const FOR_EVER: i32 = -1;

/// What a descriptor is watched for, level triggered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// There is something to read, or the end.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
}

impl Interest {
    /// Reading only.
    pub const READ: Self = Self { readable: true, writable: false };
    /// Writing only.
    pub const WRITE: Self = Self { readable: false, writable: true };
    /// Both.
    pub const BOTH: Self = Self { readable: true, writable: true };

    fn events(self) -> EventSet {
        let mut events = EventSet::empty();
        events.set(EventSet::IN | EventSet::READ_HANG_UP, self.readable);
        events.set(EventSet::OUT, self.writable);
        events
    }
}

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Reading gives bytes or the end.
    pub readable: bool,
    /// Writing takes bytes.
    pub writable: bool,
    /// The other side is gone, or the descriptor has failed; reported whatever was asked for.
    pub hung_up: bool,
}

impl From<EventSet> for Readiness {
    fn from(events: EventSet) -> Self {
        Self {
            readable: events.intersects(EventSet::IN | EventSet::READ_HANG_UP),
            writable: events.contains(EventSet::OUT),
            hung_up: events.intersects(EventSet::HANG_UP | EventSet::ERROR),
        }
    }
}

/// What the reactor calls, on its thread.
pub trait EventHandler: Send + Sync {
    /// A descriptor that was watched with this token is ready.
    fn handle(&self, token: u32, readiness: Readiness);

    /// Ends all I/O in flight; nothing of the guest is touched until [`Self::resume`].
    ///
    /// # Errors
    /// When that cannot be done; all handlers are then resumed.
    fn quiesce(&self) -> Result<(), String> {
        Ok(())
    }

    /// Goes on.
    fn resume(&self) {}
}

/// Why the barrier was not reached.
#[derive(Debug, Error)]
pub enum ReactorError {
    /// The thread did not get there in time. It goes on as if nobody had asked.
    #[error("the devices did not come to rest within {0:?}")]
    Timeout(Duration),
    /// A handler could not end its I/O. All go on.
    #[error("a device did not come to rest: {0}")]
    Refused(String),
    /// The thread is not running.
    #[error("the devices have no thread")]
    Stopped,
}

/// Where one handler watches descriptors.
#[derive(Clone)]
pub struct Events {
    epoll: Arc<Epoll>,
    slot: u32,
}

impl Events {
    /// Watches a descriptor. It must be open until [`Self::unwatch`].
    ///
    /// # Errors
    /// When the kernel refuses, for example because it is watched already.
    pub fn watch(&self, descriptor: &impl AsRawFd, token: u32, interest: Interest) -> io::Result<()> {
        self.control(ControlOperation::Add, descriptor, token, interest)
    }

    /// Watches an event: whoever watches is told once for each time that it is written, and need not read it.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub fn watch_writes(&self, event: &EventFd, token: u32) -> io::Result<()> {
        self.add(ControlOperation::Add, event, token, EventSet::IN | EventSet::EDGE_TRIGGERED)
    }

    /// Changes what a watched descriptor is watched for.
    ///
    /// # Errors
    /// When it is not watched.
    pub fn change(&self, descriptor: &impl AsRawFd, token: u32, interest: Interest) -> io::Result<()> {
        self.control(ControlOperation::Modify, descriptor, token, interest)
    }

    /// Stops watching. An event that was already fetched may still come.
    ///
    /// # Errors
    /// When it is not watched.
    pub fn unwatch(&self, descriptor: &impl AsRawFd) -> io::Result<()> {
        self.control(ControlOperation::Delete, descriptor, 0, Interest::default())
    }

    fn control(
        &self,
        operation: ControlOperation,
        descriptor: &impl AsRawFd,
        token: u32,
        interest: Interest,
    ) -> io::Result<()> {
        self.add(operation, descriptor, token, interest.events())
    }

    fn add(
        &self,
        operation: ControlOperation,
        descriptor: &impl AsRawFd,
        token: u32,
        events: EventSet,
    ) -> io::Result<()> {
        let data = u64::from(self.slot) << 32 | u64::from(token);
        self.epoll.ctl(operation, descriptor.as_raw_fd(), EpollEvent::new(events, data))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// Somebody waits for the barrier.
    Stopping,
    /// The barrier is reached; the thread waits.
    Still,
    /// The thread ends, or has ended.
    Gone,
}

struct Shared {
    phase: Mutex<(Phase, Option<String>)>,
    changed: Condvar,
    handlers: Mutex<Vec<Arc<dyn EventHandler>>>,
    /// Told when the thread ends before it is to.
    broken: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    wake: EventFd,
    epoll: Arc<Epoll>,
}

/// The thread and what it serves. Dropping it ends the thread.
pub struct Reactor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Reactor {
    /// Starts the thread; all signals are blocked on it.
    ///
    /// # Errors
    /// When the host has no descriptors or threads left.
    pub fn start(name: &str) -> io::Result<Self> {
        let shared = Shared::new(Phase::Running)?;
        let served = shared.clone();
        let thread = with_signals_blocked(|| {
            Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(move || served.run())
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// A reactor without a thread, for who wants to decide when devices are served: it serves them in [`Self::turn`]
    /// only, and has no barrier.
    ///
    /// # Errors
    /// When the host has no descriptors left.
    pub fn threadless() -> io::Result<Self> {
        Ok(Self { shared: Shared::new(Phase::Gone)?, thread: None })
    }

    /// Serves on the calling thread what is ready now, or becomes ready within so many milliseconds, and returns how many
    /// events that were.
    ///
    /// # Errors
    /// What the kernel says to the wait.
    pub fn turn(&self, wait_ms: u16) -> io::Result<usize> {
        self.shared.serve(i32::from(wait_ms), &mut [EpollEvent::default(); EVENTS_AT_ONCE])
    }

    /// Has `told` called, on the thread itself, when the thread ends by a panic of a handler or because it cannot wait any
    /// more: a guest whose devices are served by nobody would wait for them for ever.
    pub fn when_broken(&self, told: impl FnOnce() + Send + 'static) {
        *locked(&self.shared.broken) = Some(Box::new(told));
    }

    /// Adds a handler, which `make` builds around its events.
    ///
    /// # Errors
    /// What `make` returns.
    pub fn register<H: EventHandler + 'static, E>(
        &self,
        make: impl FnOnce(Events) -> Result<Arc<H>, E>,
    ) -> Result<Arc<H>, E> {
        let mut handlers = locked(&self.shared.handlers);
        let handler = make(Events { epoll: self.shared.epoll.clone(), slot: handlers.len() as u32 })?;
        handlers.push(handler.clone());
        Ok(handler)
    }

    /// Waits until the thread stands still with all I/O ended. The virtual CPUs must stand still before.
    ///
    /// # Errors
    /// When that does not happen in time, or a handler refuses; everything then goes on.
    pub fn quiesce(&self, timeout: Duration) -> Result<(), ReactorError> {
        let deadline = Instant::now() + timeout;
        let mut phase = locked(&self.shared.phase);
        match phase.0 {
            Phase::Still => return Ok(()),
            Phase::Gone => return Err(ReactorError::Stopped),
            Phase::Running | Phase::Stopping => *phase = (Phase::Stopping, None),
        }
        let _ = self.shared.wake.write(1);
        while phase.0 == Phase::Stopping {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                phase.0 = Phase::Running;
                return Err(ReactorError::Timeout(timeout));
            }
            phase = self.shared.changed.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        match (phase.0, phase.1.take()) {
            (Phase::Still, _) => Ok(()),
            (_, Some(reason)) => Err(ReactorError::Refused(reason)),
            _ => Err(ReactorError::Stopped),
        }
    }

    /// Lets the thread go on; nothing happens when it does not stand still.
    pub fn resume(&self) {
        let mut phase = locked(&self.shared.phase);
        if phase.0 == Phase::Still {
            phase.0 = Phase::Running;
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        locked(&self.shared.phase).0 = Phase::Gone;
        self.shared.changed.notify_all();
        let _ = self.shared.wake.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(phase: Phase) -> io::Result<Arc<Self>> {
        let epoll = Arc::new(Epoll::new()?);
        let wake = EventFd::new(rustix::event::EventfdFlags::CLOEXEC.bits() as i32)?;
        Events { epoll: epoll.clone(), slot: OWN_SLOT }.watch(&wake, 0, Interest::READ)?;
        let (phase, handlers) = (Mutex::new((phase, None)), Mutex::new(Vec::new()));
        let broken = Mutex::new(None);
        Ok(Arc::new(Self { phase, changed: Condvar::new(), handlers, broken, wake, epoll }))
    }

    fn run(&self) {
        // Also when a handler panics: nobody may wait for a thread that is gone.
        let _ending = Ending(self);
        let mut events = vec![EpollEvent::default(); EVENTS_AT_ONCE];
        while self.serve(FOR_EVER, &mut events).is_ok() && self.obey() {}
    }

    /// Waits for events and calls their handlers.
    fn serve(&self, wait_ms: i32, events: &mut [EpollEvent]) -> io::Result<usize> {
        let count = match self.epoll.wait(wait_ms, events) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            result => result?,
        };
        for event in &events[..count] {
            let slot = (event.data() >> 32) as u32;
            if slot == OWN_SLOT {
                let _ = self.wake.read();
                continue;
            }
            let handler = locked(&self.handlers).get(slot as usize).cloned();
            if let Some(handler) = handler {
                handler.handle(event.data() as u32, Readiness::from(event.event_set()));
            }
        }
        Ok(count)
    }

    /// Stops when asked to, and tells whether to go on.
    fn obey(&self) -> bool {
        match locked(&self.phase).0 {
            Phase::Gone => return false,
            Phase::Stopping => (),
            Phase::Running | Phase::Still => return true,
        }
        let handlers = locked(&self.handlers).clone();
        let refused = handlers.iter().find_map(|handler| handler.quiesce().err());
        let mut phase = locked(&self.phase);
        match (phase.0, refused) {
            (Phase::Gone, _) => return false,
            (Phase::Stopping, None) => phase.0 = Phase::Still,
            (Phase::Stopping, Some(reason)) => *phase = (Phase::Running, Some(reason)),
            // Whoever asked has given up waiting.
            (Phase::Running | Phase::Still, _) => phase.0 = Phase::Running,
        }
        self.changed.notify_all();
        while phase.0 == Phase::Still {
            phase = self.changed.wait(phase).unwrap_or_else(PoisonError::into_inner);
        }
        let goes_on = phase.0 != Phase::Gone;
        drop(phase);
        if goes_on {
            for handler in &handlers {
                handler.resume();
            }
        }
        goes_on
    }
}

/// Tells everybody that the thread has ended.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut locked(&self.0.phase).0, Phase::Gone);
        self.0.changed.notify_all();
        let told = locked(&self.0.broken).take().filter(|_| before != Phase::Gone);
        if let Some(told) = told {
            told();
        }
    }
}

/// A lock whose data stays good when a holder panicked: phases and lists are changed in one step.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
