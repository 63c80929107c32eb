//! Operations on files that send bytes to the host or take bytes from it.

use super::open::arguments;
use super::stream::Stream;
use super::transfer::{feed, send};
use crate::guest::Guest;
use wire::Fault;
use wire::file_request::*;
use wire::frame::{Frame, Kind};
use wire::message::Event;

/// An operation with its arguments.
pub enum Operation {
    Download(FileRequest),
    Upload(FileUploadRequest),
}

/// The operation that a frame asks for; `None` when it is none of these. Error `BAD_ARGUMENT`.
pub fn operation(op: &str, frame: &Frame<'_>) -> Option<Result<Operation, Fault>> {
    Some(match op {
        "stat" => arguments(frame).map(|it| Operation::Download(FileRequest::Stat(it))),
        "resolve" => arguments(frame).map(|it| Operation::Download(FileRequest::Resolve(it))),
        "list" => arguments(frame).map(|it| Operation::Download(FileRequest::List(it))),
        "create" => arguments(frame).map(|it| Operation::Download(FileRequest::Create(it))),
        "set-attributes" => arguments(frame).map(|it| Operation::Download(FileRequest::SetAttributes(it))),
        "symlink" => arguments(frame).map(|it| Operation::Download(FileRequest::Symlink(it))),
        "link" => arguments(frame).map(|it| Operation::Download(FileRequest::Link(it))),
        "mkdir" => arguments(frame).map(|it| Operation::Download(FileRequest::MakeDirectory(it))),
        "remove" => arguments(frame).map(|it| Operation::Download(FileRequest::Remove(it))),
        "move" => arguments(frame).map(|it| Operation::Download(FileRequest::Move(it))),
        "read-range" => arguments(frame).map(|it| Operation::Download(FileRequest::ReadRange(it))),
        "archive-read" => arguments(frame).map(|it| Operation::Download(FileRequest::ArchiveRead(it))),
        "watch" => arguments(frame).map(|it| Operation::Download(FileRequest::Watch(it))),
        "write-stream" => arguments(frame).map(|it| Operation::Upload(FileUploadRequest::WriteStream(it))),
        "write-at" => arguments(frame).map(|it| Operation::Upload(FileUploadRequest::WriteAt(it))),
        "archive-write" => arguments(frame).map(|it| Operation::Upload(FileUploadRequest::ArchiveWrite(it))),
        _ => return None,
    })
}

pub async fn perform(guest: &impl Guest, stream: &Stream, operation: Operation) -> Result<(), Fault> {
    let summary = match operation {
        Operation::Download(request) => {
            // Removing a large tree or listing a slow one is given up as soon as nobody waits for it.
            let download = tokio::select! {
                download = guest.file(request) => download?,
                _ = stream.abandoned() => return Err(super::transfer::cancelled()),
            };
            stream.message(Kind::Event, &Event::Opened(download.opened)).await;
            send(download.bytes, download.ended, stream).await?
        }
        Operation::Upload(request) => {
            let upload = guest.file_upload(request).await?;
            feed(upload.bytes, upload.ended, stream).await?
        }
    };
    stream.message(Kind::End, &summary).await;
    Ok(())
}
