//! Making an empty file.

use crate::parents::open_directory;
use crate::root::{CheckedPath, Root};
use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, ftruncate, openat};
use rustix::io::Errno;
use wire::file_request::{CreateRequest, FileSummary};
use wire::{ErrorCode, Fault};

/// Makes the file of `request` with exactly its mode, or finds it there. `entries` is 1 when it was made. Errors:
/// `EXISTS`, `NOT_FOUND` (a parent), `NOT_REGULAR`, `NOT_DIRECTORY`, `SYMLINK`, `DENIED`, `NO_SPACE`, `BAD_ARGUMENT`.
pub fn create(root: &Root, request: &CreateRequest) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(&request.path)?;
    let fault = |errno| path.fault(errno, "create");
    let (parent, name) = path.split().ok_or_else(|| fault(Errno::ISDIR))?;
    let directory = open_directory(root, &parent, false)?;
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(&directory, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
        Ok(made) => {
            fchmod(&made, Mode::from_raw_mode(request.mode & 0o777)).map_err(fault)?;
            return Ok(FileSummary { size: 0, entries: 1 });
        }
        Err(Errno::EXIST) if request.exclusive => {
            let message = format!("create {}: the name is taken", path.absolute().escape_ascii());
            return Err(Fault::new(ErrorCode::Exists, message));
        }
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(fault(errno)),
    }
    let found = openat(&directory, name, flags, Mode::empty()).map_err(fault)?;
    let stat = fstat(&found).map_err(fault)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(fault(Errno::NXIO));
    }
    if request.empty {
        ftruncate(&found, 0).map_err(fault)?;
    }
    Ok(FileSummary { size: if request.empty { 0 } else { stat.st_size as u64 }, entries: 0 })
}
