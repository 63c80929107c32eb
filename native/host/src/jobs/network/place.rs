//! Network namespaces with a name: pinned to a file, entered by a thread of their own that ends, and let go again.

use fluxvm_sys::namespaces;
use fluxvm_sys::threads::with_signals_blocked;
use rustix::fs::{CWD, Mode, OFlags, open, statfs};
use rustix::io::{Errno, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount};
use std::ffi::CStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::thread;

/// Of the file system whose files are namespaces.
const NAMESPACE_MAGIC: u64 = 0x6e73_6673;

/// Runs `work` on a thread that may go where it likes: whatever namespace it is in at its end is left by then.
pub fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let builder = thread::Builder::new().name("fluxvm-network".into());
    let spawned = with_signals_blocked(|| builder.spawn(work)).map_err(|error| errno(&error))?;
    spawned.join().map_err(|_| Errno::NOTRECOVERABLE)?
}

/// Runs `work` in the pinned namespace, or where the agent is when `pin` is empty. `NOENT`: there is none.
pub fn inside<T: Send + 'static>(pin: &CStr, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    if pin.is_empty() {
        return work();
    }
    let namespace = open(pin, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    on_own_thread(move || {
        namespaces::enter_network(&namespace)?;
        work()
    })
}

/// The namespace where the calling thread is.
pub fn current() -> Result<OwnedFd> {
    open(c"/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Pins a namespace to a file that is made for it. `EXIST`: there is something of that name.
pub fn pin(namespace: &OwnedFd, path: &CStr) -> Result<()> {
    share_directory_of(path)?;
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    open(path, flags, Mode::empty())?;
    let source = format!("/proc/thread-self/fd/{}", namespace.as_raw_fd());
    mount_bind(source.as_str(), path).inspect_err(|_| {
        let _ = rustix::fs::unlink(path);
    })
}

/// Whether a namespace is pinned there.
pub fn is_pinned(path: &CStr) -> Result<bool> {
    match statfs(path) {
        Ok(facts) => Ok(facts.f_type.cast_unsigned() == NAMESPACE_MAGIC),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets a pinned namespace go; what is in it ends with its last process. A pin that was cut short is removed as well.
pub fn unpin(path: &CStr) -> Result<()> {
    match unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    match rustix::fs::unlinkat(CWD, path, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// As iproute2 has it: what is unmounted here is unmounted in the mount namespaces of others, too, which would keep a
/// namespace alive otherwise.
fn share_directory_of(path: &CStr) -> Result<()> {
    let directory = Path::new(path.to_str().map_err(|_| Errno::INVAL)?).parent().ok_or(Errno::INVAL)?;
    match DirBuilder::new().mode(0o755).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(errno(&error)),
    }
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match mount_change(directory, shared) {
        Err(Errno::INVAL) => {
            mount(directory, directory, c"none", MountFlags::BIND | MountFlags::REC, None)?;
            mount_change(directory, shared)
        }
        result => result,
    }
}

/// Writes a setting of the network namespace where the calling thread is. One that this kernel has not got is left out.
pub fn set(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{name}");
    match fs::write(path, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|error| errno(&error)),
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
