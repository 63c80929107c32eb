//! Flow control of one connection: how many bytes may still go to the guest, and how many the guest may still send.
//! All counters run modulo 2^32, as the specification says, and a guest that lies about its own stops only itself.

/// Bytes that the device holds for one connection when its host end reads slowly.
pub const HOST_BUFFER_BYTES: u32 = 256 * 1024;

/// The guest is told of freed space when it may have less than this left.
const UPDATE_BELOW_BYTES: u32 = HOST_BUFFER_BYTES / 2;

/// The counters of both directions.
#[derive(Debug, Default)]
pub struct Credit {
    guest_buffer: u32,
    guest_forwarded: u32,
    sent: u32,
    received: u32,
    forwarded: u32,
    announced: u32,
}

impl Credit {
    /// Takes what a header of the guest says about the guest's own buffer.
    pub fn learn(&mut self, buffer_bytes: u32, forwarded_bytes: u32) {
        self.guest_buffer = buffer_bytes;
        self.guest_forwarded = forwarded_bytes;
    }

    /// Bytes that may be sent to the guest now.
    pub fn allowance(&self) -> u32 {
        self.guest_buffer.saturating_sub(self.sent.wrapping_sub(self.guest_forwarded))
    }

    /// Counts bytes sent to the guest.
    pub fn sent(&mut self, bytes: u32) {
        self.sent = self.sent.wrapping_add(bytes);
    }

    /// Counts bytes that arrived from the guest. False: they are more than the guest was told it may send.
    #[must_use]
    pub fn received(&mut self, bytes: u32) -> bool {
        if bytes > HOST_BUFFER_BYTES - self.held() {
            return false;
        }
        self.received = self.received.wrapping_add(bytes);
        true
    }

    /// Counts bytes that the host's end has taken; never more than are held.
    pub fn forwarded(&mut self, bytes: u32) {
        self.forwarded = self.forwarded.wrapping_add(bytes.min(self.held()));
    }

    /// Bytes that arrived from the guest and that the host's end has not taken.
    pub fn held(&self) -> u32 {
        self.received.wrapping_sub(self.forwarded)
    }

    /// Whether the guest should be told that there is space again.
    pub fn update_due(&self) -> bool {
        let left = HOST_BUFFER_BYTES.saturating_sub(self.received.wrapping_sub(self.announced));
        self.forwarded != self.announced && left < UPDATE_BELOW_BYTES
    }

    /// Buffer and forwarded bytes for a header to the guest, which thereby knows them.
    pub fn announce(&mut self) -> (u32, u32) {
        self.announced = self.forwarded;
        (HOST_BUFFER_BYTES, self.forwarded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_follows_what_the_guest_has_passed_on() {
        let mut credit = Credit::default();
        assert_eq!(credit.allowance(), 0);
        credit.learn(1000, 0);
        credit.sent(600);
        assert_eq!(credit.allowance(), 400);
        credit.learn(1000, 500);
        assert_eq!(credit.allowance(), 900);
    }

    #[test]
    fn counters_wrap() {
        let mut credit = Credit { sent: u32::MAX - 10, guest_forwarded: u32::MAX - 10, ..Credit::default() };
        credit.learn(100, u32::MAX - 10);
        credit.sent(50);
        assert_eq!(credit.allowance(), 50);
        credit.learn(100, 39);
        assert_eq!(credit.allowance(), 100);
    }

    #[test]
    fn a_guest_that_claims_to_have_taken_more_than_was_sent_gets_nothing() {
        let mut credit = Credit::default();
        credit.learn(1000, 5);
        assert_eq!(credit.allowance(), 0);
    }

    #[test]
    fn more_than_the_buffer_is_refused_and_not_counted() {
        let mut credit = Credit::default();
        assert!(credit.received(HOST_BUFFER_BYTES));
        assert!(!credit.received(1));
        credit.forwarded(1);
        assert!(credit.received(1));
        assert!(!credit.received(u32::MAX));
        assert_eq!(credit.held(), HOST_BUFFER_BYTES);
    }

    #[test]
    fn an_update_is_due_once_the_guest_may_run_short_and_space_is_free() {
        let mut credit = Credit::default();
        assert!(credit.received(HOST_BUFFER_BYTES - 10));
        assert!(!credit.update_due(), "nothing is free yet");
        credit.forwarded(100);
        assert!(credit.update_due());
        assert_eq!(credit.announce(), (HOST_BUFFER_BYTES, 100));
        assert!(!credit.update_due(), "the guest knows");
    }
}
