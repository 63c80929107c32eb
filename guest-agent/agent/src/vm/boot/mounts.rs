//! The file systems that the kernel offers and programs expect.

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use std::ffi::CString;
use std::path::Path;

/// Mounted in the initrd and taken along into the root.
pub const FIRST: [&str; 3] = ["/dev", "/proc", "/sys"];

struct Mount {
    kind: &'static str,
    path: &'static str,
    flags: MountFlags,
    options: &'static str,
}

const DEVICES: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC);
const PLAIN: MountFlags = DEVICES.union(MountFlags::NODEV);
const MEMORY: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

const MOUNTS: [Mount; 7] = [
    Mount { kind: "devtmpfs", path: "/dev", flags: MountFlags::NOSUID, options: "mode=0755" },
    Mount { kind: "proc", path: "/proc", flags: PLAIN, options: "" },
    Mount { kind: "sysfs", path: "/sys", flags: PLAIN, options: "" },
    Mount { kind: "devpts", path: "/dev/pts", flags: DEVICES, options: "gid=5,mode=620,ptmxmode=666" },
    Mount { kind: "tmpfs", path: "/dev/shm", flags: MEMORY, options: "mode=1777" },
    Mount { kind: "tmpfs", path: "/run", flags: MEMORY, options: "mode=0755" },
    Mount { kind: "cgroup2", path: "/sys/fs/cgroup", flags: PLAIN, options: "" },
];

/// Links that programs expect beside the devices.
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// Those that the initrd needs. The message says which cannot be mounted.
pub fn mount_first() -> Result<(), String> {
    for wanted in MOUNTS.iter().filter(|wanted| FIRST.contains(&wanted.path)) {
        attach(wanted)?;
    }
    Ok(())
}

/// All that are not there yet. A machine without one of them is better than no machine.
pub fn mount_all() {
    for wanted in &MOUNTS {
        if let Err(message) = attach(wanted) {
            super::say(&message);
        }
    }
    for (link, target) in LINKS {
        let _ = std::os::unix::fs::symlink(target, link);
    }
}

fn attach(wanted: &Mount) -> Result<(), String> {
    if is_mount_point(wanted.path) {
        return Ok(());
    }
    let _ = std::fs::create_dir(wanted.path);
    let options = CString::new(wanted.options).expect("a constant without NUL");
    match mount(wanted.kind, wanted.path, wanted.kind, wanted.flags, &*options) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(errno) => Err(format!("cannot mount {}: {errno}", wanted.path)),
    }
}

/// Whether it lies on another file system than its parent.
fn is_mount_point(path: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let path = Path::new(path);
    let parent = path.parent().unwrap_or(path);
    device(path).is_some() && device(path) != device(parent)
}
