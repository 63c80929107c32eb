//! Giving a file or a directory another name.

use crate::parents::open_directory;
use crate::root::{CheckedPath, Root};
use rustix::fs::renameat;
use rustix::io::Errno;
use wire::Fault;
use wire::file_request::{FileSummary, MoveRequest};

/// Renames within the root; a file at the new name is replaced. Errors: `NOT_FOUND`, `NOT_EMPTY`, `NOT_DIRECTORY`,
/// `NOT_REGULAR` (a file over a directory), `SYMLINK` (on the way), `DENIED`, `BAD_ARGUMENT` (into itself, the root).
pub fn rename(root: &Root, request: &MoveRequest) -> Result<FileSummary, Fault> {
    let (from, to) = (CheckedPath::new(&request.from)?, CheckedPath::new(&request.to)?);
    let (from_parent, from_name) = from.split().ok_or_else(|| from.fault(Errno::INVAL, "move"))?;
    let (to_parent, to_name) = to.split().ok_or_else(|| to.fault(Errno::INVAL, "move to"))?;
    let old = open_directory(root, &from_parent, false).map_err(|fault| as_of(fault, &from))?;
    let new = open_directory(root, &to_parent, false)?;
    renameat(&old, from_name, &new, to_name).map_err(|errno| from.fault(errno, "move"))?;
    Ok(FileSummary { size: 0, entries: 1 })
}

/// A missing parent is told as the path that was asked for.
fn as_of(fault: Fault, path: &CheckedPath) -> Fault {
    match fault.code {
        wire::ErrorCode::NotFound => path.fault(Errno::NOENT, "move"),
        _ => fault,
    }
}
