//! Making links, symbolic and hard.

use crate::errno::describe;
use crate::parents::open_directory;
use crate::root::{CheckedPath, Root};
use rustix::fs::{AtFlags, linkat, symlinkat};
use rustix::io::Errno;
use wire::file_request::{FileSummary, MoveRequest, SymlinkRequest};
use wire::limits::PATH_MAX;
use wire::{ErrorCode, Fault};

/// Makes a symbolic link. Errors: `EXISTS`, `NOT_FOUND` (a parent), `NOT_DIRECTORY`, `SYMLINK` (on the way), `DENIED`,
/// `NO_SPACE`, `BAD_ARGUMENT`.
pub fn symlink(root: &Root, request: &SymlinkRequest) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(&request.path)?;
    if request.target.is_empty() || request.target.len() >= PATH_MAX || request.target.contains(&0) {
        return Err(Fault::bad_argument("a target that no link can hold"));
    }
    let (parent, name) = path.split().ok_or_else(|| taken(&path, "link"))?;
    let directory = open_directory(root, &parent, false)?;
    symlinkat(request.target.as_slice(), &directory, name).map_err(|errno| fault(&path, errno))?;
    Ok(FileSummary { size: 0, entries: 1 })
}

/// Gives a file another name; a link is linked itself. Errors as of [`symlink`].
pub fn link(root: &Root, request: &MoveRequest) -> Result<FileSummary, Fault> {
    let (from, to) = (CheckedPath::new(&request.from)?, CheckedPath::new(&request.to)?);
    let (from_parent, from_name) = from.split().ok_or_else(|| from.fault(Errno::PERM, "link"))?;
    let (to_parent, to_name) = to.split().ok_or_else(|| taken(&to, "link"))?;
    let old = open_directory(root, &from_parent, false)?;
    let new = open_directory(root, &to_parent, false)?;
    linkat(&old, from_name, &new, to_name, AtFlags::empty()).map_err(|errno| fault(&to, errno))?;
    Ok(FileSummary { size: 0, entries: 1 })
}

fn fault(path: &CheckedPath, errno: Errno) -> Fault {
    if errno == Errno::EXIST { taken(path, &describe(errno)) } else { path.fault(errno, "link") }
}

fn taken(path: &CheckedPath, why: &str) -> Fault {
    Fault::new(ErrorCode::Exists, format!("link {}: {why}", path.absolute().escape_ascii()))
}
