//! The directory that all paths are relative to, and the only way to open something below it.

use crate::errno::fault;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::limits::PATH_MAX;
use wire::{Fault, request};

/// Times that a resolution is tried when renames elsewhere make the kernel give up on it.
const RESOLVE_ATTEMPTS: usize = 64;

/// What a symbolic link on the way to a file means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Followed, as if the root were `/`.
    Follow,
    /// `SYMLINK`.
    Refuse,
}

#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    links: Links,
}

impl Root {
    /// A root at an open directory.
    pub fn new(directory: OwnedFd, links: Links) -> Self {
        Self { directory, links }
    }

    /// Opens `path` with `flags`; never outside the root, never through a magic link.
    pub(crate) fn open(&self, path: &CheckedPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = match self.links {
            Links::Follow => ResolveFlags::IN_ROOT,
            Links::Refuse => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        };
        resolve_at(self.directory.as_fd(), path.relative(), flags, resolve)
    }

    /// Opens `path` with its links followed. Where links are refused otherwise, an absolute one means what it means to
    /// the calling process, so that what was opened may lie outside the root.
    pub(crate) fn follow(&self, path: &CheckedPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = match self.links {
            Links::Follow => ResolveFlags::IN_ROOT,
            Links::Refuse => ResolveFlags::empty(),
        };
        resolve_at(self.directory.as_fd(), path.relative(), flags, resolve)
    }

    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Makes the root the working directory of the calling thread.
    pub(crate) fn enter(&self) -> Result<(), Errno> {
        rustix::process::fchdir(&self.directory)
    }

    pub(crate) fn refuses_links(&self) -> bool {
        self.links == Links::Refuse
    }
}

/// `openat2` without magic links, tried again when a concurrent rename disturbs it.
pub(crate) fn resolve_at(
    directory: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    // The kernel takes few flags beside O_PATH; with it nothing is opened that could become a terminal.
    let extra = if flags.contains(OFlags::PATH) { OFlags::CLOEXEC } else { OFlags::CLOEXEC | OFlags::NOCTTY };
    let flags = flags | extra;
    for _ in 1..RESOLVE_ATTEMPTS {
        match openat2(directory, path, flags, Mode::empty(), resolve | ResolveFlags::NO_MAGICLINKS) {
            Err(Errno::AGAIN | Errno::INTR) => continue,
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// An absolute path without `..`, in its shortest form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CheckedPath {
    /// Components joined by `/`, without a leading one; empty for the root itself.
    joined: Vec<u8>,
}

impl CheckedPath {
    /// Error `BAD_ARGUMENT` for a path that is relative, too long, holds a NUL or climbs.
    pub fn new(path: &[u8]) -> Result<Self, Fault> {
        if path.len() > PATH_MAX - 1 {
            return Err(Fault::bad_argument("a path longer than 4095 bytes"));
        }
        if path.first() != Some(&b'/') || path.contains(&0) {
            return Err(Fault::bad_argument(format!("not an absolute path: {}", path.escape_ascii())));
        }
        let components: Vec<&[u8]> =
            path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
        if components.contains(&b"..".as_slice()) {
            return Err(Fault::bad_argument(format!("a path with ..: {}", path.escape_ascii())));
        }
        Ok(Self { joined: components.join(&b'/') })
    }

    /// For system calls relative to the root.
    pub fn relative(&self) -> &[u8] {
        if self.joined.is_empty() { b"." } else { &self.joined }
    }

    /// For people and listings.
    pub fn absolute(&self) -> Vec<u8> {
        [b"/", self.joined.as_slice()].concat()
    }

    /// The absolute path of a name in this directory.
    pub fn join(&self, name: &[u8]) -> Vec<u8> {
        let slash: &[u8] = if self.joined.is_empty() { b"" } else { b"/" };
        [b"/", self.joined.as_slice(), slash, name].concat()
    }

    /// The directory and the name in it; `None` for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.joined.is_empty() {
            return None;
        }
        let at = self.joined.iter().rposition(|byte| *byte == b'/');
        let parent = at.map_or(&[][..], |at| &self.joined[..at]);
        Some((Self { joined: parent.to_vec() }, &self.joined[at.map_or(0, |at| at + 1)..]))
    }

    /// Whether `self` is `ancestor` or lies below it.
    pub fn is_within(&self, ancestor: &Self) -> bool {
        match self.joined.strip_prefix(ancestor.joined.as_slice()) {
            Some(rest) => rest.is_empty() || ancestor.joined.is_empty() || rest[0] == b'/',
            None => false,
        }
    }

    pub fn fault(&self, errno: Errno, operation: &str) -> Fault {
        fault(errno, operation, &self.absolute())
    }
}

/// The starting points of a manifest, sorted, none of them inside another. Error `BAD_ARGUMENT`.
pub(crate) fn starting_points(request: &request::ManifestRequest) -> Result<Vec<CheckedPath>, Fault> {
    if request.paths.is_empty() || request.paths.len() > wire::limits::MANIFEST_PATHS_MAX {
        return Err(Fault::bad_argument("a manifest takes 1 to 64 paths"));
    }
    let paths = request.paths.iter().map(|path| CheckedPath::new(path)).collect::<Result<Vec<_>, _>>()?;
    let mut kept: Vec<CheckedPath> = Vec::new();
    for path in &paths {
        let covered = paths.iter().any(|other| other != path && path.is_within(other));
        if !covered && !kept.contains(path) {
            kept.push(path.clone());
        }
    }
    kept.sort();
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_bytes::ByteBuf;

    fn path(text: &str) -> CheckedPath {
        CheckedPath::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn paths_are_absolute_and_never_climb() {
        for bad in ["", "a", "../a", "/..", "/a/../b", "/a\0b"] {
            assert!(CheckedPath::new(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(CheckedPath::new(&[b"/".as_slice(), &[b'a'; 4095]].concat()).is_err());
        assert_eq!(path("//a/./b/").relative(), b"a/b");
        assert_eq!(path("/").relative(), b".");
        assert_eq!(path("/..a").relative(), b"..a");
    }

    #[test]
    fn splitting_gives_parent_and_name() {
        assert_eq!(path("/").split(), None);
        assert_eq!(path("/a").split(), Some((path("/"), b"a".as_slice())));
        assert_eq!(path("/a/b/c").split(), Some((path("/a/b"), b"c".as_slice())));
    }

    #[test]
    fn starting_points_do_not_overlap() {
        let request = |paths: &[&str]| request::ManifestRequest {
            paths: paths.iter().map(|path| ByteBuf::from(path.as_bytes())).collect(),
            files_max: 1,
            listing_max: 1,
            base: None,
        };
        let kept = starting_points(&request(&["/b", "/a/x", "/a", "/ab", "/a/", "/b"])).unwrap();
        assert_eq!(kept, [path("/a"), path("/ab"), path("/b")]);
        assert_eq!(starting_points(&request(&["/x", "/"])).unwrap(), [path("/")]);
        assert!(starting_points(&request(&[])).is_err());
        assert!(starting_points(&request(&["/a"; 65])).is_err());
    }
}
