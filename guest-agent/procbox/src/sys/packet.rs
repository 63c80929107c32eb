//! Packets between the processes of one sandbox: a body and descriptors over a SOCK_SEQPACKET pair. Descriptors
//! travel towards the sandbox only: what comes from there is received by a call that takes none.

use crate::limits::*;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, recvmsg, sendmsg,
    socketpair,
};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use tokio::io::unix::AsyncFd;

/// First byte of a packet: the body follows, or it is in a memory file, the last descriptor.
const INLINE: u8 = 0;
const IN_FILE: u8 = 1;

thread_local! {
    /// Where packets arrive. Made once: to clear as much for each packet costs more than the packet, and in a process
    /// that forks for each it has every page copied.
    static ARRIVAL: RefCell<Vec<u8>> = RefCell::new(vec![0; PACKET_BYTES_MAX]);
}

/// A received packet.
pub struct Packet {
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Two connected ends, closed by execve.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Switches an end to non-blocking and watches it. The other end is not affected.
pub fn watched(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK | OFlag::O_RDWR))?;
    // SAFETY: an `OwnedFd` names the same open file for as long as it lives, and `AsyncFd` keeps it.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// Sends `body` and copies of `descriptors`. A body over `PACKET_BYTES_MAX` goes in a sealed memory file.
/// `WouldBlock` when the socket is non-blocking and full; nothing has been sent then.
pub fn send(socket: BorrowedFd<'_>, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if body.len() < PACKET_BYTES_MAX {
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        return send_parts(socket, &[&[INLINE], body], &raw);
    }
    let file = sealed_file(body)?;
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).chain([file.as_raw_fd()]).collect();
    send_parts(socket, &[&[IN_FILE]], &raw)
}

fn send_parts(socket: BorrowedFd<'_>, parts: &[&[u8]], descriptors: &[RawFd]) -> io::Result<()> {
    if descriptors.len() > PACKET_DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
    loop {
        match sendmsg::<UnixAddr>(socket.as_raw_fd(), &slices, control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => (),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A read-only memory file with `content`, which nobody can change any more.
pub fn sealed_file(content: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create(c"body", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut file = File::from(file);
    file.write_all(content)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: plain integers on a descriptor we own.
    super::check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }.into())?;
    std::io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

/// Receives a packet with its descriptors; `None` when the other end is closed.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Packet>> {
    let mut space = nix::cmsg_space!([RawFd; PACKET_DESCRIPTORS_MAX]);
    let Some((mut body, mut descriptors)) = receive_parts(socket, Some(&mut space))? else { return Ok(None) };
    match body.first() {
        Some(&INLINE) => {
            body.remove(0);
        }
        Some(&IN_FILE) => body = read_file(&File::from(descriptors.pop().ok_or_else(malformed)?))?,
        _ => return Err(malformed()),
    }
    Ok(Some(Packet { body, descriptors }))
}

/// Receives a packet from a process that is not trusted: descriptors are dropped by the kernel, and the body has
/// at most `PACKET_BYTES_MAX` bytes. `None` when the other end is closed.
pub fn receive_body(socket: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let Some((mut body, _)) = receive_parts(socket, None)? else { return Ok(None) };
    if body.first() != Some(&INLINE) {
        return Err(malformed());
    }
    body.remove(0);
    Ok(Some(body))
}

/// Sends a packet as soon as there is room.
pub async fn send_watched(socket: &AsyncFd<OwnedFd>, body: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    loop {
        let mut ready = socket.writable().await?;
        if let Ok(sent) = ready.try_io(|socket| send(socket.get_ref().as_fd(), body, &borrowed)) {
            return sent;
        }
    }
}

/// As [`receive`], as soon as there is a packet.
pub async fn receive_watched(socket: &AsyncFd<OwnedFd>) -> io::Result<Option<Packet>> {
    when_readable(socket, receive).await
}

/// As [`receive_body`], as soon as there is a packet.
pub async fn receive_body_watched(socket: &AsyncFd<OwnedFd>) -> io::Result<Option<Vec<u8>>> {
    when_readable(socket, receive_body).await
}

async fn when_readable<T>(
    socket: &AsyncFd<OwnedFd>,
    receive: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        let mut ready = socket.readable().await?;
        if let Ok(received) = ready.try_io(|socket| receive(socket.get_ref().as_fd())) {
            return received;
        }
    }
}

fn receive_parts(socket: BorrowedFd<'_>, space: Option<&mut [u8]>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    ARRIVAL.with_borrow_mut(|buffer| receive_into(buffer, socket, space))
}

fn receive_into(
    buffer: &mut [u8],
    socket: BorrowedFd<'_>,
    space: Option<&mut [u8]>,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let wants_descriptors = space.is_some();
    let mut slices = [IoSliceMut::new(buffer)];
    let message = match recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut slices, space, MsgFlags::MSG_CMSG_CLOEXEC) {
        Ok(message) => message,
        Err(Errno::ECONNRESET) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut descriptors = Vec::new();
    if wants_descriptors {
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel just installed these descriptors for us and nobody else knows them.
                descriptors.extend(raw.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
            }
        }
    }
    let (length, flags) = (message.bytes, message.flags);
    if flags.contains(MsgFlags::MSG_TRUNC) || (wants_descriptors && flags.contains(MsgFlags::MSG_CTRUNC)) {
        return Err(malformed());
    }
    Ok((length > 0).then(|| (buffer[..length].to_vec(), descriptors)))
}

fn read_file(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > BODY_BYTES_MAX as u64 {
        return Err(malformed());
    }
    let mut body = vec![0; length as usize];
    file.read_exact_at(&mut body, 0)?;
    Ok(body)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed packet")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_bodies_arrive_with_their_descriptors() {
        let (left, right) = pair().unwrap();
        let extra = sealed_file(b"x").unwrap();
        for length in [0, 1, PACKET_BYTES_MAX - 1, PACKET_BYTES_MAX, 1 << 20] {
            send(left.as_fd(), &vec![7; length], &[extra.as_fd()]).unwrap();
            let packet = receive(right.as_fd()).unwrap().unwrap();
            assert_eq!(packet.body, vec![7; length]);
            assert_eq!(packet.descriptors.len(), 1);
        }
    }

    #[test]
    fn nothing_hostile_brings_a_descriptor_or_a_file() {
        let (left, right) = pair().unwrap();
        let extra = sealed_file(b"x").unwrap();
        send(left.as_fd(), b"hello", &[extra.as_fd()]).unwrap();
        assert_eq!(receive_body(right.as_fd()).unwrap().unwrap(), b"hello");
        send(left.as_fd(), &vec![0; 1 << 20], &[]).unwrap();
        assert!(receive_body(right.as_fd()).is_err());
    }

    #[test]
    fn the_end_is_seen() {
        let (left, right) = pair().unwrap();
        drop(left);
        assert!(receive(right.as_fd()).unwrap().is_none());
        assert!(receive_body(right.as_fd()).unwrap().is_none());
    }
}
