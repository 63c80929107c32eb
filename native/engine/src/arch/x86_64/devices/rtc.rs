//! The real-time clock (MC146818): gives the host's wall time in UTC and is never in the middle of an update. Without it a
//! kernel spins for seconds. It cannot be set, and gives no interrupts.

use crate::bus::BusDevice;
use std::time::{SystemTime, UNIX_EPOCH};

/// Ports 0x70 (index) and 0x71 (data).
pub const PORTS: u64 = 2;
const INDEX: u64 = 0;
/// The top bit of the index masks the NMI and selects nothing.
const INDEX_MASK: u8 = 0x7F;

const SECONDS: u8 = 0x00;
const MINUTES: u8 = 0x02;
const HOURS: u8 = 0x04;
const WEEKDAY: u8 = 0x06;
const DAY: u8 = 0x07;
const MONTH: u8 = 0x08;
const YEAR: u8 = 0x09;
const STATUS_A: u8 = 0x0A;
const STATUS_B: u8 = 0x0B;
const STATUS_D: u8 = 0x0D;
const CENTURY: u8 = 0x32;

/// Divider for 32 kHz, 1024 Hz, no update in progress.
const NOT_UPDATING: u8 = 0x26;
/// 24-hour format, numbers in BCD, no interrupts.
const FORMAT: u8 = 0x02;
/// The battery is good.
const VALID: u8 = 0x80;

/// The clock, with whom it asks for the seconds since 1970.
pub struct Rtc {
    index: u8,
    now: Box<dyn Fn() -> u64 + Send>,
}

impl Default for Rtc {
    fn default() -> Self {
        Self::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
    }
}

impl Rtc {
    /// A clock that shows what `now` says: seconds since 1970.
    pub fn new(now: impl Fn() -> u64 + Send + 'static) -> Self {
        Self { index: 0, now: Box::new(now) }
    }

    /// The selected register, for a saved state.
    #[must_use]
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Selects a register again.
    pub fn set_index(&mut self, index: u8) {
        self.index = index & INDEX_MASK;
    }

    fn register(&self) -> u8 {
        let seconds = (self.now)();
        let date = Date::of(seconds / 86_400);
        let value = match self.index {
            SECONDS => seconds % 60,
            MINUTES => seconds / 60 % 60,
            HOURS => seconds / 3600 % 24,
            WEEKDAY => date.weekday,
            DAY => date.day,
            MONTH => date.month,
            YEAR => date.year % 100,
            CENTURY => date.year / 100,
            STATUS_A => return NOT_UPDATING,
            STATUS_B => return FORMAT,
            STATUS_D => return VALID,
            _ => return 0,
        };
        (value / 10 % 10 * 16 + value % 10) as u8
    }
}

impl BusDevice for Rtc {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(if offset == INDEX { self.index } else { self.register() });
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset == INDEX {
            self.index = data.last().copied().unwrap_or(0) & INDEX_MASK;
        }
    }
}

struct Date {
    year: u64,
    /// 1 to 12.
    month: u64,
    /// 1 to 31.
    day: u64,
    /// 1 is Sunday.
    weekday: u64,
}

impl Date {
    /// The date so many days after 1970-01-01. Years start in March here, so that the leap day is the last of a year, and
    /// 400 of them are always 146,097 days.
    fn of(days: u64) -> Self {
        let since_march_of_0 = days + 719_468;
        let era = since_march_of_0 / 146_097;
        let day_of_era = since_march_of_0 % 146_097;
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        Self {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            weekday: (days + 4) % 7 + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(seconds: u64) -> [u8; 8] {
        let mut rtc = Rtc::new(move || seconds);
        [CENTURY, YEAR, MONTH, DAY, HOURS, MINUTES, SECONDS, WEEKDAY].map(|index| {
            rtc.write(INDEX, &[0x80 | index]);
            let mut data = [0];
            rtc.read(1, &mut data);
            data[0]
        })
    }

    #[test]
    fn times_are_shown_in_bcd() {
        assert_eq!(shown(0), [0x19, 0x70, 1, 1, 0, 0, 0, 5]);
        // Leap day of 2000: a Tuesday.
        assert_eq!(shown(951_782_399 + 86_400), [0x20, 0x00, 2, 0x29, 0x23, 0x59, 0x59, 3]);
        // First second of March 2100, which is no leap year: a Monday.
        assert_eq!(shown(4_107_542_400), [0x21, 0x00, 3, 1, 0, 0, 0, 2]);
    }

    #[test]
    fn a_register_that_was_selected_is_selected_again() {
        let mut first = Rtc::new(|| 59);
        first.write(INDEX, &[0x80 | SECONDS]);
        first.write(INDEX, &[0x80 | YEAR]);
        let mut second = Rtc::new(|| 59);
        second.set_index(first.index());
        let mut data = [0];
        second.read(1, &mut data);
        assert_eq!(data, [0x70]);
        // As anyone may have written it.
        second.set_index(0xFF);
        assert_eq!(second.index(), INDEX_MASK);
    }

    #[test]
    fn it_never_updates_and_ignores_settings() {
        let mut rtc = Rtc::new(|| 0);
        rtc.write(INDEX, &[STATUS_A]);
        rtc.write(1, &[0xFF]);
        let mut data = [0];
        rtc.read(1, &mut data);
        assert_eq!(data, [NOT_UPDATING]);
    }
}
