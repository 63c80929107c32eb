//! The operations on files that send bytes to the host (entries, content, archives, changes) or take bytes from it.
//! Fields are those of PROTOCOL.md; paths are checked where they are resolved. No field is left out when it is absent,
//! because requests also travel as arrays, to the worker that performs them.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// What sends bytes, possibly none, to the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FileRequest {
    Stat(PathRequest),
    Resolve(PathRequest),
    List(PathRequest),
    Create(CreateRequest),
    SetAttributes(SetAttributesRequest),
    Symlink(SymlinkRequest),
    Link(MoveRequest),
    MakeDirectory(MakeDirectoryRequest),
    Remove(RemoveRequest),
    Move(MoveRequest),
    ReadRange(ReadRangeRequest),
    ArchiveRead(PathRequest),
    Watch(WatchRequest),
}

/// What takes bytes from the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FileUploadRequest {
    WriteStream(WriteStreamRequest),
    WriteAt(WriteAtRequest),
    ArchiveWrite(PathRequest),
}

/// How long an operation may take, which decides how many of its kind run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Duration {
    /// As long as the file system takes.
    Short,
    /// As long as the host takes to send or to receive.
    Transfer,
    /// Until the host has seen enough.
    Watch,
}

impl FileRequest {
    pub fn duration(&self) -> Duration {
        match self {
            Self::ReadRange(_) | Self::ArchiveRead(_) => Duration::Transfer,
            Self::Watch(_) => Duration::Watch,
            _ => Duration::Short,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathRequest {
    pub path: ByteBuf,
}

/// A regular file that is to be there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateRequest {
    pub path: ByteBuf,
    /// Permission bits of one that is made.
    pub mode: u32,
    /// `EXISTS` when the name is taken.
    #[serde(default)]
    pub exclusive: bool,
    /// Empties one that is there.
    #[serde(default)]
    pub empty: bool,
}

/// What is absent stays as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetAttributesRequest {
    pub path: ByteBuf,
    /// Permission and set-id bits.
    #[serde(default)]
    pub mode: Option<u32>,
    /// Milliseconds since 1970.
    #[serde(default)]
    pub accessed_ms: Option<u64>,
    #[serde(default)]
    pub modified_ms: Option<u64>,
    /// Of a regular file, which is cut or filled with zeros.
    #[serde(default)]
    pub size: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SymlinkRequest {
    pub path: ByteBuf,
    /// What the link holds; taken as it is.
    pub target: ByteBuf,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MakeDirectoryRequest {
    pub path: ByteBuf,
    /// Permission bits of the directory itself; parents that are made get 0755.
    pub mode: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoveRequest {
    pub path: ByteBuf,
    /// Also a directory that is not empty.
    #[serde(default)]
    pub recursive: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveRequest {
    pub from: ByteBuf,
    pub to: ByteBuf,
}

/// A part of a regular file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadRangeRequest {
    pub path: ByteBuf,
    pub offset: u64,
    /// `offset` counts back from the end.
    #[serde(default)]
    pub from_end: bool,
    /// To the end when absent.
    #[serde(default)]
    pub length: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteStreamRequest {
    pub path: ByteBuf,
    /// Absent: the mode of the file that is replaced, or 0644.
    #[serde(default)]
    pub mode: Option<u32>,
    /// Make missing parent directories (0755).
    #[serde(default)]
    pub parents: bool,
    /// Absent: written beside and renamed over the name. Otherwise written in place from this offset, which must be
    /// the size of the file; 0 makes or empties it.
    #[serde(default)]
    pub offset: Option<u64>,
}

/// Content for a place in a regular file that is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteAtRequest {
    pub path: ByteBuf,
    /// Absent: at its end, wherever that is when the content comes.
    #[serde(default)]
    pub offset: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchRequest {
    /// A directory.
    pub path: ByteBuf,
    #[serde(default)]
    pub recursive: bool,
}

/// EVENT `opened`: what was asked for is there, and its bytes follow. Zero where it has no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Bytes of the whole file.
    pub size: u64,
    /// Of the first byte that is sent.
    pub offset: u64,
    /// Bytes that will be sent.
    pub length: u64,
    /// Permission and set-id bits.
    pub mode: u32,
    /// Milliseconds since 1970.
    pub modified_ms: u64,
}

/// END.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSummary {
    /// Bytes of content sent or taken; of an upload into a file, the size that the file has now.
    pub size: u64,
    /// Names that were sent, taken or removed.
    pub entries: u64,
}
