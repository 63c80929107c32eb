//! A file that gets its name when it is complete. Until then it has none, so that nothing is left of it whenever its
//! writer is killed; only where the file system or a missing `/proc` refuses that has it a temporary name.

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, access, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

pub(crate) struct Beside<'a> {
    directory: &'a OwnedFd,
    pub(crate) file: File,
    /// Its temporary name in `directory`, which is removed with this value.
    name: Option<String>,
}

impl<'a> Beside<'a> {
    pub(crate) fn create(directory: &'a OwnedFd) -> Result<Self, Errno> {
        let (access_mode, mode) = (OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        if access("/proc/self/fd", Access::EXEC_OK).is_ok() {
            match openat(directory.as_fd(), ".", access_mode | OFlags::TMPFILE, mode) {
                // What an old kernel or a file system without such files says.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
                opened => return Ok(Self { directory, file: opened?.into(), name: None }),
            }
        }
        let name = temporary_name()?;
        let flags = access_mode | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = openat(directory.as_fd(), &name, flags, mode)?.into();
        Ok(Self { directory, file, name: Some(name) })
    }

    /// Gives the file its name, in the place of what has it now.
    pub(crate) fn rename(mut self, name: &[u8]) -> Result<(), Errno> {
        // A link replaces nothing, so an unnamed file takes a temporary name for a moment.
        let temporary = match self.name.take() {
            Some(temporary) => temporary,
            None => {
                let temporary = temporary_name()?;
                let unnamed = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(CWD, unnamed, self.directory, &temporary, AtFlags::SYMLINK_FOLLOW)?;
                temporary
            }
        };
        let renamed = renameat(self.directory, &temporary, self.directory, name);
        if renamed.is_err() {
            self.name = Some(temporary);
        }
        renamed
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}

fn temporary_name() -> Result<String, Errno> {
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".fluxvm-{:016x}.tmp", u64::from_ne_bytes(random)))
}
