//! A directory of a test's own, removed at its end, and a look at a tree that shares nothing with the walker.

use files::{Links, Root};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use wire::entry::{Entry, EntryKind, Item, Items};

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Tree {
    pub path: PathBuf,
}

impl Tree {
    /// On the build's own disk, because memory file systems are not remembered.
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("files-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    pub fn root(&self, links: Links) -> Root {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Root::new(rustix::fs::open(&self.path, flags, Mode::empty()).unwrap(), links)
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// An entry that owns what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub kind: u8,
    pub fingerprint: Vec<u8>,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl From<Entry<'_>> for Owned {
    fn from(entry: Entry<'_>) -> Self {
        Self {
            kind: entry.kind as u8,
            fingerprint: entry.fingerprint.to_vec(),
            size: entry.size,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
        }
    }
}

pub type Contents = BTreeMap<Vec<u8>, Owned>;

/// Reads a listing, insisting on its order.
pub fn read_listing(bytes: &[u8]) -> Contents {
    let mut contents = Contents::new();
    let mut last: Option<Vec<u8>> = None;
    for item in Items::new(bytes) {
        let (Item::Present(entry), _) = item.unwrap() else { panic!("a difference in a listing") };
        assert!(last.as_deref().is_none_or(|last| last < entry.path), "{} is out of order", entry.path.escape_ascii());
        last = Some(entry.path.to_vec());
        contents.insert(entry.path.to_vec(), entry.into());
    }
    contents
}

/// Applies a delta the way a host does.
pub fn apply_delta(contents: &mut Contents, delta: &[u8]) {
    for item in Items::new(delta) {
        match item.unwrap().0 {
            Item::Present(_) => panic!("an entry of a listing in a delta"),
            Item::Different { path, now, before } => {
                assert_eq!(contents.remove(path), before.map(Owned::from), "{}", path.escape_ascii());
                contents.extend(now.map(|entry| (path.to_vec(), entry.into())));
            }
        }
    }
}

/// Everything below `top` by plain library calls, hashed afresh.
pub fn look_afresh(top: &Path) -> Contents {
    let mut contents = Contents::new();
    visit(top, b"/".to_vec(), &mut contents);
    contents
}

fn visit(path: &Path, name: Vec<u8>, contents: &mut Contents) {
    let metadata = path.symlink_metadata().unwrap();
    let file_type = metadata.file_type();
    let (kind, fingerprint) = if file_type.is_file() {
        (EntryKind::Regular, Sha256::digest(std::fs::read(path).unwrap()).to_vec())
    } else if file_type.is_dir() {
        (EntryKind::Directory, Vec::new())
    } else if file_type.is_symlink() {
        (EntryKind::Symlink, std::fs::read_link(path).unwrap().into_os_string().into_vec())
    } else {
        assert!(file_type.is_fifo() || file_type.is_socket() || file_type.is_char_device());
        (EntryKind::Other, Vec::new())
    };
    if file_type.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let parent = if name == b"/" { &b""[..] } else { &name };
            visit(&entry.path(), [parent, b"/", entry.file_name().as_bytes()].concat(), contents);
        }
    }
    let size = if file_type.is_dir() { 0 } else { metadata.size() };
    let (mode, uid, gid) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
    contents.insert(name, Owned { kind: kind as u8, fingerprint, size, mode, uid, gid });
}
