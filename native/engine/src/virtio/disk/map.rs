//! Which clusters a layer has: two bits each, so that a disk of 10 GiB needs 640 KiB. The map can be kept in a file, in
//! pages of which only the changed ones are written.

use super::layer::DiskError;

const CLUSTERS_A_WORD: u64 = 32;
/// The unit in which a map is written to its file.
pub(super) const MAP_PAGE_BYTES: usize = 4096;
const WORDS_A_PAGE: usize = MAP_PAGE_BYTES / size_of::<u64>();
/// The low bit of each pair.
const LOW_BITS: u64 = 0x5555_5555_5555_5555;

/// What a layer says about a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cluster {
    /// Nothing: the layer below has it.
    Absent = 0,
    /// It is in the file of the layer.
    Data = 1,
    /// It reads as zeros.
    Zero = 2,
}

/// The clusters of one layer.
pub(super) struct ClusterMap {
    words: Vec<u64>,
    clusters: u64,
    /// Pages that differ from the file; empty for a map that is never written.
    changed: Vec<bool>,
}

impl ClusterMap {
    /// Everything is absent, as in a file of zeros. `kept` says whether changes shall be noted.
    pub(super) fn new(clusters: u64, kept: bool) -> Self {
        let words = clusters.div_ceil(CLUSTERS_A_WORD) as usize;
        let pages = if kept { words.div_ceil(WORDS_A_PAGE) } else { 0 };
        Self { words: vec![0; words], clusters, changed: vec![false; pages] }
    }

    /// Reads a map that anyone may have written.
    pub(super) fn from_bytes(clusters: u64, bytes: &[u8]) -> Result<Self, DiskError> {
        let mut map = Self::new(clusters, true);
        let (words, rest) = bytes.as_chunks::<8>();
        if words.len() < map.words.len() || !rest.is_empty() {
            return Err(DiskError::Layer("the map is cut short"));
        }
        for (word, bytes) in map.words.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
            if *word & *word >> 1 & LOW_BITS != 0 {
                return Err(DiskError::Layer("the map has an unknown value"));
            }
        }
        let beyond = map.words.len() as u64 * CLUSTERS_A_WORD - clusters;
        if beyond > 0 && map.words.last().is_some_and(|word| word >> (2 * (CLUSTERS_A_WORD - beyond)) != 0) {
            return Err(DiskError::Layer("the map goes beyond the disk"));
        }
        Ok(map)
    }

    /// Room that the map needs in a file.
    pub(super) fn file_bytes(clusters: u64) -> u64 {
        clusters.div_ceil(CLUSTERS_A_WORD * WORDS_A_PAGE as u64) * MAP_PAGE_BYTES as u64
    }

    pub(super) fn get(&self, cluster: u64) -> Cluster {
        let word = self.words[(cluster / CLUSTERS_A_WORD) as usize];
        match word >> (2 * (cluster % CLUSTERS_A_WORD)) & 3 {
            0 => Cluster::Absent,
            1 => Cluster::Data,
            _ => Cluster::Zero,
        }
    }

    pub(super) fn set(&mut self, clusters: std::ops::Range<u64>, value: Cluster) {
        for cluster in clusters {
            let index = (cluster / CLUSTERS_A_WORD) as usize;
            let shift = 2 * (cluster % CLUSTERS_A_WORD);
            let word = self.words[index] & !(3 << shift) | (value as u64) << shift;
            if word != self.words[index] {
                self.words[index] = word;
                if let Some(changed) = self.changed.get_mut(index / WORDS_A_PAGE) {
                    *changed = true;
                }
            }
        }
    }

    /// How many clusters are not absent.
    pub(super) fn present(&self) -> u64 {
        self.words.iter().map(|word| u64::from(((word | word >> 1) & LOW_BITS).count_ones())).sum()
    }

    /// All clusters of a value that is not absent, in runs.
    pub(super) fn runs(&self, value: Cluster) -> impl Iterator<Item = std::ops::Range<u64>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let begin = self.next_present(next, value)?;
            let end = (begin..self.clusters).find(|cluster| self.get(*cluster) != value).unwrap_or(self.clusters);
            next = end;
            Some(begin..end)
        })
    }

    /// The next cluster of a value that is not absent, passing over words without any.
    fn next_present(&self, from: u64, value: Cluster) -> Option<u64> {
        let mut cluster = from;
        while cluster < self.clusters {
            if self.words[(cluster / CLUSTERS_A_WORD) as usize] == 0 {
                cluster = (cluster / CLUSTERS_A_WORD + 1) * CLUSTERS_A_WORD;
            } else if self.get(cluster) == value {
                return Some(cluster);
            } else {
                cluster += 1;
            }
        }
        None
    }

    /// Takes the changed pages: where each belongs in the map's room, and its bytes.
    pub(super) fn take_changed(&mut self) -> Vec<(u64, Vec<u8>)> {
        let mut pages = Vec::new();
        for (page, changed) in self.changed.iter_mut().enumerate() {
            if std::mem::take(changed) {
                let begin = page * WORDS_A_PAGE;
                let words = &self.words[begin..self.words.len().min(begin + WORDS_A_PAGE)];
                let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                bytes.resize(MAP_PAGE_BYTES, 0);
                pages.push(((page * MAP_PAGE_BYTES) as u64, bytes));
            }
        }
        pages
    }

    /// A page that was taken is to be written again, by where it belongs.
    pub(super) fn change_again(&mut self, offset: u64) {
        self.changed[offset as usize / MAP_PAGE_BYTES] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_and_counted() {
        let mut map = ClusterMap::new(1000, true);
        map.set(10..50, Cluster::Data);
        map.set(40..60, Cluster::Zero);
        map.set(20..30, Cluster::Absent);
        assert_eq!(
            (map.get(9), map.get(10), map.get(45), map.get(25)),
            (Cluster::Absent, Cluster::Data, Cluster::Zero, Cluster::Absent)
        );
        assert_eq!(map.present(), 40);
        assert_eq!(map.runs(Cluster::Data).collect::<Vec<_>>(), [10..20, 30..40]);
        assert!(map.runs(Cluster::Zero).eq(std::iter::once(40..60)));
    }

    #[test]
    fn only_changed_pages_are_written_and_they_bring_the_map_back() {
        let clusters = 16384 * 3 + 5;
        let mut map = ClusterMap::new(clusters, true);
        assert!(map.take_changed().is_empty(), "a new map is what a new file has");
        map.set(clusters - 1..clusters, Cluster::Data);
        map.set(3..4, Cluster::Zero);
        let pages = map.take_changed();
        assert_eq!(pages.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [0, 3 * 4096]);
        assert!(map.take_changed().is_empty());
        map.change_again(3 * 4096);
        assert_eq!(map.take_changed(), pages[1..], "one that could not be written");
        let mut file = vec![0; ClusterMap::file_bytes(clusters) as usize];
        for (offset, bytes) in pages {
            file[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let back = ClusterMap::from_bytes(clusters, &file).expect("a map");
        assert_eq!((back.get(3), back.get(clusters - 1), back.present()), (Cluster::Zero, Cluster::Data, 2));
    }

    #[test]
    fn maps_that_cannot_be_are_refused() {
        assert!(ClusterMap::from_bytes(100, &[0; 24]).is_err(), "too short");
        assert!(ClusterMap::from_bytes(64, &[0xFF; 16]).is_err(), "both bits");
        assert!(ClusterMap::from_bytes(33, &[0x55; 16]).is_err(), "clusters beyond the disk");
        assert!(ClusterMap::from_bytes(64, &[0x55; 16]).is_ok());
    }
}
