//! Token buckets for bandwidth and operations. The timer is armed only while something waits for tokens, so that an idle
//! machine is not woken.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};
use vmm_sys_util::timerfd::TimerFd;

/// What flows in, and how much may gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that come each second, at least one.
    pub per_second: u64,
    /// Tokens that an idle device gathers, at least one.
    pub burst: u64,
}

/// The limits of one direction of a device; what is absent is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes moved.
    pub bytes: Option<Rate>,
    /// Requests or packets.
    pub operations: Option<Rate>,
}

struct Bucket {
    rate: Rate,
    /// Below zero after something larger than the burst: it goes at once when the bucket is full, and is paid afterwards.
    tokens: i128,
    filled_at: Instant,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        let rate = Rate { per_second: rate.per_second.max(1), burst: rate.burst.max(1) };
        Self { rate, tokens: i128::from(rate.burst), filled_at: now }
    }

    fn fill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled_at);
        let tokens = elapsed.as_nanos() as i128 * i128::from(self.rate.per_second) / 1_000_000_000;
        if tokens > 0 {
            self.tokens = (self.tokens + tokens).min(i128::from(self.rate.burst));
            self.filled_at = now;
        }
    }

    /// How long until `wanted` may go; zero when it may now.
    fn wait(&self, wanted: u64) -> Duration {
        let missing = i128::from(wanted.min(self.rate.burst)) - self.tokens;
        if missing <= 0 {
            return Duration::ZERO;
        }
        let nanoseconds = missing * 1_000_000_000 / i128::from(self.rate.per_second) + 1;
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// The buckets and their timer. Watch it for reading, and call [`Self::woken`] when it is ready.
pub struct RateLimiter {
    bytes: Option<Bucket>,
    operations: Option<Bucket>,
    timer: TimerFd,
    armed: bool,
}

impl RateLimiter {
    /// Full buckets.
    ///
    /// # Errors
    /// When the host has no descriptors left.
    pub fn new(limits: Limits) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            bytes: limits.bytes.map(|rate| Bucket::new(rate, now)),
            operations: limits.operations.map(|rate| Bucket::new(rate, now)),
            timer: TimerFd::new().map_err(io::Error::from)?,
            armed: false,
        })
    }

    /// Puts other buckets in place, which are full. Who waits must try again.
    ///
    /// # Errors
    /// When the timer cannot be set.
    pub fn set(&mut self, limits: Limits) -> io::Result<()> {
        let now = Instant::now();
        self.bytes = limits.bytes.map(|rate| Bucket::new(rate, now));
        self.operations = limits.operations.map(|rate| Bucket::new(rate, now));
        self.disarm()
    }

    /// Takes tokens for one operation of so many bytes, all or none. When it is refused, the descriptor gets ready once the
    /// tokens are there.
    ///
    /// # Errors
    /// When the timer cannot be set, which a live timer never refuses.
    pub fn take(&mut self, bytes: u64) -> io::Result<bool> {
        self.take_at(bytes, Instant::now())
    }

    fn take_at(&mut self, bytes: u64, now: Instant) -> io::Result<bool> {
        let mut wait = Duration::ZERO;
        for (bucket, wanted) in [(&mut self.bytes, bytes), (&mut self.operations, 1)] {
            if let Some(bucket) = bucket {
                bucket.fill(now);
                wait = wait.max(bucket.wait(wanted));
            }
        }
        if wait.is_zero() {
            for (bucket, wanted) in [(&mut self.bytes, bytes), (&mut self.operations, 1)] {
                if let Some(bucket) = bucket {
                    bucket.tokens -= i128::from(wanted);
                }
            }
            return Ok(true);
        }
        if !self.armed {
            self.timer.reset(wait, None).map_err(io::Error::from)?;
            self.armed = true;
        }
        Ok(false)
    }

    /// The timer has fired, or had before it was set anew.
    ///
    /// # Errors
    /// When the timer cannot be set.
    pub fn woken(&mut self) -> io::Result<()> {
        self.disarm()
    }

    /// Forgets who waits, for a reset of the device.
    ///
    /// # Errors
    /// When the timer cannot be set.
    pub fn disarm(&mut self) -> io::Result<()> {
        self.armed = false;
        self.timer.clear().map_err(io::Error::from)
    }
}

impl AsRawFd for RateLimiter {
    fn as_raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(bytes: u64, operations: u64) -> Limits {
        let rate = |per_second| Some(Rate { per_second, burst: per_second });
        Limits { bytes: rate(bytes), operations: rate(operations) }
    }

    #[test]
    fn without_limits_everything_goes() {
        let mut limiter = RateLimiter::new(Limits::default()).expect("a limiter");
        assert!((0..1000).all(|_| limiter.take(u64::MAX).expect("no timer is needed")));
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_waits_its_time() {
        let mut limiter = RateLimiter::new(limits(1000, 1_000_000)).expect("a limiter");
        let now = Instant::now();
        assert!(limiter.take_at(600, now).expect("taken"));
        assert!(limiter.take_at(400, now).expect("taken"));
        assert!(!limiter.take_at(100, now).expect("refused"));
        assert!(limiter.timer.is_armed().expect("a timer"));
        assert!(!limiter.take_at(100, now + Duration::from_millis(99)).expect("refused"));
        assert!(limiter.take_at(100, now + Duration::from_millis(101)).expect("taken"));
    }

    #[test]
    fn operations_are_counted_beside_bytes_and_a_refusal_takes_nothing() {
        let mut limiter = RateLimiter::new(limits(1_000_000, 2)).expect("a limiter");
        let now = Instant::now();
        assert!(limiter.take_at(1, now).expect("taken"));
        assert!(limiter.take_at(1, now).expect("taken"));
        assert!(!limiter.take_at(900_000, now).expect("refused"));
        assert!(limiter.take_at(999_000, now + Duration::from_millis(501)).expect("taken"));
    }

    #[test]
    fn more_than_a_burst_goes_when_the_bucket_is_full_and_is_paid_afterwards() {
        let mut limiter = RateLimiter::new(limits(1000, 1000)).expect("a limiter");
        let now = Instant::now();
        assert!(limiter.take_at(3000, now).expect("taken"));
        assert!(!limiter.take_at(1, now + Duration::from_millis(1990)).expect("refused"));
        assert!(limiter.take_at(1, now + Duration::from_millis(2010)).expect("taken"));
    }

    #[test]
    fn other_limits_hold_at_once_and_forget_the_old_ones() {
        let mut limiter = RateLimiter::new(limits(1, 1)).expect("a limiter");
        assert!(limiter.take(1).expect("taken"));
        assert!(!limiter.take(1).expect("refused"));
        limiter.set(Limits::default()).expect("set");
        assert!(!limiter.timer.is_armed().expect("a timer"));
        assert!(limiter.take(1 << 40).expect("taken"));
        limiter.set(limits(1, 1)).expect("set");
        assert!(limiter.take(1).expect("taken") && !limiter.take(1).expect("refused"));
    }

    #[test]
    fn who_is_told_of_a_timer_that_was_set_anew_meanwhile_does_not_wait_for_it() {
        let mut limiter = RateLimiter::new(limits(1, 1)).expect("a limiter");
        assert!(limiter.take(1).expect("taken") && !limiter.take(1).expect("refused"));
        limiter.set(limits(1, 1)).expect("set");
        assert!(limiter.take(1).expect("taken") && !limiter.take(1).expect("refused"));
        let began = Instant::now();
        limiter.woken().expect("quiet");
        assert!(began.elapsed() < Duration::from_millis(500));
        assert!(!limiter.take(1).expect("refused") && limiter.timer.is_armed().expect("a timer"));
    }

    #[test]
    fn the_timer_fires_once_and_is_quiet_afterwards() {
        let mut limiter = RateLimiter::new(limits(1_000_000, 1000)).expect("a limiter");
        assert!(limiter.take(1_000_000).expect("taken"));
        assert!(!limiter.take(10_000).expect("refused"));
        assert_eq!(limiter.timer.wait().map_err(io::Error::from).expect("it fires"), 1);
        limiter.woken().expect("quiet");
        assert!(limiter.take(10_000).expect("taken"));
        assert!(!limiter.timer.is_armed().expect("a timer"));
    }
}
