//! Fingerprints of files by their metadata, so that a file is read again only when it may have changed.

use rustix::fs::{Statx, StatxTimestamp};
use std::collections::HashMap;
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
    modified: (i64, u32),
    changed: (i64, u32),
}

impl Stamp {
    pub fn of(stat: &Statx) -> Self {
        let time = |time: StatxTimestamp| (time.tv_sec, time.tv_nsec);
        Self { size: stat.stx_size, modified: time(stat.stx_mtime), changed: time(stat.stx_ctime) }
    }

    /// Whether a write after `taken_ns` (real time) would give a different stamp: the racy rule.
    pub fn is_settled_before(&self, taken_ns: i128) -> bool {
        [self.modified, self.changed].into_iter().all(|(seconds, nanoseconds)| {
            let granularity = if nanoseconds == 0 { WHOLE_SECONDS_NS } else { TICK_NS };
            i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds) + granularity < taken_ns
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

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    fingerprint: Sha256,
    /// The latest walk that used this.
    generation: AtomicU32,
}

#[derive(Debug, Default)]
pub struct Cache {
    known: HashMap<FileId, Known>,
    generation: AtomicU32,
}

impl Cache {
    /// Begins a walk.
    pub fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Whether anything is remembered about `file`, current or not.
    pub fn has(&self, file: FileId) -> bool {
        self.known.contains_key(&file)
    }

    /// The fingerprint of `file` if its metadata is still `stamp`.
    pub fn fingerprint(&self, file: FileId, stamp: &Stamp, generation: u32) -> Option<Sha256> {
        let known = self.known.get(&file).filter(|known| known.stamp == *stamp)?;
        known.generation.store(generation, Ordering::Relaxed);
        Some(known.fingerprint)
    }

    /// Takes in what the walk `generation` has learned.
    pub fn learn(&mut self, learned: Vec<Learned>, generation: u32) {
        self.known.reserve(learned.len().min(FILES_MAX));
        for Learned { file, stamp, fingerprint } in learned {
            self.known.insert(file, Known { stamp, fingerprint, generation: generation.into() });
        }
        if self.known.len() > FILES_MAX {
            self.known.retain(|_, known| *known.generation.get_mut() == generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    fn stamp(modified: (i64, u32), changed: (i64, u32)) -> Stamp {
        Stamp { size: 1, modified, changed }
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
        let file = FileId { device: 1, inode: 2 };
        let known = stamp((5, 1), (5, 1));
        let mut cache = Cache::default();
        cache.learn(vec![Learned { file, stamp: known, fingerprint: [7; 32] }], cache.next_generation());
        let now = cache.next_generation();
        assert_eq!(cache.fingerprint(file, &known, now), Some([7; 32]));
        assert_eq!(cache.fingerprint(file, &stamp((5, 1), (5, 2)), now), None);
        assert_eq!(cache.fingerprint(file, &Stamp { size: 2, ..known }, now), None);
        assert_eq!(cache.fingerprint(FileId { device: 2, inode: 2 }, &known, now), None);
    }

    #[test]
    fn what_was_not_seen_goes_when_there_is_too_much() {
        let learned =
            |inode| Learned { file: FileId { device: 1, inode }, stamp: stamp((5, 1), (5, 1)), fingerprint: [0; 32] };
        let mut cache = Cache::default();
        cache.learn(vec![learned(u64::MAX)], 1);
        cache.learn((0..FILES_MAX as u64).map(learned).collect(), 2);
        assert_eq!(cache.known.len(), FILES_MAX);
        assert!(!cache.has(FileId { device: 1, inode: u64::MAX }));
    }
}
