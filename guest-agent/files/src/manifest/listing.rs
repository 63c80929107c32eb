//! From the pieces of a walk to a listing in byte order of paths, its digest, and deltas between listings.

use super::piece::{DirectoryId, Piece};
use crate::root::CheckedPath;
use sha2::{Digest, Sha256};
use std::cmp::Ordering;
use std::collections::VecDeque;
use wire::entry::{Entry, EntryKind, Item, Items, encode_difference};
use wire::{ErrorCode, Fault};

/// Listings held for deltas …
const HELD_MAX: usize = 4;
/// … and their bytes together, apart from the newest.
const HELD_BYTES_MAX: usize = 96 << 20;

#[derive(Debug, Default)]
pub struct Listing {
    bytes: Vec<u8>,
    /// Some boundaries between entries, ascending.
    marks: Vec<usize>,
    entries: u64,
    files: u64,
}

impl Listing {
    /// Puts the pieces of a walk together: `starts`, sorted by path, each followed by its content, which is the piece
    /// of the same index. Error `LIMIT` when the listing would be longer than `listing_max` bytes.
    pub fn assemble(starts: Vec<Piece>, mut pieces: Vec<Piece>, listing_max: u64) -> Result<Self, Fault> {
        let size: usize = starts.iter().chain(&pieces).map(|piece| piece.bytes.len()).sum();
        if size as u64 > listing_max {
            return Err(too_long(listing_max));
        }
        let mut listing = Self { bytes: Vec::with_capacity(size), ..Self::default() };
        for (content, start) in starts.into_iter().enumerate() {
            listing.take(&start, 0, start.bytes.len());
            listing.count(&start);
            listing.push_content(&mut pieces, content as DirectoryId);
        }
        Ok(listing)
    }

    /// Appends a directory's piece with the pieces of what lies inside it, which are used up.
    fn push_content(&mut self, pieces: &mut [Piece], top: DirectoryId) {
        let mut open = |id: DirectoryId| (std::mem::take(&mut pieces[id as usize]), 0, 0);
        let mut stack = vec![open(top)];
        while let Some((piece, cut, position)) = stack.last_mut() {
            let Some((at, inside)) = piece.cuts.get(*cut).copied() else {
                self.take(piece, *position, piece.bytes.len());
                self.count(piece);
                stack.pop();
                continue;
            };
            self.take(piece, *position, at);
            (*cut, *position) = (*cut + 1, at);
            stack.push(open(inside));
        }
    }

    /// Appends a piece's bytes from one boundary between entries to another.
    fn take(&mut self, piece: &Piece, from: usize, to: usize) {
        let offset = self.bytes.len();
        let first = piece.marks.partition_point(|mark| *mark <= from);
        let inner = piece.marks[first..].iter().take_while(|mark| **mark < to);
        self.marks.extend(inner.map(|mark| mark - from + offset));
        self.bytes.extend_from_slice(&piece.bytes[from..to]);
        self.marks.push(self.bytes.len());
    }

    fn count(&mut self, piece: &Piece) {
        self.entries += piece.entries;
        self.files += piece.files;
    }
}

/// The fault of a listing that would be too long.
pub fn too_long(listing_max: u64) -> Fault {
    Fault::new(ErrorCode::Limit, format!("the listing has more than {listing_max} bytes"))
}

/// What a manifest's END says about a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub digest: [u8; 32],
    pub entries: u64,
    pub files: u64,
    pub delta: bool,
    pub unchanged: u64,
}

#[derive(Debug)]
struct Held {
    digest: [u8; 32],
    /// What was listed, so that a delta is only made where both listings have looked.
    starts: Vec<CheckedPath>,
    bytes: Vec<u8>,
}

impl Held {
    fn covers(&self, starts: &[CheckedPath]) -> bool {
        starts.iter().all(|start| self.starts.iter().any(|held| start.is_within(held)))
    }
}

/// The latest listings, newest first.
#[derive(Debug, Default)]
pub struct Listings {
    held: VecDeque<Held>,
    delta: Vec<u8>,
}

impl Listings {
    /// Takes `listing` of `starts` in and gives the bytes to send: a delta against `base` when that is held and covers
    /// `starts`, else all of it.
    pub fn answer(
        &mut self,
        listing: Listing,
        starts: Vec<CheckedPath>,
        base: Option<&[u8]>,
    ) -> Result<(&[u8], Summary), Fault> {
        let digest = Sha256::digest(&listing.bytes).into();
        let mut summary =
            Summary { digest, entries: listing.entries, files: listing.files, delta: false, unchanged: 0 };
        self.delta = Vec::new();
        let base = self.held.iter().find(|held| Some(held.digest.as_slice()) == base && held.covers(&starts));
        if let Some(base) = base {
            summary.delta = true;
            (self.delta, summary.unchanged) = difference(&base.bytes, &listing, &starts)?;
        }
        self.hold(Held { digest, starts, bytes: listing.bytes });
        let answer = if summary.delta { &self.delta } else { &self.held[0].bytes };
        Ok((answer, summary))
    }

    fn hold(&mut self, newest: Held) {
        self.held.retain(|held| held.digest != newest.digest);
        let mut bytes = 0;
        let fitting = self.held.iter().take(HELD_MAX - 1).take_while(|held| {
            bytes += held.bytes.len();
            bytes <= HELD_BYTES_MAX
        });
        let kept = fitting.count();
        self.held.truncate(kept);
        self.held.push_front(newest);
    }
}

/// How `new`, a listing of `starts`, differs from `old` there, and how many regular files are the same in both.
fn difference(old: &[u8], new: &Listing, starts: &[CheckedPath]) -> Result<(Vec<u8>, u64), Fault> {
    let mut delta = Vec::new();
    let mut changed = 0;
    let starts: Vec<Vec<u8>> = starts.iter().map(CheckedPath::absolute).collect();
    let mut olds = Items::new(old);
    let mut news = Items::new(&new.bytes);
    loop {
        skip_same(&mut olds, &mut news, new);
        let was = peek_within(&mut olds, &starts)?;
        let is = peek(&news)?;
        let order = match (&was, &is) {
            (None, None) => return Ok((delta, new.files - changed)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.path.cmp(new.path),
        };
        let before = was.as_ref().filter(|_| order != Ordering::Greater);
        let now = is.as_ref().filter(|_| order != Ordering::Less);
        changed += u64::from(now.is_some_and(|now| is_regular(now) && !has_content_of(now, before)));
        if let Some(either) = now.or(before).filter(|_| now != before) {
            encode_difference(either.path, now, before, &mut delta);
        }
        if order != Ordering::Greater {
            olds.next();
        }
        if order != Ordering::Less {
            news.next();
        }
    }
}

/// Skips blocks of equal bytes. They hold the same entries, since an encoding says itself where it ends, and what `new`
/// lists is never outside of what is compared.
fn skip_same(olds: &mut Items<'_>, news: &mut Items<'_>, new: &Listing) {
    let mut next_mark = {
        let position = new.bytes.len() - news.rest().len();
        new.marks.partition_point(|mark| *mark <= position)
    };
    while let Some(mark) = new.marks.get(next_mark) {
        let position = new.bytes.len() - news.rest().len();
        let block = mark - position;
        if olds.rest().get(..block) != Some(&news.rest()[..block]) {
            return;
        }
        olds.skip(block);
        news.skip(block);
        next_mark += 1;
    }
}

fn is_regular(entry: &Entry<'_>) -> bool {
    entry.kind == EntryKind::Regular
}

fn has_content_of(now: &Entry<'_>, before: Option<&Entry<'_>>) -> bool {
    before.is_some_and(|before| is_regular(before) && before.fingerprint == now.fingerprint)
}

fn peek<'a>(items: &Items<'a>) -> Result<Option<Entry<'a>>, Fault> {
    match items.clone().next().transpose()? {
        Some((Item::Present(entry), _)) => Ok(Some(entry)),
        Some((Item::Different { .. }, _)) => Err(Fault::new(ErrorCode::Internal, "a listing with a difference in it")),
        None => Ok(None),
    }
}

/// The next entry at or below one of `starts`; those before it are dropped.
fn peek_within<'a>(items: &mut Items<'a>, starts: &[Vec<u8>]) -> Result<Option<Entry<'a>>, Fault> {
    loop {
        let entry = peek(items)?;
        if entry.is_none_or(|entry| starts.iter().any(|start| is_within(entry.path, start))) {
            return Ok(entry);
        }
        items.next();
    }
}

fn is_within(path: &[u8], start: &[u8]) -> bool {
    start == b"/" || path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(files: &[(&str, u8)]) -> Listing {
        let mut piece = Piece::default();
        for (path, content) in files {
            let fingerprint = [*content; 32];
            piece.push(&Entry {
                path: path.as_bytes(),
                kind: EntryKind::Regular,
                fingerprint: &fingerprint,
                size: 1,
                mode: 0o644,
                uid: 0,
                gid: 0,
            });
        }
        whole(piece)
    }

    fn whole(piece: Piece) -> Listing {
        Listing::assemble(vec![piece], vec![Piece::default()], u64::MAX).unwrap()
    }

    fn starts(paths: &[&str]) -> Vec<CheckedPath> {
        paths.iter().map(|path| CheckedPath::new(path.as_bytes()).unwrap()).collect()
    }

    /// `+` came, `-` went, `*` changed.
    fn marks(delta: &[u8]) -> Vec<String> {
        Items::new(delta)
            .map(|item| match item.unwrap().0 {
                Item::Present(_) => panic!("an entry of a listing in a delta"),
                Item::Different { path, now, before } => {
                    let mark = if before.is_none() {
                        '+'
                    } else if now.is_none() {
                        '-'
                    } else {
                        '*'
                    };
                    format!("{mark}{}", path.escape_ascii())
                }
            })
            .collect()
    }

    #[test]
    fn a_delta_holds_what_changed_came_and_went() {
        let mut listings = Listings::default();
        let first = listing(&[("/a", 1), ("/b", 1), ("/d", 1), ("/e", 1)]);
        let (_, first) = listings.answer(first, starts(&["/"]), None).unwrap();
        assert!(!first.delta);
        let second = listing(&[("/a", 1), ("/b", 2), ("/c", 1), ("/e", 1)]);
        let (delta, summary) = listings.answer(second, starts(&["/"]), Some(&first.digest)).unwrap();
        assert_eq!(marks(delta), ["*/b", "+/c", "-/d"]);
        assert_eq!((summary.delta, summary.unchanged, summary.entries), (true, 2, 4));
    }

    #[test]
    fn a_file_whose_mode_changed_is_in_the_delta_and_unchanged() {
        let mut listings = Listings::default();
        let entry = Entry {
            path: b"/a",
            kind: EntryKind::Regular,
            fingerprint: &[1; 32],
            size: 1,
            mode: 0o600,
            uid: 0,
            gid: 0,
        };
        let (_, first) = listings.answer(listing(&[("/a", 1)]), starts(&["/"]), None).unwrap();
        let mut piece = Piece::default();
        piece.push(&entry);
        let second = whole(piece);
        let (delta, summary) = listings.answer(second, starts(&["/"]), Some(&first.digest)).unwrap();
        assert_eq!((marks(delta), summary.unchanged), (vec!["*/a".to_string()], 1));
        let Item::Different { now, before, .. } = Items::new(delta).next().unwrap().unwrap().0 else { panic!() };
        assert_eq!((now, before.map(|before| before.mode)), (Some(entry), Some(0o644)));
    }

    #[test]
    fn a_delta_of_a_part_is_restricted_to_it() {
        let mut listings = Listings::default();
        let whole = listing(&[("/a/1", 1), ("/a/2", 1), ("/ab", 1), ("/b", 1)]);
        let (_, whole) = listings.answer(whole, starts(&["/"]), None).unwrap();
        let part = listing(&[("/a/1", 1), ("/a/3", 1)]);
        let (delta, summary) = listings.answer(part, starts(&["/a"]), Some(&whole.digest)).unwrap();
        assert_eq!((marks(delta), summary.unchanged), (vec!["-/a/2".into(), "+/a/3".into()], 1));
        // The part says nothing about the rest.
        let again = listing(&[("/a/1", 1), ("/a/3", 1), ("/b", 1)]);
        let digest = summary.digest;
        assert!(!listings.answer(again, starts(&["/"]), Some(&digest)).unwrap().1.delta);
    }

    #[test]
    fn an_unknown_base_gives_the_whole_listing() {
        let mut listings = Listings::default();
        let (bytes, summary) = listings.answer(listing(&[("/a", 1)]), starts(&["/"]), Some(&[9; 32])).unwrap();
        assert!(!summary.delta && !bytes.is_empty());
        let (bytes, again) = listings.answer(listing(&[("/a", 1)]), starts(&["/"]), Some(&summary.digest)).unwrap();
        assert!(again.delta && bytes.is_empty() && again.unchanged == 1);
    }

    #[test]
    fn only_the_latest_listings_are_held() {
        let mut listings = Listings::default();
        let mut answer = |content: u8, base: Option<&[u8]>| {
            let (_, summary) = listings.answer(listing(&[("/a", content)]), starts(&["/"]), base).unwrap();
            assert!(listings.held.len() <= HELD_MAX);
            summary
        };
        let oldest = answer(0, None);
        for content in 1..=3 {
            answer(content, None);
        }
        assert!(answer(4, Some(&oldest.digest)).delta);
        assert!(!answer(5, Some(&oldest.digest)).delta);
    }
}
