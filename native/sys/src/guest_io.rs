//! Scatter and gather between descriptors and guest memory, so that bytes move once: the kernel reads from and writes to
//! the guest's own buffers. One call handles at most [`SLICES_MAX`] slices; more are left for the next call.

use rustix::io::{Errno, Result};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use vm_memory::VolatileSlice;
use vm_memory::bitmap::BitmapSlice;

/// The most slices that one call takes, below what the kernel refuses.
pub const SLICES_MAX: usize = 256;

/// Reads from a file, for example a tap device, into the slices in order. Returns the bytes read.
///
/// # Errors
/// `AGAIN` when nothing is there and the descriptor does not block, or what `readv` says.
pub fn read<B: BitmapSlice>(file: BorrowedFd<'_>, slices: &[VolatileSlice<'_, B>]) -> Result<usize> {
    let (vectors, count) = vectors(slices);
    let bytes = retried(|| {
        // SAFETY: the first `count` vectors describe the slices, which stay mapped and borrowed for the whole call; guest
        // memory has no Rust references, so that the kernel may write it.
        unsafe { libc::readv(file.as_raw_fd(), vectors.as_ptr(), count) }
    })?;
    mark_written(slices, bytes);
    Ok(bytes)
}

/// Writes the slices in order to a file, for example a tap device. Returns the bytes written.
///
/// # Errors
/// `AGAIN` when there is no room and the descriptor does not block, or what `writev` says.
pub fn write<B: BitmapSlice>(file: BorrowedFd<'_>, slices: &[VolatileSlice<'_, B>]) -> Result<usize> {
    let (vectors, count) = vectors(slices);
    retried(|| {
        // SAFETY: the first `count` vectors describe the slices, which stay mapped and borrowed for the whole call.
        unsafe { libc::writev(file.as_raw_fd(), vectors.as_ptr(), count) }
    })
}

/// Receives from a stream socket into the slices in order, without waiting. Returns the bytes received; zero is the end.
///
/// # Errors
/// `AGAIN` when nothing is there, or what `recvmsg` says.
pub fn receive<B: BitmapSlice>(socket: BorrowedFd<'_>, slices: &[VolatileSlice<'_, B>]) -> Result<usize> {
    let (mut vectors, count) = vectors(slices);
    let mut message = message(&mut vectors, count);
    let bytes = retried(|| {
        // SAFETY: the message names only the vectors, and they describe the slices, which stay mapped and borrowed for
        // the whole call; guest memory has no Rust references, so that the kernel may write it.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) }
    })?;
    mark_written(slices, bytes);
    Ok(bytes)
}

/// Sends the slices in order to a stream socket, without waiting and without a signal when nobody reads any more. Returns
/// the bytes sent.
///
/// # Errors
/// `AGAIN` when there is no room, `PIPE` when nobody reads, or what `sendmsg` says.
pub fn send<B: BitmapSlice>(socket: BorrowedFd<'_>, slices: &[VolatileSlice<'_, B>]) -> Result<usize> {
    let (mut vectors, count) = vectors(slices);
    let message = message(&mut vectors, count);
    retried(|| {
        // SAFETY: the message names only the vectors, and they describe the slices, which stay mapped and borrowed for
        // the whole call.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
    })
}

pub(crate) fn vectors<B: BitmapSlice>(slices: &[VolatileSlice<'_, B>]) -> ([libc::iovec; SLICES_MAX], libc::c_int) {
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SLICES_MAX];
    let count = slices.len().min(SLICES_MAX);
    for (vector, slice) in vectors.iter_mut().zip(slices) {
        // The mappings of guest memory outlive their slices, so that the guard need not be kept.
        vector.iov_base = slice.ptr_guard_mut().as_ptr().cast();
        vector.iov_len = slice.len();
    }
    (vectors, count as libc::c_int)
}

fn message(vectors: &mut [libc::iovec; SLICES_MAX], count: libc::c_int) -> libc::msghdr {
    // SAFETY: all fields of a message header may be zero: no name, no control data, no flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = count as usize;
    message
}

pub(crate) fn retried(mut call: impl FnMut() -> isize) -> Result<usize> {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Ok(bytes);
        }
        match Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO) {
            Errno::INTR => continue,
            error => return Err(error),
        }
    }
}

pub(crate) fn mark_written<B: BitmapSlice>(slices: &[VolatileSlice<'_, B>], bytes: usize) {
    let mut left = bytes;
    for slice in slices {
        let written = left.min(slice.len());
        slice.bitmap().mark_dirty(0, written);
        left -= written;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn slices(memory: &mut [u8], bytes: usize) -> Vec<VolatileSlice<'_>> {
        memory.chunks_mut(bytes).map(VolatileSlice::from).collect()
    }

    #[test]
    fn bytes_go_out_of_and_into_many_slices_in_order() {
        let (near, far) = UnixStream::pair().expect("a socket pair");
        let mut source: Vec<u8> = (0..=255).collect();
        let mut sink = vec![0; 300];
        assert_eq!(send(near.as_fd(), &slices(&mut source, 7)), Ok(256));
        assert_eq!(receive(far.as_fd(), &slices(&mut sink, 11)), Ok(256));
        assert_eq!(sink[..256], source);
        assert_eq!(receive(far.as_fd(), &slices(&mut sink, 11)), Err(Errno::AGAIN));
    }

    #[test]
    fn a_call_takes_as_many_slices_as_it_can() {
        let (near, far) = UnixStream::pair().expect("a socket pair");
        let mut memory = vec![1; SLICES_MAX + 10];
        assert_eq!(write(near.as_fd(), &slices(&mut memory, 1)), Ok(SLICES_MAX));
        assert_eq!(read(far.as_fd(), &slices(&mut memory, 1)), Ok(SLICES_MAX));
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_and_not_a_signal() {
        let (near, far) = UnixStream::pair().expect("a socket pair");
        drop(far);
        assert_eq!(send(near.as_fd(), &slices(&mut [1, 2, 3], 1)), Err(Errno::PIPE));
        assert_eq!(receive(near.as_fd(), &slices(&mut [0; 3], 3)), Ok(0));
    }
}
