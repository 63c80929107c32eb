//! From a walked forest to a listing in byte order of paths, its digest, and deltas between listings.

use super::tree::{DirectoryId, Forest};
use sha2::{Digest, Sha256};
use std::cmp::Ordering;
use std::collections::VecDeque;
use wire::entry::{Entry, EntryKind, Item, Items, encode_vanished};
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
    bytes: Vec<u8>,
}

/// The latest listings, newest first.
#[derive(Debug, Default)]
pub struct Listings {
    held: VecDeque<Held>,
    delta: Vec<u8>,
}

impl Listings {
    /// Takes `listing` in and gives the bytes to send: a delta against `base` when that is held, else all of it.
    pub fn answer(&mut self, listing: Listing, base: Option<&[u8]>) -> Result<(&[u8], Summary), Fault> {
        let digest = Sha256::digest(&listing.bytes).into();
        let mut summary =
            Summary { digest, entries: listing.entries, files: listing.files, delta: false, unchanged: 0 };
        self.delta = Vec::new();
        if let Some(base) = self.held.iter().find(|held| Some(held.digest.as_slice()) == base) {
            summary.delta = true;
            (self.delta, summary.unchanged) = difference(&base.bytes, &listing.bytes)?;
        }
        self.hold(Held { digest, bytes: listing.bytes });
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

/// The entries of `new` that differ from `old`, those that vanished, and how many regular files are the same.
fn difference(old: &[u8], new: &[u8]) -> Result<(Vec<u8>, u64), Fault> {
    let mut delta = Vec::new();
    let mut unchanged = 0;
    let mut olds = Items::new(old);
    let mut news = Items::new(new);
    let (mut was, mut is) = (next(&mut olds)?, next(&mut news)?);
    loop {
        let order = match (&was, &is) {
            (None, None) => return Ok((delta, unchanged)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((old, _)), Some((new, _))) => old.path.cmp(new.path),
        };
        match (order, was, is) {
            (Ordering::Less, Some((old, _)), _) => encode_vanished(old.path, &mut delta),
            (Ordering::Greater, _, Some((_, bytes))) => delta.extend_from_slice(bytes),
            (_, Some((_, before)), Some((entry, after))) => {
                if before == after {
                    unchanged += u64::from(entry.kind == EntryKind::Regular);
                } else {
                    delta.extend_from_slice(after);
                }
            }
            _ => unreachable!("the order follows from which items are there"),
        }
        if order != Ordering::Greater {
            was = next(&mut olds)?;
        }
        if order != Ordering::Less {
            is = next(&mut news)?;
        }
    }
}

fn next<'a>(items: &mut Items<'a>) -> Result<Option<(Entry<'a>, &'a [u8])>, Fault> {
    match items.next().transpose()? {
        Some((Item::Present(entry), bytes)) => Ok(Some((entry, bytes))),
        Some((Item::Vanished(_), _)) => Err(Fault::new(ErrorCode::Internal, "a listing with a vanished entry")),
        None => Ok(None),
    }
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

    #[test]
    fn a_delta_holds_what_changed_came_and_went() {
        let mut listings = Listings::default();
        let (_, first) = listings.answer(listing(&[("/a", 1), ("/b", 1), ("/d", 1), ("/e", 1)]), None).unwrap();
        assert!(!first.delta);
        let second = listing(&[("/a", 1), ("/b", 2), ("/c", 1), ("/e", 1)]);
        let (delta, summary) = listings.answer(second, Some(&first.digest)).unwrap();
        let paths: Vec<String> = Items::new(delta)
            .map(|item| match item.unwrap().0 {
                Item::Present(entry) => format!("+{}", entry.path.escape_ascii()),
                Item::Vanished(path) => format!("-{}", path.escape_ascii()),
            })
            .collect();
        assert_eq!(paths, ["+/b", "+/c", "-/d"]);
        assert_eq!((summary.delta, summary.unchanged, summary.entries), (true, 2, 4));
    }

    #[test]
    fn an_unknown_base_gives_the_whole_listing() {
        let mut listings = Listings::default();
        let (bytes, summary) = listings.answer(listing(&[("/a", 1)]), Some(&[9; 32])).unwrap();
        assert!(!summary.delta && !bytes.is_empty());
        let (bytes, again) = listings.answer(listing(&[("/a", 1)]), Some(&summary.digest)).unwrap();
        assert!(again.delta && bytes.is_empty() && again.unchanged == 1);
    }

    #[test]
    fn only_the_latest_listings_are_held() {
        let mut listings = Listings::default();
        let (_, oldest) = listings.answer(listing(&[("/a", 0)]), None).unwrap();
        for content in 1..=3 {
            listings.answer(listing(&[("/a", content)]), None).unwrap();
        }
        assert_eq!(listings.held.len(), HELD_MAX);
        assert!(listings.answer(listing(&[("/a", 4)]), Some(&oldest.digest)).unwrap().1.delta);
        assert!(!listings.answer(listing(&[("/a", 5)]), Some(&oldest.digest)).unwrap().1.delta);
    }
}
