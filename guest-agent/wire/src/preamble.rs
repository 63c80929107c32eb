//! The line that begins version 2 and, on a channel that can be cut and resumed without a close, begins it anew.

use crate::limits::NONCE_DIGITS;

const START: &[u8] = b"FLUXVM/2 ";

/// 32 lower-case hex digits that the host makes fresh for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; NONCE_DIGITS]);

impl Nonce {
    /// The whole preamble line, newline included.
    pub fn line(&self) -> Vec<u8> {
        [START, &self.0, b"\n"].concat()
    }
}

/// Finds a preamble line in a byte stream, dropping whatever stands before it.
#[derive(Debug)]
pub struct Scanner {
    matched: usize,
    nonce: [u8; NONCE_DIGITS],
}

impl Default for Scanner {
    fn default() -> Self {
        Self { matched: 0, nonce: [0; NONCE_DIGITS] }
    }
}

impl Scanner {
    /// Takes one byte; the nonce once the newline of a preamble line has been taken.
    pub fn push(&mut self, byte: u8) -> Option<Nonce> {
        let digits = self.matched.saturating_sub(START.len());
        if self.matched < START.len() {
            if byte == START[self.matched] {
                self.matched += 1;
                return None;
            }
        } else if digits < NONCE_DIGITS {
            if matches!(byte, b'0'..=b'9' | b'a'..=b'f') {
                self.nonce[digits] = byte;
                self.matched += 1;
                return None;
            }
        } else if byte == b'\n' {
            self.matched = 0;
            return Some(Nonce(self.nonce));
        }
        // The first byte of a preamble occurs nowhere else in it, so a new one can only begin right here.
        self.matched = usize::from(byte == START[0]);
        None
    }
}
