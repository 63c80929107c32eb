//! Files that may be written without their timestamps moving. A store through a shared mapping updates them only
//! when a clean page is first touched, so a page that was dirty when its file was hashed can change unnoticed.
//! Such files are hashed every time; so is everything where this cannot be known.

use rustix::fs::{FsWord, fstatfs};
use std::collections::HashSet;
use std::os::fd::AsFd;

/// Mappings looked at, in bytes of `/proc` text; beyond it nothing is known.
const TEXT_MAX: usize = 256 << 20;

const EXT4: FsWord = 0xef53;
const XFS: FsWord = 0x5846_5342;
const BTRFS: FsWord = 0x9123_683e;
const F2FS: FsWord = 0xf2f5_2010;
const OVERLAY: FsWord = 0x794c_7630;

/// Whether the kernel that runs us stamps every change to this file system's files, by its own clock, mapped
/// stores included. Not so: memory file systems (pages are writable from the first read on), and anything that
/// another machine may change (network, FUSE, virtiofs).
pub fn stamps_changes(directory: impl AsFd) -> bool {
    fstatfs(directory).is_ok_and(|stat| matches!(stat.f_type, EXT4 | XFS | BTRFS | F2FS | OVERLAY))
}

/// Inodes that some process maps shared. Only their low halves: what `/proc` shows differs from what stat shows
/// in the device (btrfs, overlay) and in the upper bits of the inode (overlay).
#[derive(Debug)]
pub struct Mapped {
    inodes: HashSet<u32>,
}

impl Mapped {
    /// Reads every process's mappings; `None` when some of them cannot be read.
    pub fn scan() -> Option<Self> {
        let mut inodes = HashSet::new();
        let mut text_bytes = 0;
        let mut seen_self = false;
        for entry in std::fs::read_dir("/proc").ok()? {
            let name = entry.ok()?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            seen_self |= pid == std::process::id();
            match std::fs::read(format!("/proc/{pid}/maps")) {
                Ok(maps) => {
                    text_bytes += maps.len();
                    inodes.extend(maps.split(|byte| *byte == b'\n').filter_map(shared_inode));
                }
                // Process 1 is the sandbox's init or the guest's, which map no file of a caller's shared.
                Err(_) if pid == 1 => {}
                Err(error) if ended(&error) => {}
                Err(_) => return None,
            }
            if text_bytes > TEXT_MAX {
                return None;
            }
        }
        seen_self.then_some(Self { inodes })
    }

    pub fn contains(&self, inode: u64) -> bool {
        self.inodes.contains(&(inode as u32))
    }
}

fn ended(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// The inode of a line such as `7f00-7f01 rw-s 00000000 08:01 1234 /name`, if it is a shared file mapping.
fn shared_inode(line: &[u8]) -> Option<u32> {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let permissions = fields.nth(1)?;
    if permissions.last() != Some(&b's') {
        return None;
    }
    let inode: u64 = std::str::from_utf8(fields.nth(2)?).ok()?.parse().ok()?;
    (inode != 0).then_some(inode as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_file_mappings_are_found() {
        assert_eq!(shared_inode(b"7f0-7f1 rw-s 00000000 08:01 1234      /a b"), Some(1234));
        assert_eq!(shared_inode(b"7f0-7f1 r--s 00000000 08:01 4294967297 /a"), Some(1));
        assert_eq!(shared_inode(b"7f0-7f1 rw-p 00000000 08:01 1234      /a"), None);
        assert_eq!(shared_inode(b"7f0-7f1 rw-s 00000000 00:00 0 "), None);
        assert_eq!(shared_inode(b""), None);
        assert_eq!(shared_inode(b"nonsense"), None);
    }
}
