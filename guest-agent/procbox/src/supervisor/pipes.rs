//! Pipes between the supervisor and the processes of the sandbox. The supervisor makes them; only the far end
//! leaves it.

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use std::io;
use std::os::fd::OwnedFd;
use tokio::net::unix::pipe;

/// A pipe that the sandbox writes.
pub fn from_sandbox() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((pipe::Receiver::from_owned_fd(reader)?, writer))
}

/// A pipe that the sandbox reads.
pub fn to_sandbox() -> io::Result<(pipe::Sender, OwnedFd)> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((pipe::Sender::from_owned_fd(writer)?, reader))
}
