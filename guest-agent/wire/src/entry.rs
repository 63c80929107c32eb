//! Manifest entries: one msgpack array each, written and read by hand because a listing has hundreds of
//! thousands of them.

use crate::fault::Fault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    Regular = 0,
    Directory = 1,
    Symlink = 2,
    Other = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub path: &'a [u8],
    pub kind: EntryKind,
    /// SHA-256 of a regular file (empty when unreadable), target of a symbolic link, otherwise empty.
    pub fingerprint: &'a [u8],
    /// Bytes; 0 for directories.
    pub size: u64,
    /// Permission and set-id bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Entry<'_> {
    /// Appends the entry to a listing.
    pub fn encode(&self, listing: &mut Vec<u8>) {
        listing.push(0x97);
        put_bin(listing, self.path);
        self.encode_state(listing);
    }

    fn encode_state(&self, out: &mut Vec<u8>) {
        put_int(out, self.kind as u64);
        put_bin(out, self.fingerprint);
        put_int(out, self.size);
        put_int(out, self.mode.into());
        put_int(out, self.uid.into());
        put_int(out, self.gid.into());
    }
}

/// Appends how one path differs to a delta: what it is now and what it was before, `None` where it is not there.
pub fn encode_difference(path: &[u8], now: Option<&Entry<'_>>, before: Option<&Entry<'_>>, delta: &mut Vec<u8>) {
    delta.push(0x93);
    put_bin(delta, path);
    for side in [now, before] {
        match side {
            Some(entry) => {
                delta.push(0x96);
                entry.encode_state(delta);
            }
            None => delta.push(0xc0),
        }
    }
}

/// One item of a listing or a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    Present(Entry<'a>),
    Different { path: &'a [u8], now: Option<Entry<'a>>, before: Option<Entry<'a>> },
}

/// Reads a listing or a delta item by item, each with the bytes that encode it.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    rest: &'a [u8],
}

impl<'a> Items<'a> {
    pub fn new(listing: &'a [u8]) -> Self {
        Self { rest: listing }
    }

    /// The bytes not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Leaves out the next `size` bytes, which must be whole items.
    pub fn skip(&mut self, size: usize) {
        self.rest = &self.rest[size..];
    }

    fn item(&mut self) -> Option<Item<'a>> {
        match self.byte()? {
            0x93 => {
                let path = self.bin()?;
                let (now, before) = (self.side(path)?, self.side(path)?);
                (now.is_some() || before.is_some()).then_some(Item::Different { path, now, before })
            }
            0x97 => {
                let path = self.bin()?;
                Some(Item::Present(self.state(path)?))
            }
            _ => None,
        }
    }

    /// One side of a difference; the outer `None` is a malformed one.
    fn side(&mut self, path: &'a [u8]) -> Option<Option<Entry<'a>>> {
        match self.byte()? {
            0x96 => Some(Some(self.state(path)?)),
            0xc0 => Some(None),
            _ => None,
        }
    }

    fn state(&mut self, path: &'a [u8]) -> Option<Entry<'a>> {
        Some(Entry {
            path,
            kind: match self.byte()? {
                0 => EntryKind::Regular,
                1 => EntryKind::Directory,
                2 => EntryKind::Symlink,
                3 => EntryKind::Other,
                _ => return None,
            },
            fingerprint: self.bin()?,
            size: self.int()?,
            mode: self.int()?.try_into().ok()?,
            uid: self.int()?.try_into().ok()?,
            gid: self.int()?.try_into().ok()?,
        })
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(size)?;
        self.rest = rest;
        Some(taken)
    }

    fn big_endian(&mut self, size: usize) -> Option<u64> {
        Some(self.take(size)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn bin(&mut self) -> Option<&'a [u8]> {
        let size = match self.byte()? {
            0xc4 => self.big_endian(1)?,
            0xc5 => self.big_endian(2)?,
            0xc6 => self.big_endian(4)?,
            _ => return None,
        };
        self.take(usize::try_from(size).ok()?)
    }

    fn int(&mut self) -> Option<u64> {
        match self.byte()? {
            small @ 0..=0x7f => Some(small.into()),
            0xcc => self.big_endian(1),
            0xcd => self.big_endian(2),
            0xce => self.big_endian(4),
            0xcf => self.big_endian(8),
            _ => None,
        }
    }
}

impl<'a> Iterator for Items<'a> {
    /// The item and its bytes, or `PROTOCOL` once, where the listing is malformed.
    type Item = Result<(Item<'a>, &'a [u8]), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let before = self.rest;
        match self.item() {
            Some(item) => Some(Ok((item, &before[..before.len() - self.rest.len()]))),
            None => {
                self.rest = &[];
                Some(Err(Fault::protocol("a malformed listing")))
            }
        }
    }
}

pub(crate) fn put_bin(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        size @ 0..=0xff => out.extend_from_slice(&[0xc4, size as u8]),
        size @ 0x100..=0xffff => {
            out.push(0xc5);
            out.extend_from_slice(&(size as u16).to_be_bytes());
        }
        size => {
            out.push(0xc6);
            out.extend_from_slice(&(size as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

pub(crate) fn put_int(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, value as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}
