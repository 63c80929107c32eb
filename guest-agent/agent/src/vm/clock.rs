//! The wall clock of the machine, which stood still while the machine was only a snapshot.

use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_settime};
use wire::request::SetClockRequest;
use wire::{ErrorCode, Fault};

/// Sets it. What measures durations goes on as if nothing had happened.
pub fn set(SetClockRequest { unix_ms }: SetClockRequest) -> Result<(), Fault> {
    let time = Timespec { tv_sec: (unix_ms / 1000) as i64, tv_nsec: (unix_ms % 1000 * 1_000_000) as i64 };
    clock_settime(ClockId::Realtime, time).map_err(|errno| match errno {
        Errno::INVAL => Fault::bad_argument("the clock has no such time"),
        Errno::PERM => Fault::new(ErrorCode::Capability, "the guest agent may not set the clock"),
        _ => Fault::new(ErrorCode::Internal, format!("the clock cannot be set: {errno}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Only what no clock has: the one of the machine that runs the tests stays as it is.
    #[test]
    fn a_time_beyond_the_clock_is_refused() {
        let fault = set(SetClockRequest { unix_ms: u64::MAX }).unwrap_err();
        assert_eq!(fault.code, ErrorCode::BadArgument, "{fault:?}");
    }
}
