//! A worker: a process of the sandbox, with its rights and no more, that does file operations and manifests for
//! the supervisor. Content goes through pipes that the supervisor made; requests and results through its socket.

use crate::control;
use crate::sys::packet::{self, Packet};
use crate::sys::process;
use crate::workspace;
use files::chunks::ChunkReader;
use files::{Links, Manifests, Root};
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use wire::file_request::{FileRequest, FileSummary, FileUploadRequest, Opened};
use wire::request::{ManifestRequest, ManifestSummary, ReadFileRequest, WriteFileRequest};
use wire::{ErrorCode, Fault};

/// What a worker is asked to do. The other end of the content's pipe comes along.
#[derive(Debug, Serialize, Deserialize)]
pub enum Job {
    Read(ReadFileRequest),
    Write(WriteFileRequest),
    Manifest(ManifestRequest),
    File(FileRequest),
    Upload(FileUploadRequest),
}

/// What a worker says about its job: `Taken` comes first, `Opened` or `Begun` before the content, and each of the others
/// ends the job. One that ends before it said `Taken` has done nothing of the job.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Taken,
    Opened { size: u64, mode: u32 },
    Moved { size: u64 },
    Listed(ManifestSummary),
    Begun(Opened),
    Done(FileSummary),
    Failed(Fault),
}

/// Serves the supervisor through `socket`, in a process that init just forked. Never returns.
pub fn run(socket: OwnedFd, workspace: &Path) -> ! {
    process::exit_with(|| i32::from(serve(socket, workspace).is_err()))
}

fn serve(socket: OwnedFd, workspace: &Path) -> io::Result<()> {
    process::close_all_except(&[0, 1, 2, socket.as_raw_fd()])?;
    workspace::enter(workspace)?;
    let root = || -> io::Result<Root> {
        let directory = open(c".", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Root::new(directory, Links::Refuse))
    };
    let files = root()?;
    let mut manifests = Manifests::new(root()?, Manifests::threads_default());
    while let Some(Packet { body, mut descriptors }) = packet::receive(socket.as_fd())? {
        let content = descriptors.pop().ok_or(io::ErrorKind::InvalidData)?;
        workspace::enter(workspace)?;
        let say = |reply: &Reply| control::send(socket.as_fd(), reply);
        say(&Reply::Taken)?;
        let result = match control::decode(&body)? {
            Job::Read(request) => read(&files, &request, content, say),
            Job::Write(request) => files::write_file(&files, &request, &mut ChunkReader::new(File::from(content)))
                .map(|size| Reply::Moved { size }),
            Job::Manifest(request) => list(&mut manifests, &request, content),
            Job::File(request) => {
                let begun = |opened| say(&Reply::Begun(opened)).map_err(internal);
                files::perform(&files, &request, begun, File::from(content)).map(Reply::Done)
            }
            Job::Upload(request) => {
                files::perform_upload(&files, &request, &mut ChunkReader::new(File::from(content))).map(Reply::Done)
            }
        };
        say(&result.unwrap_or_else(Reply::Failed))?;
    }
    Ok(())
}

fn read(
    root: &Root,
    request: &ReadFileRequest,
    content: OwnedFd,
    say: impl Fn(&Reply) -> io::Result<()>,
) -> Result<Reply, Fault> {
    let file = files::open_file(root, request)?;
    let opened = Reply::Opened { size: file.size, mode: file.mode };
    say(&opened).map_err(internal)?;
    let size = file.send(&mut File::from(content))?;
    Ok(Reply::Moved { size })
}

fn internal(error: io::Error) -> Fault {
    Fault::new(ErrorCode::Internal, error.to_string())
}

fn list(manifests: &mut Manifests, request: &ManifestRequest, content: OwnedFd) -> Result<Reply, Fault> {
    let cancel = AtomicBool::new(false);
    let watched = content.try_clone().and_then(|copy| Ok((copy, nix::unistd::pipe()?)));
    let (copy, (stopped, stop)) = watched.map_err(internal)?;
    let mut content = File::from(content);
    let summary = thread::scope(|scope| {
        scope.spawn(|| cancel.store(reader_left(copy.as_fd(), stopped.as_fd()), Ordering::Relaxed));
        let summary = manifests.run(request, &cancel, &mut content);
        drop(stop);
        summary
    })?;
    Ok(Reply::Listed(summary))
}

/// Waits until nobody reads the pipe `content` any more (true), or the writer of `stopped` is gone (false).
fn reader_left(content: BorrowedFd<'_>, stopped: BorrowedFd<'_>) -> bool {
    loop {
        // An error or hang-up is reported without being asked for.
        let mut watched = [PollFd::new(content, PollFlags::empty()), PollFd::new(stopped, PollFlags::empty())];
        match poll(&mut watched, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => (),
            Err(_) => return false,
            Ok(_) => return watched[0].any().unwrap_or(false),
        }
    }
}
