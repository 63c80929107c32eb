//! A point in the life of a machine to which it can go back in a moment: its RAM is held where it is, its disk gets a layer
//! that is thrown away, and the rest of its state is kept in memory. There is one at a time.

use crate::disk::RootDisk;
use crate::memory::{HoldError, Memory};
use crate::service::Status;
use fluxvm_engine::error::Error as EngineError;
use fluxvm_engine::machine::{Lifecycle, Machine};
use fluxvm_engine::virtio::balloon::BalloonControl;
use fluxvm_engine::virtio::disk::DiskError;
use std::io;

/// Why a checkpoint cannot be taken or used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// There is one.
    #[error("there is a checkpoint already: revert or commit it first")]
    Exists,
    /// There is none.
    #[error("there is no checkpoint")]
    None,
    /// A disk that the guest writes would not go back with it.
    #[error("a machine with data_disks that it may write has no checkpoints: make them read_only or leave them out")]
    DataDisks,
    /// The disk has no place for what the guest writes meanwhile.
    #[error("a machine whose rootfs has no rootfs_layer has no checkpoints")]
    NoLayer,
    /// A commit has begun and could not be finished.
    #[error("a commit has begun: only another commit can end this checkpoint")]
    CommitBegan,
    /// The host cannot.
    #[error("memory cannot be kept")]
    Memory(#[source] io::Error),
    /// The disk cannot.
    #[error("rootfs cannot be kept")]
    Disk(#[from] DiskError),
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The machine is half one thing and half another, and has been stopped.
    #[error("this failed half-way and the machine was stopped")]
    Broken(#[source] Box<CheckpointError>),
}

/// See the head of this file.
pub(crate) struct Checkpoint {
    /// vCPUs and devices.
    state: Vec<u8>,
    /// vCPUs that the guest had been given.
    vcpus: u32,
    commit_began: bool,
}

/// What a checkpoint is of.
pub(crate) struct Held<'a> {
    pub(crate) machine: &'a mut Machine,
    pub(crate) memory: &'a mut Memory,
    pub(crate) root: Option<&'a RootDisk>,
    pub(crate) balloon: &'a BalloonControl,
    pub(crate) vcpus: &'a mut u32,
    pub(crate) status: &'a Status,
}

impl Held<'_> {
    /// Takes a checkpoint; the machine runs afterwards if it ran before.
    ///
    /// # Errors
    /// [`CheckpointError`]; all is as it was unless it is [`CheckpointError::Broken`].
    pub(crate) fn take(&mut self) -> Result<Checkpoint, CheckpointError> {
        if self.root.is_some_and(|root| !root.has_layer()) {
            return Err(CheckpointError::NoLayer);
        }
        self.at_rest(|held| {
            let state = held.machine.save()?;
            held.root.map_or(Ok(()), RootDisk::begin_trial)?;
            let taken = held.memory.hold(held.machine.ram(), held.status).map_err(|error| match error {
                HoldError::Before(error) => CheckpointError::Memory(error),
                HoldError::Half(error) => CheckpointError::Broken(Box::new(error.into())),
            });
            if taken.is_err() {
                // The layer was put there just now.
                held.root.map_or(Ok(()), RootDisk::discard_trial)?;
            }
            taken?;
            held.balloon.set_mapping(held.memory.mapping());
            Ok(Checkpoint { state, vcpus: *held.vcpus, commit_began: false })
        })
    }

    /// Goes back to a checkpoint, which is over then; the machine runs afterwards if it ran before.
    ///
    /// # Errors
    /// [`CheckpointError::CommitBegan`] before anything is changed, else [`CheckpointError::Broken`].
    pub(crate) fn revert(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        if checkpoint.commit_began {
            return Err(CheckpointError::CommitBegan);
        }
        self.at_rest(|held| {
            held.put_back(checkpoint).map_err(|error| CheckpointError::Broken(Box::new(error)))?;
            *held.vcpus = checkpoint.vcpus;
            Ok(())
        })
    }

    fn put_back(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.memory.release(self.machine.ram())?;
        self.balloon.set_mapping(self.memory.mapping());
        self.root.map_or(Ok(()), RootDisk::discard_trial)?;
        Ok(self.machine.load(&checkpoint.state)?)
    }

    /// Keeps all that has happened since a checkpoint, which is over then; the machine runs afterwards if it ran before.
    ///
    /// # Errors
    /// [`CheckpointError::Memory`] or [`CheckpointError::Disk`] when the host has no room: the machine goes on as it was, and
    /// this can be tried again.
    pub(crate) fn commit(&mut self, checkpoint: &mut Checkpoint) -> Result<(), CheckpointError> {
        self.at_rest(|held| {
            checkpoint.commit_began = true;
            held.memory.settle(held.machine.ram(), held.status).map_err(CheckpointError::Memory)?;
            held.root.map_or(Ok(()), RootDisk::merge_trial)?;
            let released = held.memory.release(held.machine.ram());
            released.map_err(|error| CheckpointError::Broken(Box::new(error.into())))?;
            held.balloon.set_mapping(held.memory.mapping());
            Ok(())
        })
    }

    /// Does something while the machine is at rest. One that broke is stopped.
    fn at_rest<T>(
        &mut self,
        action: impl FnOnce(&mut Self) -> Result<T, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        let was_running = self.machine.lifecycle() == Lifecycle::Running;
        self.machine.pause()?;
        let done = action(self);
        if matches!(done, Err(CheckpointError::Broken(_))) {
            self.machine.stop();
        } else if was_running {
            self.machine.resume()?;
        }
        done
    }
}
