//! Fingerprints of files by their metadata, so that a file is read again only when it may have changed.

use rustix::fs::Statx;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, Ordering};

pub type Sha256 = [u8; 32];

/// Files remembered. Beyond it those not seen by the latest walk are forgotten.
const FILES_MAX: usize = 500_000;
/// How long before a fingerprint was taken a timestamp must lie to be trusted: twice the slowest kernel tick.
const TICK_NS: i128 = 20_000_000;
/// The same for a file system that keeps whole seconds (old ext4 inodes) or every other second.
const WHOLE_SECONDS_NS: i128 = 2_000_000_000;

/// Which file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

/// What moves when a file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    size: u64,
    /// Of the last modification and the last change.
    seconds: [i64; 2],
    nanoseconds: [u32; 2],
}

impl Stamp {
    pub fn of(stat: &Statx) -> Self {
        let (modified, changed) = (stat.stx_mtime, stat.stx_ctime);
        Self {
            size: stat.stx_size,
            seconds: [modified.tv_sec, changed.tv_sec],
            nanoseconds: [modified.tv_nsec, changed.tv_nsec],
        }
    }

    /// Whether a write after `taken_ns` (real time) would give a different stamp: the racy rule.
    pub fn is_settled_before(&self, taken_ns: i128) -> bool {
        self.seconds.iter().zip(self.nanoseconds).all(|(seconds, nanoseconds)| {
            let granularity = if nanoseconds == 0 { WHOLE_SECONDS_NS } else { TICK_NS };
            i128::from(*seconds) * 1_000_000_000 + i128::from(nanoseconds) + granularity < taken_ns
        })
    }
}

/// A fingerprint that a walk has taken and that may be trusted next time.
#[derive(Clone, Copy, Debug)]
pub struct Learned {
    pub file: FileId,
    pub stamp: Stamp,
    pub fingerprint: Sha256,
}

/// A fingerprint of an earlier walk.
#[derive(Debug)]
pub struct Known {
    learned: Learned,
    /// The latest walk that used this.
    generation: AtomicU32,
}

impl Known {
    /// The fingerprint, if the file's metadata is still `stamp`.
    pub fn fingerprint(&self, stamp: &Stamp, generation: u32) -> Option<Sha256> {
        if self.learned.stamp != *stamp {
            return None;
        }
        self.generation.store(generation, Ordering::Relaxed);
        Some(self.learned.fingerprint)
    }
}

/// Where a walker expects the next file: walks mostly meet files in the order in which they were learned, and
/// following that order costs far less than looking each one up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    next: usize,
}

#[derive(Debug, Default)]
pub struct Cache {
    /// In the order in which they were learned.
    known: Vec<Known>,
    places: HashMap<FileId, u32>,
    generation: AtomicU32,
}

impl Cache {
    /// Begins a walk.
    pub fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// What is remembered about `file`, current or not.
    pub fn find(&self, file: FileId, cursor: &mut Cursor) -> Option<&Known> {
        let place = match self.known.get(cursor.next) {
            Some(expected) if expected.learned.file == file => cursor.next,
            _ => *self.places.get(&file)? as usize,
        };
        cursor.next = place + 1;
        self.known.get(place)
    }

    /// Takes in what the walk `generation` has learned.
    pub fn learn(&mut self, learned: Vec<Vec<Learned>>, generation: u32) {
        let count = learned.iter().map(Vec::len).sum();
        self.known.reserve(count);
        self.places.reserve(count);
        for learned in learned.into_iter().flatten() {
            let known = Known { learned, generation: generation.into() };
            match self.places.entry(learned.file) {
                Entry::Occupied(place) => self.known[*place.get() as usize] = known,
                Entry::Vacant(place) => {
                    place.insert(self.known.len() as u32);
                    self.known.push(known);
                }
            }
        }
        if self.known.len() > FILES_MAX {
            self.known.retain_mut(|known| *known.generation.get_mut() == generation);
            let files = self.known.iter().map(|known| known.learned.file);
            self.places = files.zip(0..).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    fn stamp(modified: (i64, u32), changed: (i64, u32)) -> Stamp {
        Stamp { size: 1, seconds: [modified.0, changed.0], nanoseconds: [modified.1, changed.1] }
    }

    fn id(inode: u64) -> FileId {
        FileId { device: 1, inode }
    }

    fn learned(inode: u64) -> Learned {
        Learned { file: id(inode), stamp: stamp((5, 1), (5, 1)), fingerprint: [inode as u8; 32] }
    }

    #[test]
    fn a_recent_timestamp_is_not_trusted() {
        let taken = 1000 * SECOND;
        assert!(stamp((999, 1), (999, 1)).is_settled_before(taken));
        assert!(!stamp((999, 990_000_000), (999, 1)).is_settled_before(taken), "modified within a tick");
        assert!(!stamp((999, 1), (999, 990_000_000)).is_settled_before(taken), "changed within a tick");
        assert!(!stamp((999, 0), (999, 1)).is_settled_before(taken), "whole seconds are coarse");
        assert!(stamp((997, 0), (997, 0)).is_settled_before(taken));
        assert!(!stamp((2000, 5), (5, 5)).is_settled_before(taken), "the future is never settled");
    }

    #[test]
    fn only_the_same_stamp_is_a_hit() {
        let mut cache = Cache::default();
        cache.learn(vec![vec![learned(2)]], 1);
        let known = cache.find(id(2), &mut Cursor::default()).unwrap();
        assert_eq!(known.fingerprint(&stamp((5, 1), (5, 1)), 2), Some([2; 32]));
        assert_eq!(known.fingerprint(&stamp((5, 1), (5, 2)), 2), None);
        assert_eq!(known.fingerprint(&Stamp { size: 2, ..stamp((5, 1), (5, 1)) }, 2), None);
        assert!(cache.find(FileId { device: 2, inode: 2 }, &mut Cursor::default()).is_none());
    }

    #[test]
    fn files_are_found_in_any_order() {
        let mut cache = Cache::default();
        cache.learn(vec![(0..7).map(learned).collect(), (7..10).map(learned).collect()], 1);
        cache.learn(vec![vec![Learned { fingerprint: [99; 32], ..learned(4) }]], 2);
        let mut cursor = Cursor::default();
        for inode in [0, 1, 7, 8, 9, 3, 4, 0] {
            let expected = if inode == 4 { 99 } else { inode as u8 };
            let known = cache.find(id(inode), &mut cursor).unwrap();
            assert_eq!(known.fingerprint(&stamp((5, 1), (5, 1)), 3), Some([expected; 32]));
        }
        assert!(cache.find(id(10), &mut cursor).is_none());
    }

    #[test]
    fn what_was_not_seen_goes_when_there_is_too_much() {
        let mut cache = Cache::default();
        cache.learn(vec![vec![learned(u64::MAX), learned(5)]], 1);
        cache.find(id(5), &mut Cursor::default()).unwrap().fingerprint(&stamp((5, 1), (5, 1)), 2);
        cache.learn(vec![(10..10 + FILES_MAX as u64).map(learned).collect()], 2);
        assert_eq!(cache.known.len(), FILES_MAX + 1);
        assert!(cache.find(id(u64::MAX), &mut Cursor::default()).is_none());
        assert!(cache.find(id(5), &mut Cursor::default()).is_some());
        let last = cache.find(id(9 + FILES_MAX as u64), &mut Cursor::default()).unwrap();
        assert_eq!(last.learned.file, id(9 + FILES_MAX as u64));
    }
}
