//! What the processes of one sandbox say to each other. Supervisor to init and init to spawner is trusted;
//! whatever comes up from there is the sandbox's claim and is read with bounds.

use crate::sys::packet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::io;
use std::os::fd::BorrowedFd;

/// From the supervisor to init.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToInit {
    /// Start a command: an encoded [`Command`] for the spawner, with the command's descriptors.
    Spawn {
        execution: u64,
        command: ByteBuf,
    },
    /// Start a worker, which serves the socket that comes along.
    StartWorker {
        worker: u64,
        kind: WorkerKind,
    },
    KillWorker {
        worker: u64,
    },
    /// Signal the process group of a command.
    Signal {
        execution: u64,
        signal: i32,
    },
    /// Kill a command with all its descendants (only where it has a minder; elsewhere its leaf is killed).
    KillTree {
        execution: u64,
    },
    /// Ask all commands to end, then end.
    Shutdown {
        grace_ms: u64,
    },
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerKind {
    Files,
    Ports,
}

/// From init to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromInit {
    /// Confinement is in place.
    Up,
    /// Confinement failed; init is gone.
    Failed {
        message: String,
    },
    Spawned {
        execution: u64,
        pid: i32,
    },
    NotSpawned {
        execution: u64,
        errno: i32,
    },
    Exited {
        execution: u64,
        status: Status,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Code(i32),
    Signal(i32),
}

/// A command for the spawner. Its descriptors, in this order: standard input, output, error, the pipe that tells
/// how execve went; then the script and the leaf, when there are such.
#[derive(Debug, Serialize, Deserialize)]
pub struct Command {
    pub argv: Vec<String>,
    /// Additional variables.
    pub env: Vec<(String, String)>,
    /// From the workspace, with or without a leading slash.
    pub cwd: Option<String>,
    /// A long shell command is read from descriptor 3.
    pub has_script: bool,
    /// The command is born into a leaf; without one it has a minder.
    pub has_leaf: bool,
    /// Standard input is a terminal and becomes the controlling one.
    pub has_terminal: bool,
    /// The minder kills what the command leaves behind.
    pub kill_group: bool,
}

/// The answer to a [`Command`]: from the command itself, or from the spawner that could not fork it.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromSpawner {
    Pid(i32),
    Errno(i32),
}

/// What comes down the pipe that execve closes on success: where starting a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    WorkingDirectory = 1,
    Setup = 2,
    Execute = 3,
}

impl StartStep {
    pub fn encode(self, errno: i32) -> [u8; 5] {
        let errno = errno.to_be_bytes();
        [self as u8, errno[0], errno[1], errno[2], errno[3]]
    }

    /// The step and its errno; any nonsense counts as a failed set-up.
    pub fn decode(bytes: &[u8]) -> (Self, i32) {
        let &[step, a, b, c, d] = bytes else { return (Self::Setup, libc::EIO) };
        let step = match step {
            1 => Self::WorkingDirectory,
            3 => Self::Execute,
            _ => Self::Setup,
        };
        (step, i32::from_be_bytes([a, b, c, d]))
    }
}

pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    rmp_serde::to_vec(message).expect("a message has nothing that msgpack lacks")
}

pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    rmp_serde::from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Sends `message` without descriptors.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T) -> io::Result<()> {
    packet::send(socket, &encode(message), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_steps_survive_and_nonsense_is_a_failure() {
        for step in [StartStep::WorkingDirectory, StartStep::Setup, StartStep::Execute] {
            assert_eq!(StartStep::decode(&step.encode(13)), (step, 13));
        }
        assert_eq!(StartStep::decode(b"x"), (StartStep::Setup, libc::EIO));
        assert_eq!(StartStep::decode(&[9, 0, 0, 0, 1]), (StartStep::Setup, 1));
    }

    #[test]
    fn messages_survive() {
        let bytes = encode(&ToInit::Signal { execution: u64::MAX, signal: 9 });
        assert!(matches!(decode(&bytes).unwrap(), ToInit::Signal { execution: u64::MAX, signal: 9 }));
        assert!(decode::<ToInit>(b"\xc1").is_err());
    }
}
