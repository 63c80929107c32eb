//! The directory that commands and file operations start in. It belongs to the sandbox, which can take the right to
//! enter it away from itself. Whoever enters gives it back, or nothing could run that does.

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, stat};
use std::io;
use std::path::Path;

/// Changes to `workspace`.
pub fn enter(workspace: &Path) -> io::Result<()> {
    match nix::unistd::chdir(workspace) {
        Err(Errno::EACCES) => {
            let mode = Mode::from_bits_truncate(stat(workspace)?.st_mode) | Mode::S_IRWXU;
            fchmodat(AT_FDCWD, workspace, mode, FchmodatFlags::FollowSymlink)?;
            Ok(nix::unistd::chdir(workspace)?)
        }
        other => Ok(other?),
    }
}
