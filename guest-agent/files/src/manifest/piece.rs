//! The part of a listing that one directory's entries make up: encoded by the walker that saw them last, and cut
//! where the contents of its subdirectories belong.

use super::cache::Sha256;
use std::ffi::CStr;
use wire::entry::{Entry, EntryKind};

/// Bytes after which a boundary between two entries is marked.
const MARK_SPACING: usize = 4 << 10;

#[derive(Clone, Debug)]
pub enum Fingerprint {
    None,
    Sha256(Sha256),
    Target(Box<[u8]>),
}

impl Fingerprint {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Sha256(digest) => digest,
            Self::Target(target) => target,
        }
    }
}

/// Where a name lies in its block; a NUL follows it there.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    start: u32,
    length: u16,
}

/// Names of one directory.
#[derive(Debug, Default)]
pub struct Names {
    block: Vec<u8>,
}

impl Names {
    pub fn push(&mut self, name: &CStr) -> Name {
        let bytes = name.to_bytes_with_nul();
        let start = self.block.len() as u32;
        self.block.extend_from_slice(bytes);
        Name { start, length: (bytes.len() - 1) as u16 }
    }

    pub fn bytes(&self, name: Name) -> &[u8] {
        &self.block[name.start as usize..][..name.length.into()]
    }

    pub fn c_str(&self, name: Name) -> &CStr {
        let with_nul = &self.block[name.start as usize..][..usize::from(name.length) + 1];
        CStr::from_bytes_with_nul(with_nul).expect("names are stored with their NUL")
    }
}

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct Record {
    pub name: Name,
    pub kind: EntryKind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub fingerprint: Fingerprint,
    /// The directory's own content, when the walk goes into it.
    pub inside: Option<DirectoryId>,
}

pub type DirectoryId = u32;

/// Encoded entries of one directory, in the order of a listing.
#[derive(Debug, Default)]
pub struct Piece {
    pub bytes: Vec<u8>,
    /// Where the content of which subdirectory goes, ascending.
    pub cuts: Vec<(usize, DirectoryId)>,
    /// Some boundaries between entries, ascending.
    pub marks: Vec<usize>,
    pub entries: u64,
    pub files: u64,
}

impl Piece {
    /// Encodes `records` as the entries of the directory with the absolute `path`.
    pub fn encode(path: &[u8], names: &Names, records: &[Record]) -> Self {
        let mut piece = Self { bytes: Vec::with_capacity(records.len() * 80), ..Self::default() };
        let mut path = if path == b"/" { Vec::new() } else { path.to_vec() };
        path.push(b'/');
        let directory_length = path.len();
        let mut marked = 0;
        for (index, content) in order(names, records) {
            let record = &records[index as usize];
            if content {
                piece.cuts.push((piece.bytes.len(), record.inside.expect("content comes from inside")));
                continue;
            }
            path.truncate(directory_length);
            path.extend_from_slice(names.bytes(record.name));
            piece.push(&Entry {
                path: &path,
                kind: record.kind,
                fingerprint: record.fingerprint.bytes(),
                size: record.size,
                mode: record.mode.into(),
                uid: record.uid,
                gid: record.gid,
            });
            if piece.bytes.len() - marked >= MARK_SPACING {
                marked = piece.bytes.len();
                piece.marks.push(marked);
            }
        }
        piece
    }

    pub fn push(&mut self, entry: &Entry<'_>) {
        entry.encode(&mut self.bytes);
        self.entries += 1;
        self.files += u64::from(entry.kind == EntryKind::Regular);
    }
}

/// The order in which a listing has a directory's parts: all entries by name, and after a directory whatever sorts
/// between it and its content (`a`, `a-b`, `a/x`). `true` stands for the content.
fn order(names: &Names, records: &[Record]) -> Vec<(u32, bool)> {
    let name = |index: u32| names.bytes(records[index as usize].name);
    let mut order: Vec<(u32, bool)> = (0..records.len() as u32).map(|index| (index, false)).collect();
    let inner = (0..records.len() as u32).filter(|index| records[*index as usize].inside.is_some());
    order.extend(inner.map(|index| (index, true)));
    if order.len() == records.len() {
        order.sort_unstable_by(|(left, _), (right, _)| name(*left).cmp(name(*right)));
    } else {
        let key = |(index, content): (u32, bool)| name(index).iter().chain(content.then_some(&b'/'));
        order.sort_unstable_by(|left, right| key(*left).cmp(key(*right)));
    }
    // A directory that changes while it is read may show a name twice.
    order.dedup_by(|left, right| left.1 == right.1 && name(left.0) == name(right.0));
    order
}
