//! A socket that listens at a place in the file system: for its owner only, and gone when it is dropped.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// See the head of this file.
pub struct PlacedSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl PlacedSocket {
    /// Listens at `path`. A socket where nobody listens any more is replaced; who listens may be about to end.
    ///
    /// # Errors
    /// `EADDRINUSE` when somebody goes on listening there or something else lies there, or what making the socket says.
    pub fn bind(path: &Path) -> io::Result<Self> {
        patiently(io::ErrorKind::AddrInUse, || Self::bind_now(path))
    }

    fn bind_now(path: &Path) -> io::Result<Self> {
        remove_stale(path)?;
        let socket = Self { listener: UnixListener::bind(path)?, path: path.to_owned() };
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(socket)
    }

    /// The process sees other paths from now on; where it does not see the socket, somebody else must remove it.
    pub fn moved(&mut self, find: impl FnOnce(&Path) -> Option<PathBuf>) {
        self.path = find(&self.path).unwrap_or_default();
    }

    /// What accepts connections.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl AsFd for PlacedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for PlacedSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Tries for a while: a process that was killed keeps what it had until the kernel has taken it apart.
///
/// # Errors
/// What the action says last, or at once when that is of another kind.
pub(crate) fn patiently<T>(kind: io::ErrorKind, mut action: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    const PATIENCE: Duration = Duration::from_millis(500);
    const PAUSE: Duration = Duration::from_millis(5);
    let began = Instant::now();
    loop {
        match action() {
            Err(error) if error.kind() == kind && began.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// Removes what a process that was killed has left.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(refused) {
        return std::fs::remove_file(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_replaced_and_what_lives_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let left = UnixListener::bind(&path).unwrap();
        assert_eq!(PlacedSocket::bind(&path).map(drop).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(left);
        let socket = PlacedSocket::bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        drop(socket);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(PlacedSocket::bind(&path).map(drop).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }
}
