//! Memory for output: a piece is filled once from its beginning, and what has been filled can be shared with those who
//! send it while the rest is still being filled. Large pieces are used again.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// The largest piece, and the least. With the heads of their frames, two of the largest are no more than the MiB that
/// the host takes at a time.
pub const PIECE_SIZE_MAX: usize = (512 << 10) - 64;
pub const PIECE_SIZE_MIN: usize = 4 << 10;
/// Large pieces that are kept for the next who needs one.
const SPARES_MAX: usize = 4;

#[derive(Clone)]
pub struct Piece(Rc<RefCell<Buffer>>);

struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
}

impl Piece {
    fn new(size: usize) -> Self {
        Self(Rc::new(RefCell::new(Buffer { bytes: vec![0; size].into(), filled: 0 })))
    }

    /// Bytes that were filled.
    pub fn len(&self) -> usize {
        self.0.borrow().filled
    }

    pub fn size(&self) -> usize {
        self.0.borrow().bytes.len()
    }

    /// Bytes that can be filled.
    pub fn spare(&self) -> usize {
        let buffer = self.0.borrow();
        buffer.bytes.len() - buffer.filled
    }

    /// Has `fill` put something at the beginning of at most `max` spare bytes; it tells how much.
    pub fn fill<E>(&self, max: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<usize, E> {
        let mut buffer = self.0.borrow_mut();
        let from = buffer.filled;
        let to = buffer.bytes.len().min(from + max);
        let count = fill(&mut buffer.bytes[from..to])?;
        buffer.filled += count;
        Ok(count)
    }

    /// A part of what was filled.
    pub fn excerpt(&self, range: Range<usize>) -> Excerpt {
        assert!(range.end <= self.len(), "an excerpt beyond what was filled");
        Excerpt { piece: self.clone(), range }
    }
}

/// Filled bytes of a piece. They stay as they are as long as this is there.
#[derive(Clone)]
pub struct Excerpt {
    piece: Piece,
    range: Range<usize>,
}

impl Excerpt {
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Lets `look` see the bytes, for as long as it takes.
    pub fn with<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(&self.piece.0.borrow().bytes[self.range.clone()])
    }
}

/// Pieces that nobody uses.
#[derive(Default)]
pub struct Spares(RefCell<Vec<Piece>>);

impl Spares {
    /// An empty piece of at least `size` bytes, or of the most that a piece can have.
    pub fn take(&self, size: usize) -> Piece {
        let size = size.next_power_of_two().clamp(PIECE_SIZE_MIN, PIECE_SIZE_MAX);
        let spare = if size == PIECE_SIZE_MAX { self.0.borrow_mut().pop() } else { None };
        spare.unwrap_or_else(|| Piece::new(size))
    }

    /// Takes a piece back that the caller needs no more; one that somebody else still uses is left to them.
    pub fn give(&self, piece: Piece) {
        let mut spares = self.0.borrow_mut();
        if piece.size() < PIECE_SIZE_MAX || spares.len() == SPARES_MAX || Rc::strong_count(&piece.0) > 1 {
            return;
        }
        piece.0.borrow_mut().filled = 0;
        spares.push(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(piece: &Piece, bytes: &[u8]) {
        let filled = piece.fill::<()>(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            Ok(bytes.len())
        });
        assert_eq!(filled, Ok(bytes.len()));
    }

    #[test]
    fn an_excerpt_stays_while_the_piece_is_filled_further() {
        let piece = Piece::new(8);
        put(&piece, b"abc");
        let excerpt = piece.excerpt(1..3);
        put(&piece, b"defgh");
        assert_eq!((piece.spare(), excerpt.with(<[u8]>::to_vec)), (0, b"bc".to_vec()));
        assert_eq!(piece.excerpt(0..8).with(<[u8]>::to_vec), b"abcdefgh");
    }

    #[test]
    fn only_a_large_piece_that_nobody_uses_is_used_again() {
        let spares = Spares::default();
        let piece = spares.take(PIECE_SIZE_MAX * 3);
        put(&piece, b"abc");
        let excerpt = piece.excerpt(0..3);
        spares.give(piece);
        assert_eq!(spares.take(PIECE_SIZE_MAX).len(), 0);
        assert_eq!(excerpt.with(<[u8]>::to_vec), b"abc");

        let piece = spares.take(PIECE_SIZE_MAX);
        put(&piece, b"abc");
        let place = Rc::as_ptr(&piece.0);
        spares.give(piece);
        spares.give(spares.take(10));
        let again = spares.take(PIECE_SIZE_MAX);
        assert_eq!((Rc::as_ptr(&again.0), again.len()), (place, 0));
    }
}
