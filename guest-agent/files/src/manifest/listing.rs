//! From a walked forest to a listing in byte order of paths, its digest, and deltas between listings.

use super::tree::{DirectoryId, Forest};
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
    pub bytes: Vec<u8>,
    pub entries: u64,
    pub files: u64,
}

/// Encodes `forest`. Error `LIMIT` when the listing would be longer than `listing_max` bytes.
pub fn assemble(forest: &Forest, listing_max: u64) -> Result<Listing, Fault> {
    let mut listing = Listing::default();
    let mut starts: Vec<_> = forest.starts.iter().collect();
    starts.sort_by(|left, right| left.path.cmp(&right.path));
    for start in starts {
        let entry = Entry {
            path: &start.path,
            kind: EntryKind::Directory,
            fingerprint: &[],
            size: 0,
            mode: start.mode.into(),
            uid: start.uid,
            gid: start.gid,
        };
        listing.push(&entry);
        let root: &[u8] = if start.path == b"/" { b"" } else { &start.path };
        listing.push_content(forest, start.content, root.to_vec(), listing_max)?;
    }
    Ok(listing)
}

impl Listing {
    fn push(&mut self, entry: &Entry<'_>) {
        entry.encode(&mut self.bytes);
        self.entries += 1;
        self.files += u64::from(entry.kind == EntryKind::Regular);
    }

    fn push_content(&mut self, forest: &Forest, top: DirectoryId, mut path: Vec<u8>, max: u64) -> Result<(), Fault> {
        let open = |id: DirectoryId, length| {
            let directory = &forest.directories[id as usize];
            (directory, directory.order().into_iter(), length)
        };
        let mut stack = vec![open(top, path.len())];
        while let Some((directory, order, length)) = stack.last_mut() {
            path.truncate(*length);
            let Some((index, content)) = order.next() else {
                stack.pop();
                continue;
            };
            let record = &directory.records[index as usize];
            path.push(b'/');
            path.extend_from_slice(directory.names.bytes(record.name));
            if content {
                let inside = record.inside.expect("only directories that were entered have content");
                let length = path.len();
                stack.push(open(inside, length));
                continue;
            }
            self.push(&Entry {
                path: &path,
                kind: record.kind,
                fingerprint: record.fingerprint.bytes(),
                size: record.size,
                mode: record.mode.into(),
                uid: record.uid,
                gid: record.gid,
            });
            if self.bytes.len() as u64 > max {
                return Err(too_long(max));
            }
        }
        Ok(())
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
            (self.delta, summary.unchanged) = difference(&base.bytes, &listing.bytes, &starts)?;
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
fn difference(old: &[u8], new: &[u8], starts: &[CheckedPath]) -> Result<(Vec<u8>, u64), Fault> {
    let mut delta = Vec::new();
    let mut unchanged = 0;
    let starts: Vec<Vec<u8>> = starts.iter().map(CheckedPath::absolute).collect();
    let mut olds = Items::new(old);
    let mut news = Items::new(new);
    let (mut was, mut is) = (next_within(&mut olds, &starts)?, next(&mut news)?);
    loop {
        let order = match (&was, &is) {
            (None, None) => return Ok((delta, unchanged)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.path.cmp(new.path),
        };
        let before = was.as_ref().filter(|_| order != Ordering::Greater);
        let now = is.as_ref().filter(|_| order != Ordering::Less);
        if let (Some(before), Some(now)) = (before, now) {
            unchanged += u64::from(has_same_content(before, now));
        }
        if let Some(either) = now.or(before).filter(|_| now != before) {
            encode_difference(either.path, now, before, &mut delta);
        }
        if order != Ordering::Greater {
            was = next_within(&mut olds, &starts)?;
        }
        if order != Ordering::Less {
            is = next(&mut news)?;
        }
    }
}

fn has_same_content(before: &Entry<'_>, now: &Entry<'_>) -> bool {
    let regular = before.kind == EntryKind::Regular && now.kind == EntryKind::Regular;
    regular && before.fingerprint == now.fingerprint
}

fn next<'a>(items: &mut Items<'a>) -> Result<Option<Entry<'a>>, Fault> {
    match items.next().transpose()? {
        Some((Item::Present(entry), _)) => Ok(Some(entry)),
        Some((Item::Different { .. }, _)) => Err(Fault::new(ErrorCode::Internal, "a listing with a difference in it")),
        None => Ok(None),
    }
}

/// The next entry at or below one of `starts`.
fn next_within<'a>(items: &mut Items<'a>, starts: &[Vec<u8>]) -> Result<Option<Entry<'a>>, Fault> {
    loop {
        let entry = next(items)?;
        if entry.is_none_or(|entry| starts.iter().any(|start| is_within(entry.path, start))) {
            return Ok(entry);
        }
    }
}

fn is_within(path: &[u8], start: &[u8]) -> bool {
    start == b"/" || path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(files: &[(&str, u8)]) -> Listing {
        let mut listing = Listing::default();
        for (path, content) in files {
            let fingerprint = [*content; 32];
            listing.push(&Entry {
                path: path.as_bytes(),
                kind: EntryKind::Regular,
                fingerprint: &fingerprint,
                size: 1,
                mode: 0o644,
                uid: 0,
                gid: 0,
            });
        }
        listing
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
        let mut second = Listing::default();
        second.push(&entry);
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
