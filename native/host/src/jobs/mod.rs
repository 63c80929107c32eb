//! What each job does, one file per noun. A job runs on a native thread and may wait in the kernel as long as it must.

mod btrfs;
mod files;
mod kvm;
mod mounts;
mod tree;
mod tree_copy;
mod tree_measure;
mod tree_remove;
#[cfg(test)]
mod tree_tests;
mod vsock;

use crate::layout::{Job, Values};
use rustix::io::Result;
use std::thread::sleep;
use std::time::Duration;

/// Runs one job to its end.
pub fn run(job: Job) -> Result<Values> {
    match job {
        Job::Sleep { milliseconds } => {
            sleep(Duration::from_millis(u64::from(milliseconds)));
            Ok(values([]))
        }
        Job::FileLock { path } => Ok(values([u64::from(files::lock(&path)?)])),
        Job::HandleClose { handle } => files::close_handle(handle).map(|()| values([])),
        Job::FileClone { source, target, mode } => files::clone(&source, &target, mode).map(|()| values([])),
        Job::FileSync { path, whole_file_system } => files::sync(&path, whole_file_system != 0).map(|()| values([])),
        Job::FileAllocate { path, bytes } => files::allocate(&path, bytes).map(|()| values([])),
        Job::FileSystemFacts { path } => files::file_system_facts(&path).map(values),
        Job::DirectoryRemove { path, timeout_ms } => {
            files::remove_directory(&path, Duration::from_millis(u64::from(timeout_ms))).map(|()| values([]))
        }
        Job::Mount { source, target, r#type, options, flags } => {
            mounts::mount(&source, &target, &r#type, &options, flags).map(|()| values([]))
        }
        Job::MountImage { image, target, r#type, options, flags } => {
            Ok(values([u64::from(mounts::mount_image(&image, &target, &r#type, &options, flags)?)]))
        }
        Job::Unmount { target, detach } => mounts::unmount(&target, detach != 0).map(|()| values([])),
        Job::BtrfsIdentity { path } => btrfs::identity(&path).map(values),
        Job::BtrfsEnableQuota { path } => Ok(values([u64::from(btrfs::enable_quota(&path)?)])),
        Job::BtrfsCreate { parent, name, limit_bytes, simple_quota, mode, uid, gid } => {
            let terms = btrfs::Terms { limit_bytes, simple_quota: simple_quota != 0, mode, uid, gid };
            Ok(values([btrfs::create(&parent, &name, terms)?]))
        }
        Job::BtrfsClone { source, parent, name, limit_bytes, simple_quota, mode, uid, gid } => {
            let terms = btrfs::Terms { limit_bytes, simple_quota: simple_quota != 0, mode, uid, gid };
            Ok(values([btrfs::clone(&source, &parent, &name, terms)?]))
        }
        Job::BtrfsDelete { parent, name } => Ok(values([btrfs::delete(&parent, &name)?])),
        Job::BtrfsSweep { path } => btrfs::sweep(&path).map(values),
        Job::TreeCopy { source, target, bytes_max, entries_max } => {
            let copied = tree_copy::copy(&source, &target, bytes_max, entries_max)?;
            Ok(values([copied.bytes, u64::from(copied.entries), u64::from(copied.skipped)]))
        }
        Job::TreeRemove { path } => Ok(values([u64::from(tree_remove::remove(&path)?)])),
        Job::KvmMeasure { instructions } => Ok(values([kvm::measure(instructions)?])),
        Job::VsockCidProbe { cid } => Ok(values([u64::from(vsock::cid_is_free(cid)?)])),
        Job::TreeMeasure { path, entries_max } => {
            let size = tree_measure::measure(&path, entries_max)?;
            Ok(values([size.bytes, u64::from(size.entries)]))
        }
    }
}

/// Results in schema order, the rest 0.
fn values<const COUNT: usize>(results: [u64; COUNT]) -> Values {
    let mut all = Values::default();
    all[..COUNT].copy_from_slice(&results);
    all
}
