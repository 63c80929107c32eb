//! Opening what somebody else names. A pipe is no file here: whoever opened one would wait for its other end.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens what is at a path, at once.
///
/// # Errors
/// What the host says, or that a pipe is there.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let file = options.clone().custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe"));
    }
    // A ring of the kernel would not even wait for the disk.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn a_pipe_is_refused_at_once_and_a_file_waits_as_ever() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::write(&file, "x").unwrap();
        let mut ways = [OpenOptions::new(), OpenOptions::new(), OpenOptions::new()];
        ways[0].read(true);
        ways[1].append(true);
        ways[2].read(true).write(true);
        for options in ways {
            assert!(open(&pipe, &options).is_err(), "{options:?}");
            let flags = fcntl_getfl(open(&file, &options).unwrap()).unwrap();
            assert!(!flags.contains(OFlags::NONBLOCK), "{options:?}");
        }
    }
}
