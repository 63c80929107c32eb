//! Looking at names, making, moving and removing them.

use crate::tree::Tree;
use files::{Links, perform};
use serde_bytes::ByteBuf;
use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use wire::ErrorCode;
use wire::file_request::*;

/// What an operation said and sent.
pub struct Done {
    pub opened: Opened,
    pub content: Vec<u8>,
    pub summary: FileSummary,
}

/// Performs a request whose bytes fit a file.
pub fn run_as(tree: &Tree, links: Links, request: &FileRequest) -> Result<Done, ErrorCode> {
    let mut out = File::from(rustix::fs::memfd_create("out", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    let opened = Cell::new(None);
    let told = |it| {
        opened.set(Some(it));
        Ok(())
    };
    let summary = perform(&tree.root(links), request, told, out.try_clone().unwrap()).map_err(|fault| fault.code)?;
    out.seek(SeekFrom::Start(0)).unwrap();
    let mut content = Vec::new();
    out.read_to_end(&mut content).unwrap();
    Ok(Done { opened: opened.get().expect("it was opened"), content, summary })
}

pub fn run(tree: &Tree, request: &FileRequest) -> Result<Done, ErrorCode> {
    run_as(tree, Links::Refuse, request)
}

fn path(text: &str) -> PathRequest {
    PathRequest { path: ByteBuf::from(text) }
}

fn make(tree: &Tree, text: &str, mode: u32) -> Result<u64, ErrorCode> {
    let request = MakeDirectoryRequest { path: ByteBuf::from(text), mode };
    run(tree, &FileRequest::MakeDirectory(request)).map(|done| done.summary.entries)
}

fn remove(tree: &Tree, text: &str, recursive: bool) -> Result<u64, ErrorCode> {
    let request = RemoveRequest { path: ByteBuf::from(text), recursive };
    run(tree, &FileRequest::Remove(request)).map(|done| done.summary.entries)
}

fn rename(tree: &Tree, from: &str, to: &str) -> Result<(), ErrorCode> {
    let request = MoveRequest { from: ByteBuf::from(from), to: ByteBuf::from(to) };
    run(tree, &FileRequest::Move(request)).map(drop)
}

#[test]
fn a_link_is_looked_at_and_not_followed() {
    let tree = Tree::new();
    tree.write("f", "12345");
    symlink("/etc/passwd", tree.path.join("l")).unwrap();
    let file = run(&tree, &FileRequest::Stat(path("/f"))).unwrap().content;
    let mut expected = vec![0x98, 0xc4, 2, b'/', b'f', 0, 5];
    assert_eq!(file[..7], expected);
    expected = vec![0x98, 0xc4, 2, b'/', b'l', 2, 0];
    let link = run(&tree, &FileRequest::Stat(path("/l"))).unwrap().content;
    assert_eq!(link[..7], expected);
    assert!(link.ends_with(b"/etc/passwd"));
    assert_eq!(run(&tree, &FileRequest::Stat(path("/"))).unwrap().content[..5], [0x98, 0xc4, 1, b'/', 1]);
    for (text, code) in [
        ("/none", ErrorCode::NotFound),
        ("/f/x", ErrorCode::NotDirectory),
        ("/l/x", ErrorCode::Symlink),
        ("/../f", ErrorCode::BadArgument),
        ("f", ErrorCode::BadArgument),
    ] {
        assert_eq!(run(&tree, &FileRequest::Stat(path(text))).err(), Some(code), "{text}");
    }
}

#[test]
fn a_directory_is_listed_one_level_deep_and_sorted() {
    let tree = Tree::new();
    for name in ["d/b", "d/a/deep", "d/c"] {
        tree.write(name, "");
    }
    let done = run(&tree, &FileRequest::List(path("/d"))).unwrap();
    assert_eq!(done.summary.entries, 3);
    let at = |name: &[u8]| done.content.windows(name.len()).position(|window| window == name);
    assert!(at(b"/d/a") < at(b"/d/b") && at(b"/d/b") < at(b"/d/c") && at(b"deep").is_none());
    assert_eq!(run(&tree, &FileRequest::List(path("/d/b"))).err(), Some(ErrorCode::NotDirectory));
    assert_eq!(run(&tree, &FileRequest::List(path("/none"))).err(), Some(ErrorCode::NotFound));
}

#[test]
fn directories_are_made_with_their_parents_and_once() {
    let tree = Tree::new();
    assert_eq!(make(&tree, "/a/b/c", 0o750), Ok(1));
    assert_eq!(make(&tree, "/a/b/c", 0o700), Ok(0));
    let mode = |name: &str| std::fs::metadata(tree.path.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("a"), mode("a/b/c")), (0o755, 0o750));
    tree.write("f", "");
    symlink("a", tree.path.join("l")).unwrap();
    assert_eq!(make(&tree, "/f", 0o755), Err(ErrorCode::NotDirectory));
    assert_eq!(make(&tree, "/f/x", 0o755), Err(ErrorCode::NotDirectory));
    assert_eq!(make(&tree, "/l", 0o755), Err(ErrorCode::Symlink));
    assert_eq!(make(&tree, "/l/x", 0o755), Err(ErrorCode::Symlink));
    assert_eq!(make(&tree, "/", 0o755), Ok(0));
}

#[test]
fn a_move_replaces_files_and_nothing_else() {
    let tree = Tree::new();
    tree.write("a", "a");
    tree.write("b", "b");
    tree.write("d/x", "");
    tree.write("e/y", "");
    rename(&tree, "/a", "/b").unwrap();
    assert_eq!(std::fs::read(tree.path.join("b")).unwrap(), b"a");
    for (from, to, code) in [
        ("/a", "/c", ErrorCode::NotFound),
        ("/none/a", "/c", ErrorCode::NotFound),
        ("/b", "/none/b", ErrorCode::NotFound),
        ("/d", "/e", ErrorCode::NotEmpty),
        ("/b", "/e", ErrorCode::NotRegular),
        ("/d", "/b", ErrorCode::NotDirectory),
        ("/d", "/d/inner", ErrorCode::BadArgument),
        ("/", "/r", ErrorCode::BadArgument),
        ("/d", "/", ErrorCode::BadArgument),
    ] {
        assert_eq!(rename(&tree, from, to), Err(code), "{from} {to}");
    }
}

#[test]
fn only_what_is_asked_for_is_removed() {
    let tree = Tree::new();
    let outside = Tree::new();
    outside.write("kept", "kept");
    tree.write("d/x/y", "");
    symlink(&outside.path, tree.path.join("d/x/out")).unwrap();
    symlink(&outside.path, tree.path.join("l")).unwrap();
    assert_eq!(remove(&tree, "/", true), Err(ErrorCode::BadArgument));
    assert_eq!(remove(&tree, "/d/../..", true), Err(ErrorCode::BadArgument));
    assert_eq!(remove(&tree, "/none", true), Err(ErrorCode::NotFound));
    assert_eq!(remove(&tree, "/d", false), Err(ErrorCode::NotEmpty));
    assert_eq!(remove(&tree, "/l/kept", true), Err(ErrorCode::Symlink));
    assert_eq!(remove(&tree, "/d", true), Ok(4));
    assert_eq!(remove(&tree, "/l", true), Ok(1));
    assert_eq!(std::fs::read_dir(&tree.path).unwrap().count(), 0);
    assert_eq!(std::fs::read(outside.path.join("kept")).unwrap(), b"kept");
    make(&tree, "/empty", 0o755).unwrap();
    assert_eq!(remove(&tree, "/empty", false), Ok(1));
}

#[test]
fn a_tree_deeper_than_descriptors_or_paths_go_is_removed() {
    let tree = Tree::new();
    std::fs::create_dir(tree.path.join("deep")).unwrap();
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    let none = rustix::fs::Mode::empty();
    let mut at = rustix::fs::open(tree.path.join("deep"), flags, none).unwrap();
    for _ in 0..3000 {
        rustix::fs::mkdirat(&at, "nested", rustix::fs::Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "nested", flags, none).unwrap();
    }
    drop(at);
    assert!(remove(&tree, "/deep", true).unwrap() >= 3001);
    assert!(!tree.path.join("deep").exists());
}

#[test]
fn an_owner_is_what_the_file_has() {
    let tree = Tree::new();
    tree.write("f", "");
    let owner = std::fs::metadata(tree.path.join("f")).unwrap();
    let sent = run(&tree, &FileRequest::Stat(path("/f"))).unwrap().content;
    // path, kind, size, mode (0o644 is a uint16), uid
    assert_eq!((owner.uid(), sent[10]), (0, 0));
}
