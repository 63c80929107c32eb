//! Flow control of one direction of one stream, seen from either end.

use crate::fault::Fault;
use crate::limits::{CREDIT_INITIAL, CREDIT_MAX};

/// Bytes of DATA that may still travel. The sender takes from it before sending; the receiver takes from its
/// own copy on arrival, and so notices a sender that did not keep to what it was granted.
#[derive(Debug)]
pub struct Credit {
    available: u64,
}

impl Default for Credit {
    fn default() -> Self {
        Self { available: CREDIT_INITIAL }
    }
}

impl Credit {
    /// Bytes that may travel now.
    pub fn available(&self) -> u64 {
        self.available
    }

    /// Accounts for `bytes` that travelled. Error `PROTOCOL` when that is more than was granted.
    pub fn take(&mut self, bytes: u64) -> Result<(), Fault> {
        match self.available.checked_sub(bytes) {
            Some(rest) => {
                self.available = rest;
                Ok(())
            }
            None => Err(Fault::protocol("more data than the receiver granted")),
        }
    }

    /// Adds `bytes` that the receiver is ready to take. Error `PROTOCOL` when the sum is beyond any use.
    pub fn grant(&mut self, bytes: u64) -> Result<(), Fault> {
        match self.available.checked_add(bytes) {
            Some(sum) if sum <= CREDIT_MAX => {
                self.available = sum;
                Ok(())
            }
            _ => Err(Fault::protocol("more credit than a stream can hold")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_cannot_take_more_than_was_granted() {
        let mut credit = Credit::default();
        assert!(credit.take(CREDIT_INITIAL).is_ok());
        assert!(credit.take(1).is_err());
        assert!(credit.grant(5).is_ok());
        assert!(credit.take(6).is_err());
        assert!(credit.take(5).is_ok());
        assert_eq!(credit.available(), 0);
    }

    #[test]
    fn credit_never_wraps() {
        let mut credit = Credit::default();
        assert!(credit.grant(u64::MAX).is_err());
        assert!(credit.grant(CREDIT_MAX).is_err());
        assert!(credit.grant(CREDIT_MAX - CREDIT_INITIAL).is_ok());
        assert!(credit.grant(1).is_err());
    }
}
