//! The first process of the initrd: loads the modules, finds and mounts the root, and hands over to its init.

use super::command_line::CommandLine;
use super::{modules, mounts, root, say};
use crate::vm::config_disk::Config;
use rustix::mount::{MountFlags, UnmountFlags, mount_move, unmount};
use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Where the kernel finds it in the initrd.
pub const PATH: &str = "/init";
/// Where the root is mounted before it takes the initrd's place.
const NEW_ROOT: &str = "/root";

/// Returns only on failure; the kernel then does what it was told to do on a panic.
pub fn run() -> i32 {
    let Err(message) = boot();
    say(&message);
    1
}

fn boot() -> Result<Infallible, String> {
    mounts::mount_first()?;
    modules::load_all()?;
    let text = std::fs::read_to_string("/proc/cmdline").map_err(|error| format!("/proc/cmdline: {error}"))?;
    let line = CommandLine::parse(&text);
    // Early, so that nothing in the root ever waits for random numbers.
    if let Some(config) = Config::find() {
        config.seed();
    }
    let device = root::wait_for(&line.root)?;
    let flags = if line.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    rustix::mount::mount(&device, NEW_ROOT, "ext4", flags, None)
        .map_err(|errno| format!("cannot mount {}: {errno}", device.display()))?;
    switch_root().map_err(|errno| format!("cannot go over to the root: {errno}"))?;
    let error = Command::new(&line.init).exec();
    Err(format!("cannot run {}: {error}", line.init))
}

fn switch_root() -> Result<(), rustix::io::Errno> {
    for path in mounts::FIRST {
        let target = format!("{NEW_ROOT}{path}");
        if !Path::new(&target).is_dir() || mount_move(path, &target).is_err() {
            unmount(path, UnmountFlags::DETACH)?;
        }
    }
    // The initrd's memory is given back; this program itself goes when it has been replaced.
    modules::remove();
    let _ = std::fs::remove_file(PATH);
    rustix::process::chdir(NEW_ROOT)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")
}
