//! What a walk has found, compactly: per directory one block of names and one record an entry.

use super::cache::Sha256;
use std::ffi::CStr;
use wire::entry::EntryKind;

#[derive(Clone, Debug)]
pub enum Fingerprint {
    None,
    Sha256(Sha256),
    Target(Box<[u8]>),
}

impl Fingerprint {
    pub fn bytes(&self) -> &[u8] {
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
    pub start: u32,
    pub length: u16,
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
    /// The directory's own content, when the walk went into it.
    pub inside: Option<DirectoryId>,
}

pub type DirectoryId = u32;

#[derive(Debug, Default)]
pub struct Directory {
    pub names: std::sync::Arc<Names>,
    pub records: Vec<Record>,
}

impl Directory {
    /// The order in which a listing has this directory's parts: all entries by name, and after a directory
    /// whatever sorts between it and its content (`a`, `a-b`, `a/x`). `true` stands for the content.
    pub fn order(&self) -> Vec<(u32, bool)> {
        let name = |index: u32| self.names.bytes(self.records[index as usize].name);
        let mut order: Vec<(u32, bool)> = (0..self.records.len() as u32).map(|index| (index, false)).collect();
        let inner = (0..self.records.len() as u32).filter(|index| self.records[*index as usize].inside.is_some());
        order.extend(inner.map(|index| (index, true)));
        if order.len() == self.records.len() {
            order.sort_unstable_by(|(left, _), (right, _)| name(*left).cmp(name(*right)));
        } else {
            let key = |(index, content): (u32, bool)| name(index).iter().chain(content.then_some(&b'/'));
            order.sort_unstable_by(|left, right| key(*left).cmp(key(*right)));
        }
        // A directory that changes while it is read may show a name twice.
        order.dedup_by(|left, right| left.1 == right.1 && name(left.0) == name(right.0));
        order
    }
}

/// One starting point.
#[derive(Debug)]
pub struct Start {
    /// Its absolute path.
    pub path: Vec<u8>,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub content: DirectoryId,
}

#[derive(Debug, Default)]
pub struct Forest {
    pub starts: Vec<Start>,
    pub directories: Vec<Directory>,
}
