//! What can be added to a machine that runs: vCPUs that were made with it and which its guest has not begun to use.

use std::fmt::Write;

/// Why nothing was added.
#[derive(Debug, thiserror::Error)]
pub enum HotplugError {
    /// Nothing was asked for.
    #[error("add: at least one vCPU must be added")]
    Nothing,
    /// There are not so many.
    #[error("add: the machine has {has} vCPUs and was made for {most}; a higher max_vcpus at its start leaves room")]
    NoRoom {
        /// vCPUs of the guest.
        has: u32,
        /// vCPUs that were made.
        most: u32,
    },
    /// The file is no disk.
    #[error("path: a disk has whole sectors of 512 bytes, and this file has {0} bytes")]
    NoDisk(u64),
    /// The file cannot be used.
    #[error("path: the file cannot be opened")]
    File(#[from] std::io::Error),
}

/// Gives the guest more of the vCPUs that were made; tells how many it has then.
///
/// # Errors
/// [`HotplugError::Nothing`] or [`HotplugError::NoRoom`].
pub(crate) fn add_vcpus(has: u32, most: u32, add: u32) -> Result<u32, HotplugError> {
    match has.checked_add(add) {
        _ if add == 0 => Err(HotplugError::Nothing),
        Some(sum) if sum <= most => Ok(sum),
        _ => Err(HotplugError::NoRoom { has, most }),
    }
}

/// What the guest does to use vCPUs.
pub(crate) fn online_commands(vcpus: std::ops::Range<u32>) -> String {
    vcpus.fold(String::new(), |mut text, vcpu| {
        let separator = if text.is_empty() { "" } else { "; " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}echo 1 > /sys/devices/system/cpu/cpu{vcpu}/online");
        text
    })
}

/// Whether a file can be a disk.
///
/// # Errors
/// [`HotplugError::File`] or [`HotplugError::NoDisk`].
pub(crate) fn check_disk(path: &std::path::Path) -> Result<(), HotplugError> {
    const SECTOR_BYTES: u64 = 512;
    let bytes = std::fs::File::options().read(true).write(true).open(path)?.metadata()?.len();
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) { Err(HotplugError::NoDisk(bytes)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpus_are_added_up_to_those_that_were_made() {
        assert_eq!(add_vcpus(1, 4, 3).unwrap(), 4);
        assert!(matches!(add_vcpus(1, 4, 0), Err(HotplugError::Nothing)));
        for add in [4, u32::MAX] {
            assert!(matches!(add_vcpus(1, 4, add), Err(HotplugError::NoRoom { has: 1, most: 4 })));
        }
        let commands = "echo 1 > /sys/devices/system/cpu/cpu1/online; echo 1 > /sys/devices/system/cpu/cpu2/online";
        assert_eq!(online_commands(1..3), commands);
    }

    #[test]
    fn a_disk_has_whole_sectors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        assert!(matches!(check_disk(&path), Err(HotplugError::File(_))));
        for (bytes, good) in [(0, false), (511, false), (512, true), (513, false)] {
            std::fs::write(&path, vec![0; bytes]).unwrap();
            assert_eq!(check_disk(&path).is_ok(), good, "{bytes}");
        }
    }
}
