//! Logs of the process inside: it says things into pipes, and the outer process alone writes the files, each of which stays
//! within its bound. Whatever becomes of the process inside, it can neither fill a disk by them nor change what it said.

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, Result, read};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use rustix::stdio::{dup2_stderr, dup2_stdout};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// What can be said while the outer process finds no time: with its pauses, 2.5 MiB a second.
const PIPE_BYTES: usize = 256 << 10;

/// A log, which may have content already.
pub struct LogFile {
    /// Open for reading and for adding to its end.
    pub file: File,
    /// Open for writing: gets what was in the file when that is full and begins again.
    pub earlier: File,
    /// Most bytes of either.
    pub bytes_max: u64,
}

/// All logs of one jail.
#[derive(Default)]
pub struct Logs {
    kept: Vec<Kept>,
    printed: Option<File>,
}

struct Kept {
    pipe: OwnedFd,
    log: LogFile,
    /// Room for all that the pipe can hold.
    piece: Vec<u8>,
}

impl Logs {
    /// Gives what the process inside writes a log by. It never waits: what finds no room is refused by an error, as long
    /// as the outer process has not made some.
    ///
    /// # Errors
    /// When no pipe can be made.
    pub fn add(&mut self, log: LogFile) -> Result<File> {
        let (pipe, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A host that allows less room has less.
        let _ = fcntl_setpipe_size(&pipe, PIPE_BYTES);
        let piece = vec![0; fcntl_getpipe_size(&pipe)?];
        self.kept.push(Kept { pipe, log, piece });
        Ok(File::from(writer))
    }

    /// A log of all that the process inside prints to its standard output and error, which it loses.
    ///
    /// # Errors
    /// When no pipe can be made.
    pub fn add_printed(&mut self, log: LogFile) -> Result<()> {
        self.printed = Some(self.add(log)?);
        Ok(())
    }

    /// In the process inside: from now on it has nothing but the ends of the pipes.
    pub(crate) fn move_in(self) -> Result<()> {
        match self.printed {
            Some(printed) => dup2_stdout(&printed).and_then(|()| dup2_stderr(&printed)),
            None => Ok(()),
        }
    }

    /// What must stay open in the outer process, which closes the ends that are written to: otherwise it would never be told
    /// that nobody is left to write.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let of = |Kept { pipe, log, .. }: &Kept| [pipe.as_raw_fd(), log.file.as_raw_fd(), log.earlier.as_raw_fd()];
        self.kept.iter().flat_map(of)
    }

    /// What is ready when there is something to copy.
    pub(crate) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.kept.iter().map(|kept| PollFd::new(&kept.pipe, PollFlags::IN))
    }

    /// Copies all that was said until now, and no more than the pipes can hold. Tells whether there was anything.
    pub(crate) fn copy(&mut self) -> bool {
        let mut is_anything = false;
        self.kept.retain_mut(|Kept { pipe, log, piece }| match read(&*pipe, &mut *piece) {
            Ok(length @ 1..) => {
                // What a full disk does not take is lost; the machine goes on.
                let _ = log.append(&piece[..length]);
                is_anything = true;
                true
            }
            // Nobody is left who could say anything.
            Ok(0) => false,
            Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
        });
        is_anything
    }
}

impl LogFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let skipped = (bytes.len() as u64).saturating_sub(self.bytes_max);
        let bytes = &bytes[skipped as usize..];
        // Asked each time: others may have shortened it.
        let length = self.file.metadata()?.len();
        if length + bytes.len() as u64 > self.bytes_max {
            // A disk that has no room for what was there has some for what comes.
            let _ = self.move_aside(length);
            self.file.set_len(0)?;
        }
        self.file.write_all(bytes)
    }

    /// Copies the end of the file.
    fn move_aside(&mut self, length: u64) -> io::Result<()> {
        self.earlier.set_len(0)?;
        self.earlier.rewind()?;
        self.file.seek(SeekFrom::Start(length.saturating_sub(self.bytes_max)))?;
        io::copy(&mut io::Read::take(&self.file, self.bytes_max), &mut self.earlier).map(drop)
    }
}
