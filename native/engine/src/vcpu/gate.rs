//! The gate between the vCPU threads and whoever controls the machine: what is wanted of all of them, and how many have come
//! to rest. A thread at rest has let go of its vCPU, whose state is then complete.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is wanted of the vCPU threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Want {
    /// Run the guest.
    Run = 0,
    /// Rest until something else is wanted.
    Pause = 1,
    /// End.
    Stop = 2,
}

/// See the head of this file.
pub struct Gate {
    /// Repeats what is wanted, so that running threads look without the lock.
    want: AtomicU8,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    want: Want,
    /// Threads that rest or have ended.
    resting: usize,
}

impl Gate {
    /// A gate for threads that start at rest.
    #[must_use]
    pub fn new() -> Self {
        let state = State { want: Want::Pause, resting: 0 };
        Self { want: AtomicU8::new(Want::Pause as u8), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Whether a thread may go on running the guest. Cheap enough to ask before each entry.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.want.load(Ordering::SeqCst) == Want::Run as u8
    }

    /// Says what is wanted. Threads in the guest must be kicked afterwards.
    pub fn set(&self, want: Want) {
        let mut state = self.lock();
        state.want = want;
        self.want.store(want as u8, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Rests as long as a pause is wanted, and returns what is wanted then: to run or to stop.
    pub fn rest(&self) -> Want {
        let mut state = self.lock();
        if state.want != Want::Pause {
            return state.want;
        }
        state.resting += 1;
        self.changed.notify_all();
        while state.want == Want::Pause {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.resting -= 1;
        state.want
    }

    /// A thread that ends rests for ever.
    pub fn leave(&self) {
        self.lock().resting += 1;
        self.changed.notify_all();
    }

    /// Waits until `threads` rest, or the time is over; calls `kick` before each wait of at most `interval`. Tells whether
    /// they rest.
    pub fn wait_resting(&self, threads: usize, timeout: Duration, interval: Duration, kick: impl Fn()) -> bool {
        let began = Instant::now();
        loop {
            kick();
            let state = self.lock();
            let waiting = |state: &mut State| state.resting < threads;
            let (state, _) =
                self.changed.wait_timeout_while(state, interval, waiting).unwrap_or_else(PoisonError::into_inner);
            if state.resting >= threads {
                return true;
            }
            if began.elapsed() >= timeout {
                return false;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    const SOON: Duration = Duration::from_millis(2);
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn all_threads_rest_go_on_and_end() {
        let gate = Arc::new(Gate::new());
        let rounds = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (gate, rounds) = (Arc::clone(&gate), Arc::clone(&rounds));
                std::thread::spawn(move || {
                    while gate.rest() == Want::Run {
                        while gate.runs() {
                            rounds.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                        }
                    }
                    gate.leave();
                })
            })
            .collect();
        for _ in 0..50 {
            assert!(gate.wait_resting(4, LONG, SOON, || ()));
            let before = rounds.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(100));
            assert_eq!(rounds.load(Ordering::Relaxed), before, "somebody runs");
            gate.set(Want::Run);
            while rounds.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            gate.set(Want::Pause);
        }
        gate.set(Want::Stop);
        assert!(gate.wait_resting(4, LONG, SOON, || ()));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_thread_that_does_not_come_is_missed_after_the_time_and_kicked_until_then() {
        let (gate, kicks) = (Gate::new(), AtomicU32::new(0));
        let kick = || {
            kicks.fetch_add(1, Ordering::Relaxed);
        };
        assert!(!gate.wait_resting(1, Duration::from_millis(20), SOON, kick));
        assert!(kicks.load(Ordering::Relaxed) > 1);
    }
}
