//! Hostile trees, copied, measured and removed.

use super::tree_copy::copy;
use super::tree_measure::measure;
use super::tree_remove::remove;
use rustix::fs::{CWD, FileType, Mode, mkdirat, mknodat, openat};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

const PLENTY: u64 = 1 << 40;

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().to_owned().into_vec()).unwrap()
}

/// A chain of `depth` directories below `at`, longer than any path.
fn deep(at: &Path, depth: usize) {
    let mut directory = openat(CWD, at, super::tree::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&directory, "deeper", Mode::from_raw_mode(0o755)).unwrap();
        directory = openat(&directory, "deeper", super::tree::DIRECTORY, Mode::empty()).unwrap();
    }
    mkdirat(&directory, "end", Mode::from_raw_mode(0o755)).unwrap();
}

#[test]
fn a_copy_is_equal_and_independent() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::write(source.join("a/one"), "one").unwrap();
    fs::write(source.join("a/b").join(OsStr::from_bytes(b"odd \xff\n name")), "odd").unwrap();
    fs::hard_link(source.join("a/one"), source.join("a/b/same")).unwrap();
    symlink("/etc/passwd", source.join("link")).unwrap();
    symlink("/etc", source.join("a/directory-link")).unwrap();
    mknodat(CWD, source.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::set_permissions(source.join("a/one"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(source.join("a/b"), fs::Permissions::from_mode(0o500)).unwrap();

    let copied = copy(&c(&source), &c(&target), PLENTY, 100).unwrap();

    assert_eq!((copied.entries, copied.skipped), (8, 1));
    assert_eq!(fs::read_link(target.join("link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(fs::read_link(target.join("a/directory-link")).unwrap(), Path::new("/etc"));
    assert_eq!(fs::read(target.join("a/b").join(OsStr::from_bytes(b"odd \xff\n name"))).unwrap(), b"odd");
    assert!(!target.join("fifo").exists());
    let (before, after) = (fs::metadata(source.join("a/one")).unwrap(), fs::metadata(target.join("a/one")).unwrap());
    assert_eq!((before.mode(), before.mtime(), before.mtime_nsec()), (after.mode(), after.mtime(), after.mtime_nsec()));
    assert_eq!(fs::metadata(target.join("a/b")).unwrap().mode() & 0o777, 0o500);
    assert_eq!(after.ino(), fs::metadata(target.join("a/b/same")).unwrap().ino());
    fs::write(target.join("a/one"), "changed").unwrap();
    assert_eq!(fs::read(source.join("a/b/same")).unwrap(), b"one");
}

#[test]
fn holes_stay_holes() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    fs::create_dir(&source).unwrap();
    let mut file = File::create(source.join("sparse")).unwrap();
    file.seek(SeekFrom::Start(1 << 36)).unwrap();
    file.write_all(b"end").unwrap();
    file.set_len(1 << 37).unwrap();

    let copied = copy(&c(&source), &c(&target), 1 << 20, 10).unwrap();

    assert!(copied.bytes <= 1 << 16);
    assert_eq!(fs::metadata(target.join("sparse")).unwrap().len(), 1 << 37);
    assert!(measure(&c(&target), 10).unwrap().bytes < 1 << 20);
}

#[test]
fn bounds_of_a_copy_hold() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), vec![1; 1 << 16]).unwrap();
    fs::write(source.join("b"), vec![1; 1 << 16]).unwrap();
    let target = |name: &str| c(&directory.path().join(name));

    assert_eq!(copy(&c(&source), &target("one"), (1 << 17) - 1, 10), Err(Errno::DQUOT));
    assert_eq!(copy(&c(&source), &target("two"), 1 << 17, 1), Err(Errno::TOOBIG));
    assert_eq!(copy(&c(&source), &target("two"), 1 << 17, 2), Err(Errno::EXIST));
    assert!(copy(&c(&source), &target("three"), 1 << 17, 2).is_ok());
}

#[test]
fn a_root_that_is_a_link_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    fs::create_dir(&real).unwrap();
    fs::write(real.join("kept"), "kept").unwrap();
    symlink(&real, &link).unwrap();

    assert!(copy(&c(&link), &c(&directory.path().join("copy")), PLENTY, 10).is_err());
    assert!(measure(&c(&link), 10).is_err());
    assert!(remove(&c(&link)).is_err());
    assert!(real.join("kept").exists());
}

#[test]
fn removal_follows_no_link_and_knows_no_depth() {
    let directory = tempfile::tempdir().unwrap();
    let (outside, tree) = (directory.path().join("outside"), directory.path().join("tree"));
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    fs::create_dir(&tree).unwrap();
    symlink(&outside, tree.join("link")).unwrap();
    fs::hard_link(outside.join("kept"), tree.join("hard")).unwrap();
    deep(&tree, 3000);
    for index in 0..600 {
        fs::create_dir_all(tree.join(format!("wide/{index}/x"))).unwrap();
    }
    fs::set_permissions(tree.join("wide"), fs::Permissions::from_mode(0o000)).unwrap();

    let removed = remove(&c(&tree)).unwrap();

    assert_eq!(removed, 2 + 3001 + 1 + 1200);
    assert!(!tree.exists());
    assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
    assert_eq!(remove(&c(&tree)), Ok(0));
}

#[test]
fn a_tree_that_is_too_deep_for_a_path_is_not_copied_in_part_and_called_whole() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    deep(&tree, 3000);

    assert_eq!(copy(&c(&tree), &c(&directory.path().join("copy")), PLENTY, 10_000), Err(Errno::NAMETOOLONG));
    remove(&c(&tree)).unwrap();
    remove(&c(&directory.path().join("copy"))).unwrap();
}

#[test]
fn hard_links_are_measured_once() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a"), vec![1; 1 << 20]).unwrap();
    for index in 0..20 {
        fs::hard_link(directory.path().join("a"), directory.path().join(format!("b{index}"))).unwrap();
    }

    let size = measure(&c(directory.path()), 100).unwrap();

    assert_eq!(size.entries, 21);
    assert!((1 << 20..2 << 20).contains(&size.bytes));
    assert_eq!(measure(&c(directory.path()), 20), Err(Errno::TOOBIG));
}
