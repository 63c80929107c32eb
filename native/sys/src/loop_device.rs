//! Loop devices: a regular file as a block device. A device that is configured here clears itself when its last user
//! (a descriptor or a mount) goes, so a crash between attach and mount leaves nothing.

use crate::ioctl::{with_integer, with_structure};
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::{Errno, Result};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::thread::sleep;
use std::time::Duration;

const CONTROL_GET_FREE: libc::Ioctl = 0x4C82;
const CONFIGURE: libc::Ioctl = 0x4C0A;
const GET_STATUS: libc::Ioctl = 0x4C05;

const FLAG_AUTOCLEAR: u32 = 4;
const FLAG_DIRECT_IO: u32 = 16;

/// Other users of loop devices may take the free one between the two calls; each attempt asks for another.
const ATTACH_ATTEMPTS: usize = 16;
/// How often, every 10 ms, the node of a new device is looked for.
const NODE_ATTEMPTS: usize = 100;

#[repr(C)]
struct Information {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct Configuration {
    fd: u32,
    block_size: u32,
    information: Information,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Information>() == 232);
const _: () = assert!(size_of::<Configuration>() == 304);

impl Information {
    const fn empty() -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// An attached loop device. It stays attached while this value, or a mount of it, lives.
#[derive(Debug)]
pub struct LoopDevice {
    #[expect(dead_code, reason = "open, it keeps the device from clearing itself")]
    file: File,
    number: u32,
}

impl LoopDevice {
    /// The N of `/dev/loopN`.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The device node.
    pub fn path(&self) -> String {
        node(self.number)
    }
}

/// The device that already carries `image`, if there is one: an earlier agent may have left it mounted somewhere.
pub fn find(image: BorrowedFd<'_>) -> Result<Option<LoopDevice>> {
    let wanted = fstat(image)?;
    let Ok(entries) = fs::read_dir("/sys/block") else { return Ok(None) };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse::<u32>().ok()) else {
            continue;
        };
        if !entry.path().join("loop/backing_file").exists() {
            continue;
        }
        let Ok(file) = open_node(number) else { continue };
        let mut information = Information::empty();
        // SAFETY: LOOP_GET_STATUS64 fills exactly this structure.
        let status = unsafe { with_structure(file.as_fd(), GET_STATUS, &mut information) };
        if status.is_ok() && information.inode == wanted.st_ino && information.device == wanted.st_dev {
            return Ok(Some(LoopDevice { file, number }));
        }
    }
    Ok(None)
}

/// Attaches `image` to a free device, reading and writing past the page cache where the file system allows that.
/// Errors: `BUSY` when every attempt lost its device to somebody else, `NOENT` when loop devices are missing.
pub fn attach(image: BorrowedFd<'_>) -> Result<LoopDevice> {
    let control = open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for _ in 0..ATTACH_ATTEMPTS {
        let number = with_integer(control.as_fd(), CONTROL_GET_FREE, 0)? as u32;
        let file = wait_for_node(number)?;
        match configure(&file, image, FLAG_AUTOCLEAR | FLAG_DIRECT_IO) {
            Ok(()) => return Ok(LoopDevice { file, number }),
            Err(Errno::BUSY) => continue,
            Err(error) => return Err(error),
        }
    }
    Err(Errno::BUSY)
}

fn configure(device: &File, image: BorrowedFd<'_>, flags: u32) -> Result<()> {
    let mut information = Information::empty();
    information.flags = flags;
    let mut configuration =
        Configuration { fd: image.as_raw_fd() as u32, block_size: 0, information, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads exactly this structure; the image's descriptor is borrowed for the call.
    unsafe { with_structure(device.as_fd(), CONFIGURE, &mut configuration) }.map(|_| ())
}

fn wait_for_node(number: u32) -> Result<File> {
    for _ in 0..NODE_ATTEMPTS {
        match open_node(number) {
            Err(Errno::NOENT | Errno::NXIO) => sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
    Err(Errno::NOENT)
}

fn open_node(number: u32) -> Result<File> {
    Ok(open(node(number), OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?.into())
}

fn node(number: u32) -> String {
    format!("/dev/loop{number}")
}
