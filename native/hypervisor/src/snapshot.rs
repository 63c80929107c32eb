//! Snapshots of a whole machine. One at path P is four files: P (JSON, written last), P.mem, P.vmstate and P.rootfs.
//! A restore reads them and never writes them.

use crate::config::BootConfig;
use fluxvm_engine::error::Error as EngineError;
use fluxvm_engine::machine::{Lifecycle, Machine};
use fluxvm_engine::memory::Mapping;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vm_memory::{Bytes, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

/// Which form the files have.
const FORMAT: u32 = 1;
/// The description is small, and so is the state.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;
const STATE_BYTES_MAX: u64 = 64 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// Why a snapshot cannot be taken or used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Something lies where the snapshot is to go.
    #[error("{0} exists already")]
    Exists(PathBuf),
    /// A file cannot be read or written.
    #[error("{0} cannot be used")]
    File(PathBuf, #[source] io::Error),
    /// The snapshot is not one of this machine.
    #[error("the snapshot is not one of this machine: {0}")]
    Mismatch(&'static str),
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The machine could not be brought back to what it was, and has been stopped.
    #[error("the restore failed half-way and the machine was stopped")]
    Broken(#[source] Box<SnapshotError>),
}

#[derive(Debug, Deserialize, Serialize)]
struct Description {
    format: u32,
    memory_bytes: u64,
    vcpus: u32,
    disk_bytes: Option<u64>,
}

struct Files {
    description: PathBuf,
    memory: PathBuf,
    state: PathBuf,
    disk: PathBuf,
}

impl Files {
    fn at(path: &Path) -> Self {
        let with = |extension: &str| {
            let mut name = OsString::from(path);
            name.push(extension);
            PathBuf::from(name)
        };
        Self { description: path.to_owned(), memory: with(".mem"), state: with(".vmstate"), disk: with(".rootfs") }
    }

    fn all(&self) -> [&Path; 4] {
        [&self.description, &self.memory, &self.state, &self.disk]
    }
}

/// Takes a snapshot; the machine runs afterwards if it ran before. Nothing is left behind by a failure.
///
/// # Errors
/// [`SnapshotError::Exists`] when one of the files is there; [`SnapshotError::File`] or [`SnapshotError::Engine`].
pub fn save(machine: &mut Machine, config: &BootConfig, path: &Path) -> Result<(), SnapshotError> {
    let files = Files::at(path);
    if let Some(taken) = files.all().into_iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(SnapshotError::Exists(taken.to_owned()));
    }
    let was_running = machine.lifecycle() == Lifecycle::Running;
    machine.pause()?;
    let written = write_files(machine, config, &files);
    if written.is_err() {
        // Only files of this call: all four were absent before.
        files.all().into_iter().for_each(|path| drop(fs::remove_file(path)));
    }
    if was_running {
        machine.resume()?;
    }
    written
}

fn write_files(machine: &Machine, config: &BootConfig, files: &Files) -> Result<(), SnapshotError> {
    write(&files.memory, |file| write_memory(machine, file))?;
    let state = machine.save()?;
    write(&files.state, |file| file.write_all(&state))?;
    let mut disk_bytes = None;
    if let Some(disk) = &config.rootfs {
        let mut source = File::open(disk).map_err(|error| SnapshotError::File(disk.clone(), error))?;
        write(&files.disk, |file| {
            disk_bytes = Some(source.metadata()?.len());
            copy_sparse(&mut source, file)
        })?;
    }
    let description =
        Description { format: FORMAT, memory_bytes: machine.ram().bytes(), vcpus: config.vcpus, disk_bytes };
    write(&files.description, |file| serde_json::to_writer(file, &description).map_err(io::Error::other))
}

/// Puts the machine back to a snapshot; it runs afterwards if it ran before.
///
/// # Errors
/// [`SnapshotError::Mismatch`], [`SnapshotError::File`] and most of [`SnapshotError::Engine`] come before anything is
/// changed; after [`SnapshotError::Broken`] there is no machine any more.
pub fn restore(machine: &mut Machine, config: &BootConfig, path: &Path) -> Result<(), SnapshotError> {
    let files = Files::at(path);
    let state = check(machine, config, &files)?;
    let memory = File::open(&files.memory).map_err(|error| SnapshotError::File(files.memory.clone(), error))?;
    let was_running = machine.lifecycle() == Lifecycle::Running;
    machine.pause()?;
    let replaced = replace(machine, config, &files, &memory, &state);
    if let Err(error) = replaced {
        machine.stop();
        return Err(SnapshotError::Broken(Box::new(error)));
    }
    if was_running {
        machine.resume()?;
    }
    Ok(())
}

/// Reads the state after all that can be said without it.
fn check(machine: &Machine, config: &BootConfig, files: &Files) -> Result<Vec<u8>, SnapshotError> {
    let description = read(&files.description, DESCRIPTION_BYTES_MAX)?;
    let description: Description =
        serde_json::from_slice(&description).map_err(|_| SnapshotError::Mismatch("its description cannot be read"))?;
    if description.format != FORMAT {
        return Err(SnapshotError::Mismatch("it has another format"));
    }
    if description.memory_bytes != machine.ram().bytes() || description.vcpus != config.vcpus {
        return Err(SnapshotError::Mismatch("it has other memory or vCPUs"));
    }
    let disk_bytes = config.rootfs.as_deref().map(bytes_of).transpose()?;
    if description.disk_bytes != disk_bytes {
        return Err(SnapshotError::Mismatch("its disk has another size"));
    }
    if let Some(bytes) = disk_bytes
        && bytes_of(&files.disk)? != bytes
    {
        return Err(SnapshotError::Mismatch("its disk is not whole"));
    }
    if bytes_of(&files.memory)? != description.memory_bytes {
        return Err(SnapshotError::Mismatch("its memory is not whole"));
    }
    let state = read(&files.state, STATE_BYTES_MAX)?;
    machine.check(&state)?;
    Ok(state)
}

fn replace(
    machine: &mut Machine,
    config: &BootConfig,
    files: &Files,
    memory: &File,
    state: &[u8],
) -> Result<(), SnapshotError> {
    // What the guest writes stays with this process, so the snapshot is only read; its pages come when they are touched.
    machine.ram().replace(memory, Mapping::Private)?;
    machine.load(state)?;
    if let Some(path) = &config.rootfs {
        // The device has the file open, so it stays the same file and only its content changes.
        let disk = OpenOptions::new().write(true).open(path);
        let restored = disk.and_then(|mut disk| copy_over(&files.disk, &mut disk));
        restored.map_err(|error| SnapshotError::File(path.clone(), error))?;
    }
    Ok(())
}

fn write(path: &Path, content: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), SnapshotError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| content(&mut file).and_then(|()| file.sync_all()));
    written.map_err(|error| SnapshotError::File(path.to_owned(), error))
}

fn read(path: &Path, max: u64) -> Result<Vec<u8>, SnapshotError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(max + 1).read_to_end(&mut bytes));
    read.map_err(|error| SnapshotError::File(path.to_owned(), error))?;
    if bytes.len() as u64 > max {
        return Err(SnapshotError::Mismatch("a file of it is too large"));
    }
    Ok(bytes)
}

fn bytes_of(path: &Path) -> Result<u64, SnapshotError> {
    fs::metadata(path).map(|metadata| metadata.len()).map_err(|error| SnapshotError::File(path.to_owned(), error))
}

/// Pieces that hold only zeros become holes.
fn write_memory(machine: &Machine, file: &mut File) -> io::Result<()> {
    file.set_len(machine.ram().bytes())?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    for region in machine.ram().memory().iter() {
        let mut at = 0;
        while at < region.len() {
            let length = PIECE_BYTES.min(usize::try_from(region.len() - at).unwrap_or(PIECE_BYTES));
            let piece = &mut piece[..length];
            region.read_slice(piece, MemoryRegionAddress(at)).map_err(io::Error::other)?;
            write_page_runs(file, piece, offset)?;
            at += length as u64;
            offset += length as u64;
        }
    }
    Ok(())
}

/// Copies into an empty file; pages that hold only zeros become holes.
fn copy_sparse(source: &mut File, target: &mut File) -> io::Result<()> {
    target.set_len(source.metadata()?.len())?;
    source.seek(SeekFrom::Start(0))?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    loop {
        let length = source.read(&mut piece)?;
        if length == 0 {
            return Ok(());
        }
        write_page_runs(target, &piece[..length], offset)?;
        offset += length as u64;
    }
}

fn write_page_runs(file: &File, piece: &[u8], offset: u64) -> io::Result<()> {
    const PAGE_BYTES: usize = 4096;
    for (index, page) in piece.chunks(PAGE_BYTES).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, offset + (index * PAGE_BYTES) as u64)?;
        }
    }
    Ok(())
}

/// Makes a disk hold what a file does.
fn copy_over(from: &Path, disk: &mut File) -> io::Result<()> {
    let mut source = File::open(from)?;
    disk.seek(SeekFrom::Start(0))?;
    io::copy(&mut source, disk)?;
    disk.sync_all()
}
