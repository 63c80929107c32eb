//! What an execution wrote to one channel and the host has not acknowledged: bytes with absolute offsets, in pieces
//! that come and go as they are needed. A budget counts what all rings of a guest hold.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::Notify;
use wire::execution::KeptOutput;

/// Every piece but the last has so many bytes.
const PIECE_SIZE: usize = 64 << 10;

/// How many bytes all rings hold, and may.
pub struct Budget {
    held: Cell<u64>,
    max: u64,
    relieved: Notify,
}

impl Budget {
    pub fn new(max: u64) -> Self {
        Self { held: Cell::new(0), max, relieved: Notify::new() }
    }

    /// Bytes beyond the budget once `more` are held too.
    pub fn excess(&self, more: u64) -> u64 {
        (self.held.get() + more).saturating_sub(self.max)
    }

    /// Whether those that can wait should, which leaves most of it to those that would lose something.
    pub fn is_strained(&self) -> bool {
        self.held.get() >= self.max / 4
    }

    /// Ready when it was strained and is so no more.
    pub fn relieved(&self) -> impl Future<Output = ()> {
        self.relieved.notified()
    }

    fn add(&self, bytes: u64) {
        self.held.set(self.held.get() + bytes);
    }

    fn subtract(&self, bytes: u64) {
        let was_strained = self.is_strained();
        self.held.set(self.held.get() - bytes);
        if was_strained && !self.is_strained() {
            self.relieved.notify_waiters();
        }
    }
}

pub struct Ring {
    budget: Rc<Budget>,
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that are gone.
    skipped: usize,
    kept: KeptOutput,
    max: u64,
}

impl Ring {
    /// An empty ring for at most `max` bytes.
    pub fn new(max: u64, budget: Rc<Budget>) -> Self {
        Self { budget, pieces: VecDeque::new(), skipped: 0, kept: KeptOutput::default(), max }
    }

    /// The offsets of what it holds.
    pub fn kept(&self) -> KeptOutput {
        self.kept
    }

    pub fn len(&self) -> u64 {
        self.kept.end - self.kept.base
    }

    /// Bytes that can be added before the oldest must go.
    pub fn room(&self) -> u64 {
        self.max - self.len()
    }

    /// Adds `bytes`; where that is too much the oldest go.
    pub fn push(&mut self, bytes: &[u8]) {
        self.budget.add(bytes.len() as u64);
        self.kept.end += bytes.len() as u64;
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.pieces.back().is_none_or(|piece| piece.len() == PIECE_SIZE) {
                self.pieces.push_back(Vec::new());
            }
            let piece = self.pieces.back_mut().expect("there is a last piece");
            let (now, later) = rest.split_at(rest.len().min(PIECE_SIZE - piece.len()));
            let needed = piece.len() + now.len();
            if needed > piece.capacity() {
                piece.reserve_exact(needed.next_power_of_two().min(PIECE_SIZE) - piece.len());
            }
            piece.extend_from_slice(now);
            rest = later;
        }
        self.drop_below(self.kept.end.saturating_sub(self.max));
    }

    /// Lets the bytes below `offset` go.
    pub fn drop_below(&mut self, offset: u64) {
        let offset = offset.min(self.kept.end);
        let Some(count) = offset.checked_sub(self.kept.base) else { return };
        self.budget.subtract(count);
        self.kept.base = offset;
        if self.len() == 0 {
            self.pieces = VecDeque::new();
            self.skipped = 0;
            return;
        }
        let skipped = self.skipped + count as usize;
        self.pieces.drain(..skipped / PIECE_SIZE);
        self.skipped = skipped % PIECE_SIZE;
    }

    /// Some of the bytes from `offset` on, which is not below the first; none at the end and beyond it.
    pub fn bytes_at(&self, offset: u64) -> &[u8] {
        if offset >= self.kept.end {
            return &[];
        }
        let place = self.skipped + (offset - self.kept.base) as usize;
        &self.pieces[place / PIECE_SIZE][place % PIECE_SIZE..]
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.budget.subtract(self.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 8 << 20;

    fn ring(max: u64) -> Ring {
        Ring::new(max, Rc::new(Budget::new(u64::MAX)))
    }

    /// Byte `offset` of a stream in which no piece looks like another.
    fn byte(offset: u64) -> u8 {
        (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    fn stream(from: u64, to: u64) -> Vec<u8> {
        (from..to).map(byte).collect()
    }

    fn content(ring: &Ring) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let more = ring.bytes_at(ring.kept().base + bytes.len() as u64);
            if more.is_empty() {
                return bytes;
            }
            bytes.extend_from_slice(more);
        }
    }

    #[test]
    fn eight_mebibytes_and_four_bytes_begin_at_four() {
        let mut ring = ring(MAX);
        for from in (0..MAX).step_by(60_000) {
            ring.push(&stream(from, (from + 60_000).min(MAX)));
        }
        assert_eq!((ring.kept(), ring.room()), (KeptOutput { base: 0, end: MAX }, 0));
        ring.push(&stream(MAX, MAX + 4));
        assert_eq!(ring.kept(), KeptOutput { base: 4, end: MAX + 4 });
        assert!(content(&ring) == stream(4, MAX + 4));
    }

    #[test]
    fn whatever_is_pushed_and_dropped_the_rest_is_right() {
        let mut seed = 7u64;
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        let budget = Rc::new(Budget::new(1000));
        for max in [1, 5, 70_000, 300_000] {
            let mut ring = Ring::new(max, budget.clone());
            for _ in 0..300 {
                let end = ring.kept().end;
                ring.push(&stream(end, end + below(90_000)));
                assert!(ring.len() <= max);
                if below(3) == 0 {
                    ring.drop_below(ring.kept().base.saturating_sub(2) + below(ring.len() + 5));
                }
                let KeptOutput { base, end } = ring.kept();
                assert!(content(&ring) == stream(base, end), "{max}");
                assert_eq!(budget.held.get(), end - base);
            }
        }
        assert_eq!(budget.held.get(), 0);
    }

    #[test]
    fn an_acknowledgement_beyond_the_end_is_one_of_everything() {
        let mut ring = ring(10);
        ring.push(b"abc");
        ring.drop_below(u64::MAX);
        assert_eq!(ring.kept(), KeptOutput { base: 3, end: 3 });
        ring.push(b"d");
        assert_eq!((ring.bytes_at(3), ring.bytes_at(4), ring.bytes_at(u64::MAX)), (&b"d"[..], &b""[..], &b""[..]));
    }

    #[test]
    fn a_strained_budget_says_when_it_is_relieved() {
        let budget = Rc::new(Budget::new(20));
        let mut ring = Ring::new(100, budget.clone());
        ring.push(&[0; 4]);
        assert!(!budget.is_strained());
        ring.push(&[0; 18]);
        assert_eq!((budget.is_strained(), budget.excess(3)), (true, 5));
        let relieved = budget.relieved();
        drop(ring);
        assert!(!budget.is_strained());
        let waited = async { tokio::time::timeout(std::time::Duration::from_secs(1), relieved).await };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        assert!(runtime.block_on(waited).is_ok());
    }
}
