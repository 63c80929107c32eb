//! What `stat`, `list` and `watch` send: one msgpack array for each name or change.

use crate::entry::{EntryKind, put_bin, put_int};

/// One name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntry<'a> {
    /// Absolute path.
    pub path: &'a [u8],
    pub kind: EntryKind,
    /// Bytes of a regular file, else 0.
    pub size: u64,
    /// Permission and set-id bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Milliseconds since 1970, 0 for what is older.
    pub modified_ms: u64,
    /// Target of a symbolic link, else empty.
    pub target: &'a [u8],
}

impl FileEntry<'_> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(0x98);
        put_bin(out, self.path);
        put_int(out, self.kind as u64);
        put_int(out, self.size);
        put_int(out, self.mode.into());
        put_int(out, self.uid.into());
        put_int(out, self.gid.into());
        put_int(out, self.modified_ms);
        put_bin(out, self.target);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChangeKind {
    Created = 0,
    Modified = 1,
    Removed = 2,
    /// `path` is the old name.
    Renamed = 3,
    /// Changes were lost; what is watched is complete again. Without a path.
    Overflow = 4,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub kind: ChangeKind,
    /// Absolute path.
    pub path: Vec<u8>,
    /// New name, else empty.
    pub renamed_to: Vec<u8>,
}

impl Change {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(0x93);
        put_int(out, self.kind as u64);
        put_bin(out, &self.path);
        put_bin(out, &self.renamed_to);
    }
}
