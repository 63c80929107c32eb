//! Changes below a directory as they happen: the kernel's notices of each directory, brought together into few, with
//! every loss reported. Names are resolved as everywhere; no link is followed.

mod batch;
mod directories;

use crate::read::nobody_reads;
use crate::root::{CheckedPath, Root};
use batch::Batch;
use directories::Directories;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, init};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use wire::file_request::{FileSummary, Opened, WatchRequest};
use wire::{ErrorCode, Fault};

/// How long changes are gathered before they are sent, so that many of one file become one.
const GATHER: Duration = Duration::from_millis(40);
/// Changes that are gathered at most.
const GATHERED_MAX: usize = 4096;
const BUFFER_SIZE: usize = 64 << 10;

/// Sends changes until the directory goes away, or nobody reads `out` any more (`CANCELLED`). `opened` is told when
/// every directory is watched. Changes the working directory of the calling thread, or of all that share it. Errors:
/// `NOT_FOUND`, `NOT_DIRECTORY`, `SYMLINK`, `DENIED`, `LIMIT`.
pub fn watch(
    root: &Root,
    request: &WatchRequest,
    opened: impl FnOnce(Opened) -> Result<(), Fault>,
    mut out: File,
) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(&request.path)?;
    let fault = |errno| path.fault(errno, "watch");
    let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|errno| match errno {
        Errno::MFILE => Fault::new(ErrorCode::Limit, "watch: too many watches are open"),
        errno => fault(errno),
    })?;
    let mut directories = Directories::new(root, &inotify, path.clone(), request.recursive);
    directories.start()?;
    opened(Opened::default())?;
    let mut summary = FileSummary::default();
    loop {
        if !wait(&inotify, &out, None).map_err(fault)? {
            return Err(nobody_reads());
        }
        let mut batch = Batch::default();
        let goes_on = gather(&inotify, &out, &mut directories, &mut batch)?;
        let mut encoded = Vec::new();
        for change in batch.into_changes() {
            change.encode(&mut encoded);
            summary.entries += 1;
        }
        out.write_all(&encoded).map_err(|_| nobody_reads())?;
        if !goes_on {
            return Ok(summary);
        }
    }
}

/// Takes notices for a while. `false` when the watched directory itself is gone.
fn gather(inotify: &OwnedFd, out: &File, directories: &mut Directories<'_>, batch: &mut Batch) -> Result<bool, Fault> {
    let until = Instant::now() + GATHER;
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_SIZE];
    loop {
        let mut reader = Reader::new(inotify, &mut buffer);
        loop {
            let notice = match reader.next() {
                Ok(notice) => notice,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(crate::errno::fault(errno, "watch", b"")),
            };
            if notice.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                batch.overflow();
                directories.complete()?;
            } else if !directories.take(&notice, batch)? {
                return Ok(false);
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || batch.len() >= GATHERED_MAX {
            directories.settle(batch);
            return Ok(true);
        }
        // Whether somebody still reads is found out by writing.
        let _ = wait(inotify, out, Some(left)).map_err(|errno| crate::errno::fault(errno, "watch", b""))?;
    }
}

/// Waits for a notice. `false` when nobody reads `out` any more.
fn wait(inotify: &OwnedFd, out: &File, limit: Option<Duration>) -> Result<bool, Errno> {
    loop {
        // An error or hang-up is reported without being asked for.
        let mut watched = [
            PollFd::from_borrowed_fd(inotify.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(out.as_fd(), PollFlags::empty()),
        ];
        let limit = limit.map(|limit| Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() });
        match poll(&mut watched, limit.as_ref()) {
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
            Ok(_) => return Ok(watched[1].revents().is_empty()),
        }
    }
}
