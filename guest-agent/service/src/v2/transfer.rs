//! Operations that move bytes between the host and a pipe of the guest: files and manifests.

use super::stream::{Arrival, Stream};
use crate::guest::{Guest, LocalFuture};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use wire::chunks::{COMMIT, prefix};
use wire::frame::Kind;
use wire::message::{CHANNEL_OUT, Event, FileEnd};
use wire::request::{ManifestRequest, ReadFileRequest, WriteFileRequest};
use wire::{ErrorCode, Fault};

const CHUNK_SIZE: usize = 256 << 10;

pub async fn read_file(guest: &impl Guest, stream: &Stream, request: ReadFileRequest) -> Result<(), Fault> {
    let download = guest.read_file(request).await?;
    stream.message(Kind::Event, &Event::File { size: download.size, mode: download.mode }).await;
    let size = send(download.bytes, download.ended, stream).await?;
    stream.message(Kind::End, &FileEnd { size }).await;
    Ok(())
}

pub async fn manifest(guest: &impl Guest, stream: &Stream, request: ManifestRequest) -> Result<(), Fault> {
    // A walk takes long before its first byte; it is given up as soon as nobody waits for it.
    let download = tokio::select! {
        download = guest.manifest(request) => download?,
        _ = stream.abandoned() => return Err(cancelled()),
    };
    let summary = send(download.bytes, download.ended, stream).await?;
    stream.message(Kind::End, &summary).await;
    Ok(())
}

pub fn cancelled() -> Fault {
    Fault::new(ErrorCode::Cancelled, "the host has lost interest")
}

/// Sends a pipe's bytes and gives what its filler says in the end.
pub async fn send<T>(
    mut bytes: pipe::Receiver,
    ended: LocalFuture<Result<T, Fault>>,
    stream: &Stream,
) -> Result<T, Fault> {
    let mut buffer = vec![0; CHUNK_SIZE];
    loop {
        let room = stream.room().await;
        if room == 0 {
            return Err(cancelled());
        }
        let count = tokio::select! {
            count = bytes.read(&mut buffer[..room.min(CHUNK_SIZE)]) => count,
            _ = stream.abandoned() => return Err(cancelled()),
        };
        match count {
            Ok(0) => return ended.await,
            Ok(count) => stream.send_data(CHANNEL_OUT, &buffer[..count]).await,
            Err(error) => return Err(Fault::new(ErrorCode::Internal, format!("reading from the worker: {error}"))),
        }
    }
}

pub async fn write_file(guest: &impl Guest, stream: &Stream, request: WriteFileRequest) -> Result<(), Fault> {
    let upload = guest.write_file(request).await?;
    let size = feed(upload.bytes, upload.ended, stream).await?;
    stream.message(Kind::End, &FileEnd { size }).await;
    Ok(())
}

/// Hands what the host sends to a pipe's reader and gives what that says in the end.
pub async fn feed<T>(
    mut bytes: pipe::Sender,
    mut ended: LocalFuture<Result<T, Fault>>,
    stream: &Stream,
) -> Result<T, Fault> {
    let feeding = async {
        loop {
            match stream.receive().await {
                Arrival::Bytes(content) => {
                    bytes.write_all(&prefix(content.len())).await?;
                    bytes.write_all(&content).await?;
                }
                Arrival::Complete => return bytes.write_all(&COMMIT).await,
                Arrival::Abandoned => return Ok(()),
            }
        }
    };
    tokio::select! {
        // The writer may give up early: too large, no space.
        result = &mut ended => return result,
        // A pipe that breaks is explained by how the writer ended; without a commit nothing was written.
        _ = feeding => {}
    }
    drop(bytes);
    ended.await
}
