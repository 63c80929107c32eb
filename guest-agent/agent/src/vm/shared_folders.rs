//! Folders of the host that the config disk names: mounted by this machine's own service before it serves anybody, so that
//! they are there again after the machine has restarted itself.

use rustix::mount::{MountFlags, mount};
use serde::Deserialize;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

const KIND: &str = "virtiofs";
const MOUNTS: &str = "/proc/self/mounts";
/// The host names fewer.
const FOLDERS_MAX: usize = 64;

#[derive(Deserialize)]
pub struct SharedFolder {
    /// What the host calls the device.
    tag: String,
    path: PathBuf,
    read_only: bool,
}

/// Mounts every one that is not mounted yet; whether all of them are. The console tells what is not.
pub fn mount_all(folders: &[SharedFolder]) -> bool {
    let mounted = std::fs::read_to_string(MOUNTS).unwrap_or_default();
    let failures: Vec<String> = folders
        .iter()
        .take(FOLDERS_MAX)
        .filter(|folder| !is_mounted(&mounted, &folder.tag))
        .filter_map(|folder| attach(folder).err().map(|why| format!("{}: {why}", folder.path.display())))
        .collect();
    for failure in &failures {
        complain(failure);
    }
    failures.is_empty() && folders.len() <= FOLDERS_MAX
}

/// By its device: where a machine has it mounted is the machine's own affair once it was.
fn is_mounted(mounts: &str, tag: &str) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ');
        fields.next() == Some(tag) && fields.nth(1) == Some(KIND)
    })
}

fn attach(folder: &SharedFolder) -> Result<(), String> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !folder.path.is_absolute() || folder.path == Path::new("/") || !folder.path.components().all(plain) {
        return Err("not a place for a folder".into());
    }
    std::fs::create_dir_all(&folder.path).map_err(|error| format!("cannot be made: {error}"))?;
    let read_only = if folder.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    mount(folder.tag.as_str(), &folder.path, KIND, MountFlags::NOSUID | MountFlags::NODEV | read_only, None)
        .map_err(|errno| format!("cannot be mounted: {errno}"))
}

/// On the console, where the host looks; what a service writes may go elsewhere.
fn complain(failure: &str) {
    let line = format!("fluxvm-guest-agent: shared folder {failure}\r\n");
    let console = OpenOptions::new().write(true).open("/dev/console");
    if console.and_then(|mut console| console.write_all(line.as_bytes())).is_err() {
        eprint!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_mounted_when_its_device_is() {
        let mounts = "fs1 /mnt/a\\040b virtiofs rw 0 0\nfs0 /fs0 tmpfs rw 0 0\n";
        assert!(is_mounted(mounts, "fs1"));
        assert!(!is_mounted(mounts, "fs0"));
        assert!(!is_mounted(mounts, "fs"));
    }

    #[test]
    fn no_folder_goes_where_there_is_no_place_for_one() {
        for path in ["/", "relative", "/a/../b", ""] {
            let folder = SharedFolder { tag: "fs0".into(), path: path.into(), read_only: true };
            assert_eq!(attach(&folder), Err("not a place for a folder".into()), "{path}");
        }
    }
}
