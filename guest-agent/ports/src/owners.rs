//! Which processes have which sockets, as far as this process may look: `/proc/PID/fd`, bounded, so that a process with
//! very many descriptors does not hold anybody up for long.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use wire::limits::PROCESS_NAME_MAX;

/// Descriptors that are looked at for one question.
const DESCRIPTORS_MAX: usize = 1 << 18;

/// The sockets of interest that were found, with the name of a process that has each.
#[derive(Debug)]
pub struct Owners(HashMap<u64, Option<String>>);

impl Owners {
    /// Looks for the sockets with these inodes. Those that nobody visible has are not found.
    pub fn of(inodes: &[u64]) -> Self {
        let inodes: HashSet<u64> = inodes.iter().copied().collect();
        let mut found = HashMap::new();
        let mut left = DESCRIPTORS_MAX;
        let Ok(processes) = fs::read_dir("/proc") else { return Self(found) };
        for process in processes.flatten() {
            if found.len() == inodes.len() || left == 0 {
                break;
            }
            let is_process = process.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
            if is_process {
                search(&process.path(), &inodes, &mut found, &mut left);
            }
        }
        Self(found)
    }

    pub fn has(&self, inode: u64) -> bool {
        self.0.contains_key(&inode)
    }

    pub fn name(&self, inode: u64) -> Option<String> {
        self.0.get(&inode)?.clone()
    }
}

/// What is gone or not for us to see is passed over.
fn search(process: &Path, inodes: &HashSet<u64>, found: &mut HashMap<u64, Option<String>>, left: &mut usize) {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return };
    for descriptor in descriptors.flatten() {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let target = fs::read_link(descriptor.path()).ok();
        let inode = target.as_ref().and_then(|target| target.to_str()).and_then(inode_of);
        if let Some(inode) = inode.filter(|inode| inodes.contains(inode)) {
            found.entry(inode).or_insert_with(|| name_of(process));
        }
    }
}

/// `socket:[4711]`
fn inode_of(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn name_of(process: &Path) -> Option<String> {
    let name = fs::read(process.join("comm")).ok()?;
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    let name = String::from_utf8_lossy(&name[..name.len().min(PROCESS_NAME_MAX)]).into_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_socket_of_this_process_has_its_name() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let inode = inode_of(link.to_str().unwrap()).unwrap();
        let owners = Owners::of(&[inode, u64::MAX]);
        assert!(owners.has(inode) && !owners.has(u64::MAX));
        assert!(owners.name(inode).is_some());
    }

    #[test]
    fn only_sockets_are_sockets() {
        assert_eq!(inode_of("socket:[12]"), Some(12));
        for target in ["pipe:[12]", "socket:[]", "/tmp/socket:[12]", "socket:[12"] {
            assert_eq!(inode_of(target), None, "{target}");
        }
    }
}
