//! What an execution wrote to one channel and the host has not acknowledged: bytes with absolute offsets, in pieces
//! that come and go as they are needed. A budget counts what all rings of a guest hold.

use super::piece::{Excerpt, Piece, Spares};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::Notify;
use wire::execution::KeptOutput;

/// A new piece has room for so many times what is there to be added: as much will often come again.
const REPEATED: usize = 4;

/// How many bytes all rings hold, and may.
pub struct Budget {
    held: Cell<u64>,
    max: u64,
    relieved: Notify,
    spares: Spares,
}

impl Budget {
    pub fn new(max: u64) -> Self {
        Self { held: Cell::new(0), max, relieved: Notify::new(), spares: Spares::default() }
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
    /// Each with the offset of its first byte. Only the last has room.
    pieces: VecDeque<(u64, Piece)>,
    kept: KeptOutput,
    max: u64,
}

impl Ring {
    /// An empty ring for at most `max` bytes.
    pub fn new(max: u64, budget: Rc<Budget>) -> Self {
        Self { budget, pieces: VecDeque::new(), kept: KeptOutput::default(), max }
    }

    /// The offsets of what it holds.
    pub fn kept(&self) -> KeptOutput {
        self.kept
    }

    pub fn len(&self) -> u64 {
        self.kept.end - self.kept.base
    }

    /// Bytes for which there is memory already, if there is some.
    pub fn spare(&self) -> Option<usize> {
        self.pieces.back().map(|(_, last)| last.spare()).filter(|spare| *spare > 0)
    }

    /// Bytes that can be added before the oldest must go.
    pub fn room(&self) -> u64 {
        self.max - self.len()
    }

    /// Adds what `read` puts at the beginning of the space that it gets, at most `max` bytes of it: how many. Where that
    /// is too much the oldest go.
    pub fn fill<E>(&mut self, max: usize, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<usize, E> {
        let last = self.pieces.back().filter(|(_, last)| last.spare() > 0);
        let piece = match last {
            Some((_, last)) => last.clone(),
            None => self.budget.spares.take(max * REPEATED),
        };
        let is_new = last.is_none();
        let count = match piece.fill(max, read) {
            Ok(count) if count > 0 => count,
            nothing => {
                self.budget.spares.give(piece);
                return nothing;
            }
        };
        if is_new {
            self.pieces.push_back((self.kept.end, piece));
        }
        self.budget.add(count as u64);
        self.kept.end += count as u64;
        self.drop_below(self.kept.end.saturating_sub(self.max));
        Ok(count)
    }

    /// Lets the bytes below `offset` go.
    pub fn drop_below(&mut self, offset: u64) {
        let offset = offset.min(self.kept.end);
        let Some(count) = offset.checked_sub(self.kept.base) else { return };
        self.budget.subtract(count);
        self.kept.base = offset;
        while let Some((from, piece)) = self.pieces.front() {
            if from + piece.len() as u64 > offset {
                return;
            }
            let gone = self.pieces.pop_front();
            gone.into_iter().for_each(|(_, piece)| self.budget.spares.give(piece));
        }
    }

    /// Some of the bytes from `offset` on, at most `max`; `offset` is not below the first. None at the end and beyond it.
    pub fn excerpt(&self, offset: u64, max: usize) -> Option<Excerpt> {
        if offset >= self.kept.end {
            return None;
        }
        let index = self.pieces.partition_point(|(from, _)| *from <= offset) - 1;
        let (from, piece) = &self.pieces[index];
        let start = (offset - from) as usize;
        Some(piece.excerpt(start..piece.len().min(start.saturating_add(max))))
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

    fn push(ring: &mut Ring, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let count = ring.fill::<()>(bytes.len(), |space| {
                space.copy_from_slice(&bytes[..space.len()]);
                Ok(space.len())
            });
            bytes = &bytes[count.unwrap()..];
        }
    }

    fn content(ring: &Ring) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(more) = ring.excerpt(ring.kept().base + bytes.len() as u64, usize::MAX) {
            more.with(|more| bytes.extend_from_slice(more));
        }
        bytes
    }

    #[test]
    fn eight_mebibytes_and_four_bytes_begin_at_four() {
        let mut ring = ring(MAX);
        for from in (0..MAX).step_by(60_000) {
            push(&mut ring, &stream(from, (from + 60_000).min(MAX)));
        }
        assert_eq!((ring.kept(), ring.room()), (KeptOutput { base: 0, end: MAX }, 0));
        push(&mut ring, &stream(MAX, MAX + 4));
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
                push(&mut ring, &stream(end, end + below(90_000)));
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
        push(&mut ring, b"abc");
        ring.drop_below(u64::MAX);
        assert_eq!(ring.kept(), KeptOutput { base: 3, end: 3 });
        push(&mut ring, b"d");
        let bytes = |ring: &Ring, offset, max| Some(ring.excerpt(offset, max)?.with(<[u8]>::to_vec));
        let found = (bytes(&ring, 3, 9), bytes(&ring, 4, 9), bytes(&ring, u64::MAX, 9));
        assert_eq!(found, (Some(b"d".to_vec()), None, None));
        push(&mut ring, b"ef");
        assert_eq!((bytes(&ring, 3, 2), bytes(&ring, 4, 9)), (Some(b"de".to_vec()), Some(b"ef".to_vec())));
    }

    #[test]
    fn what_is_not_read_changes_nothing() {
        let mut ring = ring(10);
        assert_eq!(ring.fill(3, |_| Err(7)), Err(7));
        assert_eq!(ring.fill::<()>(3, |_| Ok(0)), Ok(0));
        assert_eq!((ring.kept(), ring.budget.held.get()), (KeptOutput::default(), 0));
    }

    #[test]
    fn a_strained_budget_says_when_it_is_relieved() {
        let budget = Rc::new(Budget::new(20));
        let mut ring = Ring::new(100, budget.clone());
        push(&mut ring, &[0; 4]);
        assert!(!budget.is_strained());
        push(&mut ring, &[0; 18]);
        assert_eq!((budget.is_strained(), budget.excess(3)), (true, 5));
        let relieved = budget.relieved();
        drop(ring);
        assert!(!budget.is_strained());
        let waited = async { tokio::time::timeout(std::time::Duration::from_secs(1), relieved).await };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        assert!(runtime.block_on(waited).is_ok());
    }
}
