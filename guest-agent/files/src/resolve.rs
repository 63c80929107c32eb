//! What a path leads to when its links are followed: what any process of the guest would find there, as long as it lies
//! below the root. Only its path without links is told, and whoever uses that follows nothing.

use crate::look::entry_of;
use crate::read::nobody_reads;
use crate::root::{CheckedPath, Root};
use rustix::fs::{OFlags, fstat, readlink};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};
use wire::file_request::FileSummary;
use wire::{ErrorCode, Fault};

/// Sends one entry, whose path has no links. Errors: `NOT_FOUND` (also for what lies elsewhere), `NOT_DIRECTORY`,
/// `SYMLINK` (a circle), `DENIED`, `BAD_ARGUMENT`, `CAPABILITY` (without `/proc`), `CANCELLED`.
pub fn resolve(root: &Root, path: &[u8], out: &mut impl Write) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(path)?;
    let fault = |errno| path.fault(errno, "resolve");
    let found = root.follow(&path, OFlags::PATH).map_err(fault)?;
    let place = place_of(rustix::fd::AsFd::as_fd(&found)).ok_or_else(unknown_place)?;
    let base = place_of(root.directory()).ok_or_else(unknown_place)?;
    let inside = below(&place, &base).ok_or_else(|| fault(Errno::NOENT))?;
    let stat = fstat(&found).map_err(fault)?;
    let mut encoded = Vec::new();
    entry_of(&stat, inside, b"").encode(&mut encoded);
    out.write_all(&encoded).map_err(|_| nobody_reads())?;
    Ok(FileSummary { size: 0, entries: 1 })
}

/// The path of an open descriptor as this process sees it.
fn place_of(descriptor: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let place = readlink(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Vec::new()).ok()?;
    Some(place.into_bytes())
}

/// `place` from `base` on, which is `/` for `base` itself; `None` when it lies elsewhere.
fn below<'a>(place: &'a [u8], base: &[u8]) -> Option<&'a [u8]> {
    match place.strip_prefix(base.strip_suffix(b"/").unwrap_or(base))? {
        b"" => Some(b"/"),
        rest if rest[0] == b'/' => Some(rest),
        _ => None,
    }
}

fn unknown_place() -> Fault {
    Fault::new(ErrorCode::Capability, "links cannot be followed without /proc")
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn what_is_below_the_base_is_told_from_there() {
        assert_eq!(below(b"/w/a/b", b"/w"), Some(b"/a/b".as_slice()));
        assert_eq!(below(b"/w", b"/w"), Some(b"/".as_slice()));
        assert_eq!(below(b"/ws/a", b"/w"), None);
        assert_eq!(below(b"/etc", b"/w"), None);
        assert_eq!(below(b"/etc", b"/"), Some(b"/etc".as_slice()));
        assert_eq!(below(b"/", b"/"), Some(b"/".as_slice()));
    }
}
