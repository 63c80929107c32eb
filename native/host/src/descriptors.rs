//! Sends open files to another process, with the bytes that say what they are for.

use rustix::io::{Errno, IoSlice, Result};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

/// More than any message of ours carries.
pub const DESCRIPTORS_MAX: usize = 16;

/// Sends what a stream socket takes now, and the descriptors with its first byte; returns how many bytes went.
/// `INVAL`: no bytes or too many descriptors; `AGAIN`: it takes nothing now, and nothing was sent.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize> {
    if bytes.is_empty() || descriptors.len() > DESCRIPTORS_MAX {
        return Err(Errno::INVAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::IoSliceMut;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn open_files_arrive_with_the_bytes_they_belong_to() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        assert_eq!(send(ours.as_fd(), b"with", &[file.as_fd(), file.as_fd()]), Ok(4));
        assert_eq!(send(ours.as_fd(), b"after", &[]), Ok(5));

        let receive = || {
            let (mut bytes, mut space) = ([0; 64], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received =
                recvmsg(&theirs, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
            let mut files = Vec::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    files.extend(descriptors.map(File::from));
                }
            }
            (bytes[..received.bytes].to_vec(), files)
        };
        let mut received = [receive(), receive()];
        assert_eq!(
            received.each_ref().map(|(bytes, files)| (&bytes[..], files.len())),
            [(&b"with"[..], 2), (&b"after"[..], 0)]
        );
        let mut content = String::new();
        received[0].1[0].rewind().unwrap();
        received[0].1[0].read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
    }

    #[test]
    fn what_cannot_go_now_is_refused_and_nothing_is_sent() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(send(ours.as_fd(), b"", &[file.as_fd()]), Err(Errno::INVAL));
        assert_eq!(send(ours.as_fd(), b"x", &[file.as_fd(); DESCRIPTORS_MAX + 1]), Err(Errno::INVAL));
        while send(ours.as_fd(), &[0; 4096], &[]).is_ok() {}
        assert_eq!(send(ours.as_fd(), b"x", &[file.as_fd()]), Err(Errno::AGAIN));
        drop(theirs);
        assert_eq!(send(ours.as_fd(), b"x", &[file.as_fd()]), Err(Errno::PIPE));
    }
}
