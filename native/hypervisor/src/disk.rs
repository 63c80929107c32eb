//! The disk that the guest boots from: a file that is written in place, or a layer of writes over one that is only read. Its
//! copies for snapshots are of what is written.

use crate::config::{BootConfig, ConfigError, opening};
use crate::paths::Paths;
use crate::prepared::{RootFile, device};
use crate::service::Status;
use crate::socket::patiently;
use crate::sparse;
use fluxvm_engine::virtio::disk::{Disk, DiskError, Durability, SharedDisk};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

enum Written {
    /// The whole disk.
    File(File),
    /// A layer at this path.
    Layer(PathBuf),
}

/// What a disk is put back to.
pub(crate) struct Brought {
    /// A new layer, or what is copied over the disk's file.
    file: File,
    /// Where the new layer lies. It is removed when it does not take the place of the disk's own.
    unfinished: Option<PathBuf>,
}

impl Drop for Brought {
    fn drop(&mut self) {
        self.unfinished.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

/// See the head of this file.
pub(crate) struct RootDisk {
    shared: SharedDisk,
    written: Written,
    /// The layer that this boot made, until the machine runs.
    made: Option<PathBuf>,
}

impl RootDisk {
    /// The disk with its layer, which is made when it is absent and taken back when the disk is dropped before
    /// [`RootDisk::keep`].
    ///
    /// # Errors
    /// [`ConfigError`] that names the field.
    pub(crate) fn open(root: RootFile, config: &BootConfig, paths: &Paths) -> Result<Self, ConfigError> {
        let mut disk = root.disk().map_err(device("rootfs_bytes"))?;
        let Some(layer) = &config.rootfs_layer else {
            lock(&root.file).map_err(device("rootfs"))?;
            return Ok(Self { shared: disk.shared(), written: Written::File(root.file), made: None });
        };
        let path = paths.find("rootfs_layer", layer)?;
        let exists = path.symlink_metadata().is_ok();
        let file = if exists { open_layer(&path) } else { create(&unfinished(&path)) };
        let file = file.and_then(|file| lock(&file).map(|()| file)).map_err(opening("rootfs_layer", layer))?;
        if exists {
            disk.push_existing(file).map_err(device("rootfs_layer"))?;
            return Ok(Self { shared: disk.shared(), written: Written::Layer(path), made: None });
        }
        let made = push_new(&mut disk, file).and_then(|()| Ok(fs::rename(unfinished(&path), &path)?));
        if made.is_err() {
            let _ = fs::remove_file(unfinished(&path));
        }
        made.map_err(device("rootfs_layer"))?;
        Ok(Self { shared: disk.shared(), written: Written::Layer(path.clone()), made: Some(path) })
    }

    /// The disk as a device shares it.
    pub(crate) fn shared(&self) -> SharedDisk {
        SharedDisk::clone(&self.shared)
    }

    /// The machine runs: what was made for it stays.
    pub(crate) fn keep(&mut self) {
        self.made = None;
    }

    /// Length of the file that a copy would have.
    ///
    /// # Errors
    /// What the host says.
    pub(crate) fn copy_bytes(&self) -> io::Result<u64> {
        match &self.written {
            Written::File(file) => Ok(file.metadata()?.len()),
            Written::Layer(path) => Ok(path.metadata()?.len()),
        }
    }

    /// Copies what is written to an empty file, while the machine is at rest. The file shares its blocks where the host can.
    ///
    /// # Errors
    /// What the host says; `Interrupted` when the machine is to end.
    pub(crate) fn copy_to(&self, target: &File, status: &Status) -> io::Result<()> {
        self.locked().sync()?;
        match &self.written {
            Written::File(file) => sparse::copy(file, target, status),
            Written::Layer(path) => sparse::copy(&File::open(path)?, target, status),
        }
    }

    /// Does what takes long or room before the disk is put back to `source`, which was copied from it, and looks whether that can
    /// be. Nothing of the disk changes yet.
    ///
    /// # Errors
    /// What the host says, or that the file is no layer of this disk; nothing is left then.
    pub(crate) fn bring(&self, source: File, status: &Status) -> Result<Brought, DiskError> {
        let Written::Layer(path) = &self.written else { return Ok(Brought { file: source, unfinished: None }) };
        let unfinished = unfinished(path);
        let brought = Brought { file: create(&unfinished)?, unfinished: Some(unfinished) };
        lock(&brought.file)?;
        sparse::copy(&source, &brought.file, status)?;
        brought.file.sync_all()?;
        let disk_bytes = self.locked().bytes();
        Disk::check_layer(&brought.file, disk_bytes)?;
        Ok(brought)
    }

    /// Makes the disk what was brought, while the machine is at rest.
    ///
    /// # Errors
    /// What the host says. The disk must not be used afterwards.
    pub(crate) fn restore(&self, brought: &Brought) -> Result<(), DiskError> {
        match &self.written {
            // The device has the file open, so it stays the same file and only its content changes. Half of that is no disk, so
            // that not even the end of the machine breaks it off.
            Written::File(file) => {
                sparse::copy_over(&brought.file, file, &Status::new())?;
                Ok(file.sync_data()?)
            }
            Written::Layer(path) => {
                let mut disk = self.locked();
                disk.discard_top()?;
                disk.push_existing(brought.file.try_clone()?)?;
                Ok(fs::rename(unfinished(path), path)?)
            }
        }
    }

    /// Whether what the guest writes lies in a layer.
    pub(crate) fn has_layer(&self) -> bool {
        matches!(self.written, Written::Layer(_))
    }

    /// Puts a layer on the disk of a machine at rest that is gone with this process.
    ///
    /// # Errors
    /// What the host says; the disk is then as before.
    pub(crate) fn begin_trial(&self) -> Result<(), DiskError> {
        let Written::Layer(path) = &self.written else { return Err(DiskError::NoLayer) };
        let unfinished = unfinished(path);
        let file = create(&unfinished)?;
        fs::remove_file(&unfinished)?;
        self.locked().push(file, Durability::Ephemeral)
    }

    /// Takes that layer off with all that is in it, while the machine is at rest.
    ///
    /// # Errors
    /// [`DiskError::NoLayer`].
    pub(crate) fn discard_trial(&self) -> Result<(), DiskError> {
        self.locked().discard_top()
    }

    /// Brings what that layer has into the durable one and to the disk of the host, while the machine is at rest.
    ///
    /// # Errors
    /// What the host says; the disk then reads as before.
    pub(crate) fn merge_trial(&self) -> Result<(), DiskError> {
        let mut disk = self.locked();
        disk.merge_top()?;
        Ok(disk.sync()?)
    }

    fn locked(&self) -> MutexGuard<'_, Disk> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RootDisk {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = fs::remove_file(path);
        }
    }
}

/// A power cut after this leaves a whole layer.
fn push_new(disk: &mut Disk, file: File) -> Result<(), DiskError> {
    disk.push(file, Durability::Durable)?;
    Ok(disk.sync()?)
}

/// Where a layer is made before it takes its place: what a process that was killed leaves there is no layer.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    PathBuf::from(name)
}

/// Makes an empty file; one that an earlier process left is replaced.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Two machines that write to one file would destroy it. The lock ends with the last descriptor of the file.
fn lock(file: &File) -> io::Result<()> {
    let locked = patiently(io::ErrorKind::WouldBlock, || Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?));
    locked.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(error.kind(), "another machine writes to it"),
        _ => error,
    })
}

fn open_layer(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}
