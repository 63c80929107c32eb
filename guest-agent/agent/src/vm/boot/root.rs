//! Finds the root among the machine's disks, by name or by what its superblock says.

use super::command_line::RootName;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DISKS: &str = "/sys/class/block";
/// Drivers have looked for their devices by now; a slow host may still be plugging one in.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// An ext4 superblock lies here, and what of it is looked at.
const SUPERBLOCK: u64 = 1024;
const SUPERBLOCK_SIZE: usize = 1024;
const MAGIC: (usize, [u8; 2]) = (0x38, [0x53, 0xef]);
const UUID: std::ops::Range<usize> = 0x68..0x78;
const LABEL: std::ops::Range<usize> = 0x78..0x88;

/// The root's device. The message says what there was instead.
pub fn wait_for(name: &RootName) -> Result<PathBuf, String> {
    let started = Instant::now();
    loop {
        if let Some(device) = find(name) {
            return Ok(device);
        }
        if started.elapsed() > PATIENCE {
            return Err(format!("no root {name:?} among the disks {:?}", disks()));
        }
        std::thread::sleep(PAUSE);
    }
}

fn find(name: &RootName) -> Option<PathBuf> {
    if let RootName::Device(path) = name {
        return Path::new(path).exists().then(|| path.into());
    }
    // The root is attached first; nobody's data disk comes before it.
    disks().into_iter().map(|disk| Path::new("/dev").join(disk)).find(|device| {
        superblock(device).is_some_and(|block| match name {
            RootName::Label(label) => block.label == label.as_bytes(),
            RootName::Uuid(uuid) => block.uuid == *uuid,
            RootName::Device(_) => false,
        })
    })
}

fn disks() -> Vec<String> {
    let entries = std::fs::read_dir(DISKS).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

struct Superblock {
    label: Vec<u8>,
    uuid: String,
}

fn superblock(device: &Path) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    File::open(device).ok()?.read_exact_at(&mut bytes, SUPERBLOCK).ok()?;
    Superblock::parse(&bytes)
}

impl Superblock {
    fn parse(bytes: &[u8; SUPERBLOCK_SIZE]) -> Option<Self> {
        (bytes[MAGIC.0..MAGIC.0 + 2] == MAGIC.1).then(|| Self {
            label: bytes[LABEL].split(|byte| *byte == 0).next().unwrap_or_default().to_vec(),
            uuid: uuid_text(&bytes[UUID]),
        })
    }
}

fn uuid_text(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, byte) in bytes.iter().enumerate() {
        let hyphen = if [4, 6, 8, 10].contains(&index) { "-" } else { "" };
        text.push_str(&format!("{hyphen}{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_says_label_and_uuid() {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        assert!(Superblock::parse(&bytes).is_none());
        bytes[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
        bytes[0x68..0x78].copy_from_slice(&[0xab; 16]);
        bytes[0x78..0x7c].copy_from_slice(b"root");
        let found = Superblock::parse(&bytes).unwrap();
        assert_eq!(found.label, b"root");
        assert_eq!(found.uuid, "abababab-abab-abab-abab-abababababab");
    }
}
