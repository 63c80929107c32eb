//! Reads and writes at an offset of a file, straight into and out of guest memory, on the calling thread.

use crate::guest_io::{SLICES_MAX, mark_written, retried, vectors};
use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use vm_memory::VolatileSlice;

/// Fills all slices from `offset` on.
///
/// # Errors
/// `IO` when the file ends before, or what `preadv` says.
pub fn read_at(file: BorrowedFd<'_>, slices: &[VolatileSlice<'_>], offset: u64) -> Result<()> {
    whole(slices, offset, |slices, offset| {
        let (vectors, count) = vectors(slices);
        let bytes = retried(|| {
            // SAFETY: the first `count` vectors describe the slices, which stay mapped and borrowed for the whole call;
            // guest memory has no Rust references, so that the kernel may write it.
            unsafe { libc::preadv(file.as_raw_fd(), vectors.as_ptr(), count, offset) }
        })?;
        mark_written(slices, bytes);
        Ok(bytes)
    })
}

/// Writes all slices from `offset` on.
///
/// # Errors
/// What `pwritev` says.
pub fn write_at(file: BorrowedFd<'_>, slices: &[VolatileSlice<'_>], offset: u64) -> Result<()> {
    whole(slices, offset, |slices, offset| {
        let (vectors, count) = vectors(slices);
        retried(|| {
            // SAFETY: the first `count` vectors describe the slices, which stay mapped and borrowed for the whole call.
            unsafe { libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), count, offset) }
        })
    })
}

/// Repeats `step` until all slices are done; a step may do a part of them.
fn whole(
    slices: &[VolatileSlice<'_>],
    offset: u64,
    mut step: impl FnMut(&[VolatileSlice<'_>], libc::off_t) -> Result<usize>,
) -> Result<()> {
    let mut offset = offset;
    let mut rest = slices;
    // What is left of a slice that was done in part.
    let mut torn: Option<VolatileSlice<'_>> = None;
    loop {
        let position = libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)?;
        let done = match torn {
            Some(slice) => step(&[slice], position)?,
            None if rest.is_empty() => return Ok(()),
            None => step(&rest[..rest.len().min(SLICES_MAX)], position)?,
        };
        if done == 0 {
            return Err(Errno::IO);
        }
        offset += done as u64;
        let mut left = done;
        if let Some(slice) = torn.take() {
            let tail = slice.offset(left).map_err(|_| Errno::FAULT)?;
            torn = (!tail.is_empty()).then_some(tail);
            continue;
        }
        while let Some((first, after)) = rest.split_first() {
            if left == 0 && !first.is_empty() {
                break;
            }
            rest = after;
            if left < first.len() {
                torn = Some(first.offset(left).map_err(|_| Errno::FAULT)?);
                break;
            }
            left -= first.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn slices(memory: &mut [u8], bytes: usize) -> Vec<VolatileSlice<'_>> {
        memory.chunks_mut(bytes).map(VolatileSlice::from).collect()
    }

    #[test]
    fn more_slices_than_one_call_takes_go_through() {
        let path = std::env::temp_dir().join(format!("fluxvm-disk-io-{}", std::process::id()));
        let file =
            std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("its name");
        let mut source: Vec<u8> = (0..3000_u32).map(|number| (number % 251) as u8).collect();
        assert_eq!(write_at(file.as_fd(), &slices(&mut source, 7), 100), Ok(()));
        let mut sink = vec![0; 3000];
        assert_eq!(read_at(file.as_fd(), &slices(&mut sink, 5), 100), Ok(()));
        assert_eq!(sink, source);
        assert_eq!(read_at(file.as_fd(), &slices(&mut sink, 5), 101), Err(Errno::IO), "one byte is missing");
    }

    #[test]
    fn steps_that_do_a_part_are_continued_where_they_stopped() {
        let mut memory = [0_u8; 20];
        let all = slices(&mut memory, 6);
        let mut seen = Vec::new();
        let result = whole(&all, 50, |slices, offset| {
            seen.push((offset, slices.iter().map(VolatileSlice::len).sum::<usize>()));
            Ok(4.min(slices[0].len() + slices.get(1).map_or(0, VolatileSlice::len)))
        });
        assert_eq!(result, Ok(()));
        assert_eq!(seen, [(50, 20), (54, 2), (56, 14), (60, 2), (62, 8), (66, 2), (68, 2)]);
    }
}
