//! Snapshots of a whole machine. One at path P is four files: P (JSON, written last), P.mem, P.vmstate and P.rootfs.
//! A restore reads them and never writes them.

use crate::disk::{Brought, RootDisk};
use crate::memory::Memory;
use crate::service::Status;
use crate::snapshot_files::{Part, SnapshotFiles};
use fluxvm_engine::error::Error as EngineError;
use fluxvm_engine::machine::{Lifecycle, Machine};
use fluxvm_engine::virtio::balloon::BalloonControl;
use fluxvm_engine::virtio::disk::DiskError;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// Which form the files have.
const FORMAT: u32 = 1;
/// The description is small, and so is the state.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;
const STATE_BYTES_MAX: u64 = 64 << 20;

/// Why a snapshot cannot be taken or used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Something lies where the snapshot is to go.
    #[error("{0} exists already")]
    Exists(PathBuf),
    /// Not the files that a snapshot has came with the request.
    #[error("a snapshot needs a path, or {0} files that come with the request: description, memory, state, disk")]
    Passed(usize),
    /// A file cannot be read or written.
    #[error("{0} cannot be used")]
    File(PathBuf, #[source] io::Error),
    /// The snapshot is not one of this machine.
    #[error("the snapshot is not one of this machine: {0}")]
    Mismatch(&'static str),
    /// A disk that the guest writes would not be a part of it.
    #[error("a machine with data_disks that it may write has no snapshots: make them read_only or leave them out")]
    DataDisks,
    /// The machine may yet go back to what it was.
    #[error("there is a checkpoint: revert or commit it first")]
    Checkpoint,
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The disk cannot be put back.
    #[error("rootfs cannot be put back")]
    Disk(#[from] DiskError),
    /// The machine could not be brought back to what it was, and has been stopped.
    #[error("the restore failed half-way and the machine was stopped")]
    Broken(#[source] Box<SnapshotError>),
}

/// What a snapshot is of.
pub(crate) struct Subject<'a> {
    pub(crate) machine: &'a mut Machine,
    pub(crate) memory: &'a mut Memory,
    pub(crate) root: Option<&'a RootDisk>,
    pub(crate) balloon: &'a BalloonControl,
    /// vCPUs that the guest was given; those that it may still get are made already.
    pub(crate) vcpus: &'a mut u32,
    /// Whether the guest may write to other disks.
    pub(crate) writes_elsewhere: bool,
    pub(crate) status: &'a Status,
}

#[derive(Debug, Deserialize, Serialize)]
struct Description {
    format: u32,
    memory_bytes: u64,
    vcpus: u32,
    max_vcpus: u32,
    disk_bytes: Option<u64>,
    /// By which damage to the state is seen. Absent: the snapshot is of an earlier version.
    state_sum: Option<String>,
}

impl Subject<'_> {
    /// Takes a snapshot; the machine runs afterwards if it ran before. Nothing is left behind by a failure.
    ///
    /// # Errors
    /// [`SnapshotError::Exists`] when one of the files is there or has content, [`SnapshotError::Passed`],
    /// [`SnapshotError::DataDisks`], [`SnapshotError::File`] or [`SnapshotError::Engine`].
    pub(crate) fn save(&mut self, files: &SnapshotFiles) -> Result<(), SnapshotError> {
        if self.writes_elsewhere {
            return Err(SnapshotError::DataDisks);
        }
        files.require_room(self.root.is_some())?;
        let was_running = self.machine.lifecycle() == Lifecycle::Running;
        self.machine.pause()?;
        let written = self.write_files(files);
        let resumed = if was_running { self.machine.resume() } else { Ok(()) };
        // The guest does not wait for the host's disk.
        let kept = written.and_then(|description| self.keep(files, &description));
        let finished = resumed.map_err(SnapshotError::from).and(kept);
        if finished.is_err() {
            files.discard();
        }
        finished
    }

    /// Makes all that was written last, and then describes it.
    fn keep(&self, files: &SnapshotFiles, description: &Description) -> Result<(), SnapshotError> {
        for part in [Some(Part::Memory), Some(Part::State), self.root.map(|_| Part::Disk)].into_iter().flatten() {
            files.sync(part)?;
        }
        files.write(Part::Description, |file| serde_json::to_writer(file, description).map_err(io::Error::other))?;
        files.sync(Part::Description)
    }

    fn write_files(&self, files: &SnapshotFiles) -> Result<Description, SnapshotError> {
        files.write(Part::Memory, |file| self.memory.save(self.machine.ram(), file, self.status))?;
        let state = self.machine.save()?;
        files.write(Part::State, |file| file.write_all(&state))?;
        let mut disk_bytes = None;
        if let Some(root) = self.root {
            files.write(Part::Disk, |file| {
                root.copy_to(file, self.status)?;
                disk_bytes = Some(file.metadata()?.len());
                Ok(())
            })?;
        }
        let memory_bytes = self.machine.ram().bytes();
        let (vcpus, max_vcpus, state_sum) = (*self.vcpus, self.vcpus_made(), Some(sum(&state)));
        Ok(Description { format: FORMAT, memory_bytes, vcpus, max_vcpus, disk_bytes, state_sum })
    }

    /// Puts the machine back to a snapshot; it runs afterwards if it ran before, and is paused if it had not run yet.
    ///
    /// # Errors
    /// [`SnapshotError::Passed`], [`SnapshotError::Mismatch`], [`SnapshotError::File`] and most of [`SnapshotError::Engine`] come before anything is
    /// changed; after [`SnapshotError::Broken`] there is no machine any more.
    pub(crate) fn restore(&mut self, files: &SnapshotFiles) -> Result<(), SnapshotError> {
        files.require_all(self.root.is_some())?;
        let (description, state) = self.check(files)?;
        let memory = files.open(Part::Memory)?;
        // While the guest runs, and before anything is changed: a host without room leaves the machine as it was.
        let disk = self.root.map(|root| Ok::<_, SnapshotError>(root.bring(files.open(Part::Disk)?, self.status)?));
        let disk = disk.transpose()?;
        let was_running = self.machine.lifecycle() == Lifecycle::Running;
        if self.machine.lifecycle() != Lifecycle::Created {
            self.machine.pause()?;
        }
        if let Err(error) = self.replace(&memory, disk.as_ref(), &state) {
            self.machine.stop();
            return Err(SnapshotError::Broken(Box::new(error)));
        }
        *self.vcpus = description.vcpus;
        if was_running {
            self.machine.resume()?;
        }
        Ok(())
    }

    /// Reads the state after all that can be said without it.
    fn check(&self, files: &SnapshotFiles) -> Result<(Description, Vec<u8>), SnapshotError> {
        let description = files.read(Part::Description, DESCRIPTION_BYTES_MAX)?;
        let description: Description = serde_json::from_slice(&description)
            .map_err(|_| SnapshotError::Mismatch("its description cannot be read"))?;
        if description.format != FORMAT {
            return Err(SnapshotError::Mismatch("it has another format"));
        }
        if description.memory_bytes != self.machine.ram().bytes() || description.max_vcpus != self.vcpus_made() {
            return Err(SnapshotError::Mismatch("it has other memory or vCPUs"));
        }
        if !(1..=description.max_vcpus).contains(&description.vcpus) {
            return Err(SnapshotError::Mismatch("its number of vCPUs makes no sense"));
        }
        let disk_bytes = self.root.map(|root| root.copy_bytes()).transpose();
        let disk_bytes = disk_bytes.map_err(files.failed(Part::Disk))?;
        if description.disk_bytes != disk_bytes {
            return Err(SnapshotError::Mismatch("its disk has another size"));
        }
        if let Some(bytes) = disk_bytes
            && files.bytes(Part::Disk)? != bytes
        {
            return Err(SnapshotError::Mismatch("its disk is not whole"));
        }
        if files.bytes(Part::Memory)? != description.memory_bytes {
            return Err(SnapshotError::Mismatch("its memory is not whole"));
        }
        let state = files.read(Part::State, STATE_BYTES_MAX)?;
        self.machine.check(&state)?;
        if description.state_sum.as_ref().is_some_and(|wanted| *wanted != sum(&state)) {
            return Err(SnapshotError::Mismatch("its state is damaged"));
        }
        Ok((description, state))
    }

    fn replace(&mut self, memory: &File, disk: Option<&Brought>, state: &[u8]) -> Result<(), SnapshotError> {
        self.memory.replace(self.machine.ram(), memory)?;
        // Pages given back are pages of this process now, not of a file.
        self.balloon.set_mapping(self.memory.mapping());
        if let (Some(root), Some(disk)) = (self.root, disk) {
            root.restore(disk)?;
        }
        Ok(self.machine.load(state)?)
    }

    fn vcpus_made(&self) -> u32 {
        // At most 32 can be made.
        self.machine.vcpus() as u32
    }
}

/// Says whether bytes are still the same, unless somebody wants it to: 64 bits by the method of Fowler, Noll and Vo.
fn sum(bytes: &[u8]) -> String {
    const BASIS: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 0x100_0000_01B3;
    let sum = bytes.iter().fold(BASIS, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(PRIME));
    format!("{sum:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_method() {
        assert_eq!(sum(b""), "cbf29ce484222325");
        assert_eq!(sum(b"a"), "af63dc4c8601ec8c");
        assert_eq!(sum(b"foobar"), "85944171f73967e8");
    }
}
