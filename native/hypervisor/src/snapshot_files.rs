//! The four files of a snapshot: beside a path, where they are made and found by name, or open already, because they came
//! with the request. A machine in a jail has no other way to what lies outside of its directory.

use crate::files;
use crate::snapshot::SnapshotError;
use serde::Deserialize;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// As many files as come with a request at most.
pub(crate) const FILES_MAX: usize = 4;

/// What a request says of a snapshot: a path, or nothing, and then its files come with it.
#[derive(Debug, Deserialize)]
pub struct Place {
    /// The path.
    pub path: Option<PathBuf>,
    /// Description, memory, state and, of a machine with a disk, disk.
    #[serde(skip)]
    pub files: Vec<File>,
}

/// One of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What it is of, in JSON; written last.
    Description,
    /// The RAM.
    Memory,
    /// vCPUs and devices.
    State,
    /// What the guest wrote to its disk.
    Disk,
}

const PARTS: [(Part, &str, &str); FILES_MAX] = [
    (Part::Description, "", "the snapshot's description"),
    (Part::Memory, ".mem", "the snapshot's memory"),
    (Part::State, ".vmstate", "the snapshot's state"),
    (Part::Disk, ".rootfs", "the snapshot's disk"),
];

/// See the head of this file.
pub(crate) enum SnapshotFiles {
    /// Beside this path.
    At(PathBuf),
    /// Open, in the order of the parts.
    Passed(Vec<File>),
}

impl SnapshotFiles {
    /// Where all the files lie that have a place.
    pub(crate) fn paths(&self, has_disk: bool) -> Vec<PathBuf> {
        let parts = PARTS.into_iter().filter(|(part, ..)| has_disk || *part != Part::Disk);
        parts.map(|(part, ..)| self.name(part)).collect()
    }

    /// The files that are open.
    pub(crate) fn open_files(&self) -> &[File] {
        match self {
            Self::At(_) => &[],
            Self::Passed(files) => files,
        }
    }

    /// Makes sure that nothing is there which a new snapshot would replace.
    ///
    /// # Errors
    /// [`SnapshotError::Exists`], or [`SnapshotError::Passed`] when there are not as many files as there must be.
    pub(crate) fn require_room(&self, has_disk: bool) -> Result<(), SnapshotError> {
        self.require_all(has_disk)?;
        for (part, ..) in PARTS.into_iter().filter(|(part, ..)| self.has(*part)) {
            let taken = match self {
                Self::At(_) => self.name(part).symlink_metadata().is_ok(),
                Self::Passed(_) => self.bytes(part)? != 0,
            };
            if taken {
                return Err(SnapshotError::Exists(self.name(part)));
            }
        }
        Ok(())
    }

    /// Makes sure that there is a file for each part, as far as that can be seen.
    ///
    /// # Errors
    /// [`SnapshotError::Passed`].
    pub(crate) fn require_all(&self, has_disk: bool) -> Result<(), SnapshotError> {
        let Self::Passed(files) = self else { return Ok(()) };
        let wanted = if has_disk { FILES_MAX } else { FILES_MAX - 1 };
        let regular = |file: &File| file.metadata().is_ok_and(|found| found.is_file());
        if files.len() != wanted || !files.iter().all(regular) {
            return Err(SnapshotError::Passed(wanted));
        }
        Ok(())
    }

    /// Writes a part.
    ///
    /// # Errors
    /// [`SnapshotError::File`].
    pub(crate) fn write(
        &self,
        part: Part,
        content: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        let file = match self {
            Self::At(_) => OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.name(part)),
            Self::Passed(_) => self.passed(part),
        };
        file.and_then(|mut file| content(&mut file)).map_err(self.failed(part))
    }

    /// Makes a part durable.
    ///
    /// # Errors
    /// [`SnapshotError::File`].
    pub(crate) fn sync(&self, part: Part) -> Result<(), SnapshotError> {
        self.open(part)?.sync_all().map_err(self.failed(part))
    }

    /// Opens a part.
    ///
    /// # Errors
    /// [`SnapshotError::File`].
    pub(crate) fn open(&self, part: Part) -> Result<File, SnapshotError> {
        let file = match self {
            Self::At(_) => files::open(&self.name(part), OpenOptions::new().read(true)),
            Self::Passed(_) => self.passed(part),
        };
        file.map_err(self.failed(part))
    }

    /// The whole content of a part that has at most `max` bytes.
    ///
    /// # Errors
    /// [`SnapshotError::File`] or [`SnapshotError::Mismatch`].
    pub(crate) fn read(&self, part: Part, max: u64) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = Vec::new();
        self.open(part)?.take(max + 1).read_to_end(&mut bytes).map_err(self.failed(part))?;
        if bytes.len() as u64 > max {
            return Err(SnapshotError::Mismatch("a file of it is too large"));
        }
        Ok(bytes)
    }

    /// Length of a part.
    ///
    /// # Errors
    /// [`SnapshotError::File`].
    pub(crate) fn bytes(&self, part: Part) -> Result<u64, SnapshotError> {
        self.open(part)?.metadata().map(|found| found.len()).map_err(self.failed(part))
    }

    /// Leaves nothing of a snapshot that failed. Only after [`SnapshotFiles::require_room`].
    pub(crate) fn discard(&self) {
        match self {
            Self::At(_) => PARTS.into_iter().for_each(|(part, ..)| drop(fs::remove_file(self.name(part)))),
            Self::Passed(files) => files.iter().for_each(|file| drop(file.set_len(0))),
        }
    }

    /// For `map_err`.
    pub(crate) fn failed(&self, part: Part) -> impl FnOnce(io::Error) -> SnapshotError {
        let name = self.name(part);
        move |error| SnapshotError::File(name, error)
    }

    /// Another descriptor of an open file, at its beginning.
    fn passed(&self, part: Part) -> io::Result<File> {
        let Self::Passed(files) = self else { return Err(io::ErrorKind::NotFound.into()) };
        let mut file = files.get(part as usize).ok_or(io::ErrorKind::NotFound)?.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }

    fn has(&self, part: Part) -> bool {
        match self {
            Self::At(_) => true,
            Self::Passed(files) => files.len() > part as usize,
        }
    }

    fn name(&self, part: Part) -> PathBuf {
        let (_, extension, words) = PARTS[part as usize];
        match self {
            Self::At(path) => with(path, extension),
            Self::Passed(_) => PathBuf::from(words),
        }
    }
}

fn with(path: &Path, extension: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(extension);
    PathBuf::from(name)
}
