//! Changes as they are told.

use crate::tree::Tree;
use files::{Links, perform};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde_bytes::ByteBuf;
use std::fs::{self, File};
use std::io::{PipeReader, Read, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use wire::ErrorCode;
use wire::file_request::*;
use wire::limits::WATCH_DIRECTORIES_MAX;

struct Watch {
    reader: Option<PipeReader>,
    thread: Option<JoinHandle<Result<FileSummary, ErrorCode>>>,
}

impl Watch {
    fn start(tree: &Tree, path: &str, recursive: bool) -> Result<Self, ErrorCode> {
        let (reader, writer) = pipe().unwrap();
        let root = tree.root(Links::Refuse);
        let request = FileRequest::Watch(WatchRequest { path: ByteBuf::from(path), recursive });
        let (ready, opened) = channel();
        let thread = thread::spawn(move || {
            // SAFETY: only the working directory and the umask of this thread become its own.
            unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
            let told = |_| {
                ready.send(()).unwrap();
                Ok(())
            };
            perform(&root, &request, told, File::from(OwnedFd::from(writer))).map_err(|fault| fault.code)
        });
        match opened.recv() {
            Ok(()) => Ok(Self { reader: Some(reader), thread: Some(thread) }),
            Err(_) => Err(thread.join().unwrap().unwrap_err()),
        }
    }

    /// Changes up to one about `last`: kind, path, new name.
    fn until(&mut self, last: &str) -> Vec<(u8, String, String)> {
        let mut changes = Vec::new();
        let reader = self.reader.as_mut().unwrap();
        loop {
            let mut head = [0; 2];
            reader.read_exact(&mut head).unwrap();
            assert_eq!(head[0], 0x93);
            let (path, renamed_to) = (text(reader), text(reader));
            let is_last = path == last || (renamed_to == last && !last.is_empty());
            changes.push((head[1], path, renamed_to));
            if is_last {
                return changes;
            }
        }
    }

    fn end(mut self) -> Result<FileSummary, ErrorCode> {
        drop(self.reader.take());
        self.thread.take().unwrap().join().unwrap()
    }
}

fn text(reader: &mut impl Read) -> String {
    let mut head = [0; 2];
    reader.read_exact(&mut head).unwrap();
    assert_eq!(head[0], 0xc4);
    let mut bytes = vec![0; head[1].into()];
    reader.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn change(kind: u8, path: &str, to: &str) -> (u8, String, String) {
    (kind, path.into(), to.into())
}

#[test]
fn every_kind_of_change_is_told_at_any_depth() {
    let tree = Tree::new();
    tree.write("d/old/f", "");
    let mut watch = Watch::start(&tree, "/d", true).unwrap();
    fs::write(tree.path.join("d/old/f"), "more").unwrap();
    assert_eq!(watch.until("/d/old/f"), [change(1, "/d/old/f", "")]);
    // Made faster than anyone can look.
    fs::create_dir_all(tree.path.join("d/new/er/est")).unwrap();
    fs::write(tree.path.join("d/new/er/est/f"), "x").unwrap();
    let told = watch.until("/d/new/er/est/f");
    for path in ["/d/new", "/d/new/er", "/d/new/er/est", "/d/new/er/est/f"] {
        assert!(told.contains(&change(0, path, "")), "{path} in {told:?}");
    }
    fs::rename(tree.path.join("d/new"), tree.path.join("d/moved")).unwrap();
    assert_eq!(watch.until("/d/moved").last(), Some(&change(3, "/d/new", "/d/moved")));
    fs::remove_file(tree.path.join("d/moved/er/est/f")).unwrap();
    assert_eq!(watch.until("/d/moved/er/est/f").last(), Some(&change(2, "/d/moved/er/est/f", "")));
    assert_eq!(watch.end(), Err(ErrorCode::Cancelled));
}

#[test]
fn what_was_moved_out_of_sight_is_told_as_removed_and_nothing_more() {
    let tree = Tree::new();
    tree.write("d/in/f", "");
    let mut watch = Watch::start(&tree, "/d", true).unwrap();
    fs::rename(tree.path.join("d/in"), tree.path.join("out")).unwrap();
    assert_eq!(watch.until("/d/in"), [change(2, "/d/in", "")]);
    fs::write(tree.path.join("out/f"), "x").unwrap();
    fs::write(tree.path.join("d/end"), "x").unwrap();
    assert_eq!(watch.until("/d/end"), [change(0, "/d/end", "")]);
}

#[test]
fn links_are_names_and_no_ways() {
    let tree = Tree::new();
    let outside = Tree::new();
    fs::create_dir(tree.path.join("d")).unwrap();
    symlink(&outside.path, tree.path.join("d/l")).unwrap();
    let mut watch = Watch::start(&tree, "/d", true).unwrap();
    symlink(&outside.path, tree.path.join("d/m")).unwrap();
    outside.write("f", "x");
    fs::write(tree.path.join("d/end"), "x").unwrap();
    assert_eq!(watch.until("/d/end"), [change(0, "/d/m", ""), change(0, "/d/end", "")]);
    assert_eq!(Watch::start(&tree, "/d/l", true).err(), Some(ErrorCode::Symlink));
    assert_eq!(Watch::start(&tree, "/none", false).err(), Some(ErrorCode::NotFound));
    assert_eq!(Watch::start(&tree, "/d/end", false).err(), Some(ErrorCode::NotDirectory));
}

#[test]
fn a_file_without_a_name_is_told_when_it_gets_one() {
    let tree = Tree::new();
    tree.write("d/#12", "");
    let mut watch = Watch::start(&tree, "/d", true).unwrap();
    let request = FileUploadRequest::WriteStream(WriteStreamRequest {
        path: ByteBuf::from("/d/f"),
        mode: None,
        parents: false,
        offset: None,
    });
    files::perform_upload(&tree.root(Links::Refuse), &request, &mut &b"content"[..]).unwrap();
    assert_eq!(watch.until("/d/f"), [change(0, "/d/f", "")]);
    fs::write(tree.path.join("d/#12"), "x").unwrap();
    assert_eq!(watch.until("/d/#12").last(), Some(&change(1, "/d/#12", "")));
}

#[test]
fn without_recursion_only_one_level_is_told() {
    let tree = Tree::new();
    tree.write("d/in/f", "");
    let mut watch = Watch::start(&tree, "/d", false).unwrap();
    fs::write(tree.path.join("d/in/f"), "x").unwrap();
    fs::create_dir(tree.path.join("d/new")).unwrap();
    fs::write(tree.path.join("d/new/f"), "x").unwrap();
    fs::write(tree.path.join("d/end"), "x").unwrap();
    assert_eq!(watch.until("/d/end"), [change(0, "/d/new", ""), change(0, "/d/end", "")]);
}

#[test]
fn a_watch_ends_with_its_directory() {
    let tree = Tree::new();
    fs::create_dir(tree.path.join("d")).unwrap();
    let mut watch = Watch::start(&tree, "/d", true).unwrap();
    fs::remove_dir(tree.path.join("d")).unwrap();
    assert_eq!(watch.reader.as_mut().unwrap().read(&mut [0; 9]).unwrap(), 0);
    assert!(watch.end().is_ok());
}

#[test]
fn more_directories_than_can_be_watched_are_refused() {
    let tree = Tree::new();
    for number in 0..WATCH_DIRECTORIES_MAX {
        fs::create_dir(tree.path.join(number.to_string())).unwrap();
    }
    assert_eq!(Watch::start(&tree, "/", true).err(), Some(ErrorCode::TooLarge));
    fs::remove_dir(tree.path.join("0")).unwrap();
    assert!(Watch::start(&tree, "/", true).is_ok());
}

#[test]
fn a_flood_that_nobody_reads_is_told_as_a_loss() {
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    let tree = Tree::new();
    fs::create_dir(tree.path.join("d")).unwrap();
    let mut watch = Watch::start(&tree, "/d", true).unwrap();
    for round in 0..(limit * 3) {
        let path = tree.path.join(format!("d/{:0100}", round % 8192));
        fs::write(&path, "").and_then(|()| fs::remove_file(&path)).unwrap();
    }
    thread::sleep(Duration::from_millis(100));
    fs::create_dir(tree.path.join("d/late")).unwrap();
    let told = watch.until("");
    assert_eq!(told.last(), Some(&change(4, "", "")));
    // And it goes on.
    fs::write(tree.path.join("d/end"), "x").unwrap();
    watch.until("/d/end");
}
