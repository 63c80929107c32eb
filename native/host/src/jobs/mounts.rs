//! Jobs that mount and unmount. A mount is made private: what is mounted below it does not spread.

use fluxvm_sys::loop_device;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Result;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount as mount_file_system, mount_change};
use std::ffi::CStr;
use std::os::fd::AsFd;

/// Mounts `source` at `target`; `options` are the file system's own.
pub fn mount(source: &CStr, target: &CStr, file_system: &CStr, options: &CStr, flags: u32) -> Result<()> {
    let flags = MountFlags::from_bits_truncate(flags);
    mount_file_system(source, target, file_system, flags, options)?;
    mount_change(target, MountPropagationFlags::PRIVATE).inspect_err(|_| {
        // Mounts of sandboxes below it would spread, so it is worse than none.
        let _ = rustix::mount::unmount(target, UnmountFlags::DETACH);
    })
}

/// Mounts the file system inside `image`. A loop device that carries the image already (because somebody still has it
/// mounted) is used again: one file system behind two devices would be refused, or worse, accepted.
pub fn mount_image(image: &CStr, target: &CStr, file_system: &CStr, options: &CStr, flags: u32) -> Result<u32> {
    let file = open(image, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let device = match loop_device::find(file.as_fd())? {
        Some(device) => device,
        None => loop_device::attach(file.as_fd())?,
    };
    let source = std::ffi::CString::new(device.path()).map_err(|_| rustix::io::Errno::INVAL)?;
    mount(&source, target, file_system, options, flags)?;
    Ok(device.number())
}

/// Unmounts `target`. `BUSY`: in use and not detached; `INVAL`: nothing is mounted there.
pub fn unmount(target: &CStr, detach: bool) -> Result<()> {
    let flags = if detach { UnmountFlags::NOFOLLOW | UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
    rustix::mount::unmount(target, flags)
}
