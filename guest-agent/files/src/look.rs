//! What is at a path, and the names in a directory. Links are reported, never followed.

use crate::read::nobody_reads;
use crate::root::{CheckedPath, Root};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat, readlinkat, statat};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use wire::entry::EntryKind;
use wire::file_entry::FileEntry;
use wire::file_request::FileSummary;
use wire::limits::LIST_ENTRIES_MAX;
use wire::{ErrorCode, Fault};

/// Sends one entry. Errors: `NOT_FOUND`, `NOT_DIRECTORY`, `SYMLINK`, `DENIED`, `BAD_ARGUMENT`, `CANCELLED`.
pub fn stat(root: &Root, path: &[u8], out: &mut impl Write) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(path)?;
    let fault = |errno| path.fault(errno, "stat");
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut encoded = Vec::new();
    match path.split() {
        Some((parent, name)) => {
            let directory = root.open(&parent, flags).map_err(fault)?;
            encode(directory.as_fd(), name, &path.absolute(), &mut encoded).map_err(fault)?;
        }
        None => {
            let directory = root.open(&path, flags).map_err(fault)?;
            encode(directory.as_fd(), b".", b"/", &mut encoded).map_err(fault)?;
        }
    }
    out.write_all(&encoded).map_err(|_| nobody_reads())?;
    Ok(FileSummary { size: 0, entries: 1 })
}

/// Sends the entries of a directory, sorted by name. Errors as of [`stat`], and `LIMIT`.
pub fn list(root: &Root, path: &[u8], out: &mut impl Write) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(path)?;
    let fault = |errno| path.fault(errno, "list");
    let directory = root.open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK).map_err(fault)?;
    let mut names = names(directory.as_fd(), LIST_ENTRIES_MAX + 1).map_err(fault)?;
    if names.len() > LIST_ENTRIES_MAX {
        let message = format!("list {}: more than {LIST_ENTRIES_MAX} names", path.absolute().escape_ascii());
        return Err(Fault::new(ErrorCode::Limit, message));
    }
    names.sort();
    let (mut entries, mut encoded) = (0, Vec::new());
    for name in &names {
        match encode(directory.as_fd(), name, &path.join(name), &mut encoded) {
            Ok(()) => entries += 1,
            // It went away meanwhile.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(fault(errno)),
        }
        if encoded.len() > 64 << 10 {
            out.write_all(&encoded).map_err(|_| nobody_reads())?;
            encoded.clear();
        }
    }
    out.write_all(&encoded).map_err(|_| nobody_reads())?;
    Ok(FileSummary { size: 0, entries })
}

/// The names in an open directory, at most `max`, without `.` and `..`.
pub fn names(directory: BorrowedFd<'_>, max: usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
        if names.len() == max {
            break;
        }
    }
    Ok(names)
}

fn encode(directory: BorrowedFd<'_>, name: &[u8], path: &[u8], out: &mut Vec<u8>) -> Result<(), Errno> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => readlinkat(directory, name, Vec::new())?.into_bytes(),
        _ => Vec::new(),
    };
    entry_of(&stat, path, &target).encode(out);
    Ok(())
}

pub fn entry_of<'a>(stat: &Stat, path: &'a [u8], target: &'a [u8]) -> FileEntry<'a> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::Regular,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    FileEntry {
        path,
        kind,
        size: if kind == EntryKind::Regular { stat.st_size as u64 } else { 0 },
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_ms: modified_ms(stat),
        target,
    }
}

pub fn modified_ms(stat: &Stat) -> u64 {
    u64::try_from(stat.st_mtime).map_or(0, |seconds| seconds.saturating_mul(1000) + stat.st_mtime_nsec / 1_000_000)
}
