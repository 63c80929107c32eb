//! Requests that wait because the host has no room for what they write. They are tried again by a timer that is armed only
//! while there are any, so that an idle machine is not woken.

use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use vmm_sys_util::timerfd::TimerFd;

/// Until the first time that they are tried again; each time it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Whether an error says that there is no room, and all may be well later.
pub(super) fn is_for_room(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT)
}

/// The requests, by the heads of their chains, which were taken from the queue. Watch it for reading, and call
/// [`Self::wake`] when it is ready.
pub(super) struct Waiting {
    asleep: Vec<u16>,
    /// Those that are being tried again.
    tried: Vec<u16>,
    /// How many both are, for who asks.
    shown: Arc<AtomicU32>,
    timer: TimerFd,
    is_armed: bool,
    pause: Duration,
}

impl Waiting {
    /// None, and where their number is shown.
    pub(super) fn new(shown: Arc<AtomicU32>) -> io::Result<Self> {
        let timer = TimerFd::new().map_err(io::Error::from)?;
        Ok(Self { asleep: Vec::new(), tried: Vec::new(), shown, timer, is_armed: false, pause: FIRST_PAUSE })
    }

    /// Those that are not being tried.
    pub(super) fn asleep(&self) -> &[u16] {
        &self.asleep
    }

    /// There is no room for this one.
    pub(super) fn add(&mut self, head: u16) -> io::Result<()> {
        self.end_try(head);
        self.asleep.push(head);
        self.show();
        if !self.is_armed {
            self.timer.reset(self.pause, None).map_err(io::Error::from)?;
            self.is_armed = true;
        }
        Ok(())
    }

    /// A request was answered, whether it waited or not.
    pub(super) fn answered(&mut self, head: u16) {
        if self.end_try(head) {
            self.show();
        }
    }

    /// Those that are to be tried again now. Each is told with [`Self::add`] or [`Self::answered`] afterwards.
    pub(super) fn wake(&mut self) -> io::Result<Vec<u16>> {
        self.disarm()?;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.tried.extend(&self.asleep);
        Ok(std::mem::take(&mut self.asleep))
    }

    /// Puts others in their place, which wait for somebody to wake them.
    pub(super) fn replace(&mut self, heads: Vec<u16>) -> io::Result<()> {
        self.asleep = heads;
        self.tried.clear();
        self.show();
        self.disarm()
    }

    /// Ends a try, and tells whether it was one.
    fn end_try(&mut self, head: u16) -> bool {
        let place = self.tried.iter().position(|tried| *tried == head);
        place.is_some_and(|place| self.tried.swap_remove(place) == head)
    }

    fn show(&mut self) {
        let count = self.asleep.len() + self.tried.len();
        self.shown.store(count as u32, Ordering::Relaxed);
        if count == 0 {
            self.pause = FIRST_PAUSE;
        }
    }

    fn disarm(&mut self) -> io::Result<()> {
        self.is_armed = false;
        self.timer.clear().map_err(io::Error::from)
    }
}

impl AsRawFd for Waiting {
    fn as_raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_and_begin_anew_when_nothing_waits() {
        let shown = Arc::new(AtomicU32::new(7));
        let mut waiting = Waiting::new(shown.clone()).expect("a timer");
        let is_armed = |waiting: &Waiting| waiting.timer.is_armed().expect("a timer");
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pauses.push(waiting.pause.as_millis());
            waiting.add(3).expect("armed");
            waiting.add(5).expect("armed");
            assert!(is_armed(&waiting));
            assert_eq!(waiting.wake().expect("quiet"), [3, 5]);
            assert!(!is_armed(&waiting));
            assert_eq!((waiting.asleep().len(), shown.load(Ordering::Relaxed)), (0, 2), "they are being tried");
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        waiting.answered(4);
        waiting.answered(5);
        assert_eq!((shown.load(Ordering::Relaxed), waiting.pause), (1, PAUSE_MAX));
        waiting.answered(3);
        assert_eq!((shown.load(Ordering::Relaxed), waiting.pause), (0, FIRST_PAUSE));
        assert!(!is_armed(&waiting), "an idle machine is not woken");
    }

    #[test]
    fn the_timer_gets_ready_and_what_is_replaced_is_forgotten() {
        let shown = Arc::new(AtomicU32::new(0));
        let mut waiting = Waiting::new(shown.clone()).expect("a timer");
        waiting.add(1).expect("armed");
        assert_eq!(waiting.timer.wait().map_err(io::Error::from).expect("it fires"), 1);
        waiting.add(2).expect("still armed");
        waiting.replace(vec![9]).expect("quiet");
        assert!(!waiting.timer.is_armed().expect("a timer"));
        assert_eq!((waiting.asleep(), shown.load(Ordering::Relaxed)), (&[9][..], 1));
        waiting.replace(Vec::new()).expect("quiet");
        assert_eq!(shown.load(Ordering::Relaxed), 0);
    }
}
