//! Pipes between the supervisor and the processes of the sandbox. The supervisor makes them; only the far end
//! leaves it.

use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fchmod};
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

/// A pipe that a command writes as standard output or error, and may open again by name (`/dev/stderr`).
pub fn output() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (own, theirs) = from_sandbox()?;
    fchmod(&theirs, Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IWGRP | Mode::S_IWOTH)?;
    Ok((own, theirs))
}

/// A pipe that a command reads as standard input, and may open again by name (`/dev/stdin`).
pub fn input() -> io::Result<(pipe::Sender, OwnedFd)> {
    let (own, theirs) = to_sandbox()?;
    fchmod(&theirs, Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IRGRP | Mode::S_IROTH)?;
    Ok((own, theirs))
}
