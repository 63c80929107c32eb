//! Copies of files with holes, in pieces between which the machine may be told to end.

use crate::service::Status;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

const PIECE_BYTES: u64 = 1 << 20;
const PAGE_BYTES: usize = 4096;
static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Makes an empty file like another, sharing its blocks where the host can; holes stay holes.
///
/// # Errors
/// What the host says; `Interrupted` when the machine is to end.
pub(crate) fn copy(source: &File, target: &File, status: &Status) -> io::Result<()> {
    if ioctl_ficlone(target, source).is_ok() {
        return Ok(());
    }
    target.set_len(source.metadata()?.len())?;
    copy_data(source, target, status)
}

/// Makes a file that has content read like another of the same size.
///
/// # Errors
/// As [`copy`].
pub(crate) fn copy_over(source: &File, target: &File, status: &Status) -> io::Result<()> {
    let bytes = source.metadata()?.len();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if fallocate(target, hole, 0, bytes).is_ok() {
        return copy_data(source, target, status);
    }
    pieces(0..bytes, PIECE_BYTES).try_for_each(|piece| {
        status.go_on()?;
        target.write_all_at(&read(source, &piece)?, piece.start)
    })
}

/// Copies what is not a hole to the same place in a file that reads as zeros.
///
/// # Errors
/// As [`copy`].
pub(crate) fn copy_data(source: &File, target: &File, status: &Status) -> io::Result<()> {
    let end = source.metadata()?.len();
    let mut at = 0;
    while let Some(run) = next_data(source, at, end)? {
        at = run.end;
        for piece in pieces(run, PIECE_BYTES) {
            status.go_on()?;
            write_pages(target, &read(source, &piece)?, piece.start)?;
        }
    }
    Ok(())
}

/// Writes to a file that reads as zeros; pages that hold only zeros stay holes.
///
/// # Errors
/// What the host says.
pub(crate) fn write_pages(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    // As a comparison of memory, which is many times faster than looking at each byte.
    let is_data = |page: &&[u8]| **page != ZEROS[..page.len()];
    let mut rest = bytes;
    while !rest.is_empty() {
        let zeros: usize = rest.chunks(PAGE_BYTES).take_while(|page| !is_data(page)).map(<[u8]>::len).sum();
        rest = &rest[zeros..];
        let data: usize = rest.chunks(PAGE_BYTES).take_while(is_data).map(<[u8]>::len).sum();
        let at = offset + (bytes.len() - rest.len()) as u64;
        file.write_all_at(&rest[..data], at)?;
        rest = &rest[data..];
    }
    Ok(())
}

/// The next part from `at` on that is no hole.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(begin) => Ok((begin < end).then_some(begin..seek(file, SeekFrom::Hole(begin))?.min(end))),
        Err(Errno::NXIO) => Ok(None),
        // A file system without holes, or a device.
        Err(Errno::INVAL) => Ok((at < end).then_some(at..end)),
        Err(errno) => Err(errno.into()),
    }
}

/// A range in pieces of at most so many bytes.
pub(crate) fn pieces(range: Range<u64>, bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(bytes as usize).map(move |begin| begin..(begin + bytes).min(end))
}

fn read(file: &File, piece: &Range<u64>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; (piece.end - piece.start) as usize];
    file.read_exact_at(&mut bytes, piece.start)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// 3 MiB and a bit: data, a hole, a page of zeros, data.
    fn source() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len((3 << 20) + 100).unwrap();
        file.write_all_at(&[7; 5000], 0).unwrap();
        file.write_all_at(&[0; 4096], 2 << 20).unwrap();
        file.write_all_at(&[9; 50], (3 << 20) + 50).unwrap();
        file
    }

    fn content(file: &File) -> Vec<u8> {
        read(file, &(0..file.metadata().unwrap().len())).unwrap()
    }

    #[test]
    fn copies_read_like_the_source_and_have_its_holes() {
        let (source, status) = (source(), Status::new());
        let target = tempfile::tempfile().unwrap();
        copy(&source, &target, &status).unwrap();
        assert!(content(&source) == content(&target));
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(source.metadata().unwrap().len()).unwrap();
        copy_data(&source, &plain, &status).unwrap();
        assert!(content(&source) == content(&plain));
        assert!(plain.metadata().unwrap().blocks() <= 40, "{}", plain.metadata().unwrap().blocks());
        plain.write_all_at(&[1; 3 << 20], 50).unwrap();
        copy_over(&source, &plain, &status).unwrap();
        assert!(content(&source) == content(&plain));
    }

    #[test]
    fn a_copy_stops_when_the_machine_is_to_end() {
        let status = Status::new();
        status.give_up();
        let target = tempfile::tempfile().unwrap();
        let stopped = copy_data(&source(), &target, &status).unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
    }
}
