//! Removes a tree that a sandbox has filled as it liked: any depth, any mode, any number of names. Nothing may use the
//! tree any more. Links are removed, never followed; what is mounted inside is not touched and makes the job fail.

use super::tree::{DIRECTORY, Path, open_root, open_unlocked};
use rustix::fs::{AtFlags, CWD, Dir, FileType, RenameFlags, renameat_with, unlinkat};
use rustix::io::{Errno, Result};
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

/// Subdirectory names that are remembered for one directory; the rest is found when it is read again.
const BATCH_MAX: usize = 256;
/// Deeper directories are moved to the top of the tree first, because a path has at most 4096 bytes.
const PATH_MAX_BYTES: usize = 3072;
const ALL: u32 = 0o700;

struct Removal {
    root: OwnedFd,
    removed: u32,
    moved: u64,
}

/// Removes the tree at `path` and returns how many entries it had. Already gone is success.
pub fn remove(path: &CStr) -> Result<u32> {
    let root = match open_root(path) {
        Err(Errno::NOENT) => return Ok(0),
        result => result?,
    };
    let mut removal = Removal { root, removed: 0, moved: 0 };
    removal.empty()?;
    match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(removal.removed),
        Err(error) => Err(error),
    }
}

impl Removal {
    /// Empties the root depth first; each level remembers a batch of subdirectories.
    fn empty(&mut self) -> Result<()> {
        let mut path = Path::default();
        let mut levels = vec![self.strip(&path)?];
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.pop() {
                path.push(&name);
                levels.push(self.strip(&path)?);
                continue;
            }
            // The batch is done; when the directory is not empty there is another one.
            if path.len() == 0 {
                let next = self.strip(&path)?;
                if next.is_empty() {
                    return Ok(());
                }
                *level = next;
                continue;
            }
            match unlinkat(&self.root, path.as_c_str()?, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {
                    self.removed = self.removed.saturating_add(1);
                    levels.pop();
                    path.pop();
                }
                Err(Errno::NOTEMPTY) => {
                    let next = self.strip(&path)?;
                    if !next.is_empty() {
                        *level = next;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes everything but directories from the directory at `path`, up to a batch of subdirectories, and returns
    /// those. A subdirectory that would be too deep is moved to the root.
    fn strip(&mut self, path: &Path) -> Result<Vec<CString>> {
        let (directory, _) = open_unlocked(&self.root, path, DIRECTORY, ALL)?;
        let mut batch = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if entry.file_type() != FileType::Directory {
                match unlinkat(&directory, name, AtFlags::empty()) {
                    Ok(()) => {
                        self.removed = self.removed.saturating_add(1);
                        continue;
                    }
                    Err(Errno::NOENT) => continue,
                    Err(Errno::ISDIR) => {}
                    Err(error) => return Err(error),
                }
            }
            if path.len() + 1 + name.to_bytes().len() > PATH_MAX_BYTES {
                self.move_up(&directory, name)?;
                continue;
            }
            batch.push(name.to_owned());
            if batch.len() == BATCH_MAX {
                break;
            }
        }
        Ok(batch)
    }

    fn move_up(&mut self, directory: &OwnedFd, name: &CStr) -> Result<()> {
        loop {
            self.moved += 1;
            let top = CString::new(format!(".removed-{}", self.moved)).map_err(|_| Errno::INVAL)?;
            match renameat_with(directory, name, &self.root, &top, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => continue,
                // Moving a directory rewrites its parent entry, for which its owner needs to be allowed to write it.
                Err(Errno::ACCESS) => {
                    let mut inner = Path::default();
                    inner.push(name);
                    open_unlocked(directory, &inner, DIRECTORY, ALL)?;
                    return renameat_with(directory, name, &self.root, &top, RenameFlags::NOREPLACE);
                }
                result => return result,
            }
        }
    }
}
