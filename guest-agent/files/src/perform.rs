//! One entrance for all operations that send bytes to the host or take bytes from it.

use crate::parents::make_directory;
use crate::root::{CheckedPath, Root};
use crate::{archive, attributes, create, links, look, read, remove, rename, resolve, watch, write};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use wire::Fault;
use wire::file_request::{FileRequest, FileSummary, FileUploadRequest, Opened};

/// Performs `request`. `opened` is told once what it is about has been found, before anything is written to `out`; its
/// fault ends the operation. A watch changes the working directory of the calling thread.
pub fn perform(
    root: &Root,
    request: &FileRequest,
    opened: impl FnOnce(Opened) -> Result<(), Fault>,
    mut out: File,
) -> Result<FileSummary, Fault> {
    match request {
        FileRequest::Stat(request) => {
            opened(Opened::default())?;
            look::stat(root, &request.path, &mut out)
        }
        FileRequest::Resolve(request) => {
            opened(Opened::default())?;
            resolve::resolve(root, &request.path, &mut out)
        }
        FileRequest::List(request) => {
            opened(Opened::default())?;
            look::list(root, &request.path, &mut out)
        }
        FileRequest::Create(request) => {
            opened(Opened::default())?;
            create::create(root, request)
        }
        FileRequest::SetAttributes(request) => {
            opened(Opened::default())?;
            attributes::set(root, request)
        }
        FileRequest::Symlink(request) => {
            opened(Opened::default())?;
            links::symlink(root, request)
        }
        FileRequest::Link(request) => {
            opened(Opened::default())?;
            links::link(root, request)
        }
        FileRequest::MakeDirectory(request) => {
            opened(Opened::default())?;
            let made = make_directory(root, &CheckedPath::new(&request.path)?, request.mode & 0o777)?;
            Ok(FileSummary { size: 0, entries: made.into() })
        }
        FileRequest::Remove(request) => {
            opened(Opened::default())?;
            remove::remove(root, request, &|| nobody_listens(&out))
        }
        FileRequest::Move(request) => {
            opened(Opened::default())?;
            rename::rename(root, request)
        }
        FileRequest::ReadRange(request) => read::read_range(root, request, opened, &mut out),
        FileRequest::ArchiveRead(request) => archive::pack(root, &request.path, opened, &mut out),
        FileRequest::Watch(request) => watch::watch(root, request, opened, out),
    }
}

/// Performs `request` with what `content` has until its end.
pub fn perform_upload(root: &Root, request: &FileUploadRequest, content: &mut impl Read) -> Result<FileSummary, Fault> {
    match request {
        FileUploadRequest::WriteStream(request) => write::write_stream(root, request, content),
        FileUploadRequest::WriteAt(request) => write::write_at(root, request, content),
        FileUploadRequest::ArchiveWrite(request) => archive::unpack(root, &request.path, content),
    }
}

/// Whether the reading end of the pipe `out` is closed.
fn nobody_listens(out: &File) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(out.as_fd(), PollFlags::empty())];
    poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
