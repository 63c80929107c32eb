//! Creating files, changing what belongs to them, links, following them, and writing anywhere.

use crate::arranging::run;
use crate::tree::Tree;
use files::{Links, perform_upload};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_bytes::ByteBuf;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use wire::ErrorCode;
use wire::file_request::*;

fn create(tree: &Tree, path: &str, mode: u32, exclusive: bool, empty: bool) -> Result<FileSummary, ErrorCode> {
    let request = CreateRequest { path: ByteBuf::from(path), mode, exclusive, empty };
    run(tree, &FileRequest::Create(request)).map(|done| done.summary)
}

fn unchanged(path: &str) -> SetAttributesRequest {
    SetAttributesRequest { path: ByteBuf::from(path), mode: None, accessed_ms: None, modified_ms: None, size: None }
}

fn set(tree: &Tree, request: SetAttributesRequest) -> Result<(), ErrorCode> {
    run(tree, &FileRequest::SetAttributes(request)).map(drop)
}

fn resolve(tree: &Tree, path: &str) -> Result<Vec<u8>, ErrorCode> {
    run(tree, &FileRequest::Resolve(PathRequest { path: ByteBuf::from(path) })).map(|done| done.content)
}

fn write_at(tree: &Tree, path: &str, offset: Option<u64>, content: &str) -> Result<u64, ErrorCode> {
    let request = FileUploadRequest::WriteAt(WriteAtRequest { path: ByteBuf::from(path), offset });
    let done = perform_upload(&tree.root(Links::Refuse), &request, &mut content.as_bytes());
    done.map(|summary| summary.size).map_err(|fault| fault.code)
}

fn read(tree: &Tree, name: &str) -> String {
    std::fs::read_to_string(tree.path.join(name)).unwrap()
}

#[test]
fn a_file_is_made_once_with_its_mode() {
    let tree = Tree::new();
    assert_eq!(create(&tree, "/f", 0o640, true, false), Ok(FileSummary { size: 0, entries: 1 }));
    assert_eq!(std::fs::metadata(tree.path.join("f")).unwrap().permissions().mode() & 0o7777, 0o640);
    tree.write("f", "12345");
    assert_eq!(create(&tree, "/f", 0o600, true, true), Err(ErrorCode::Exists));
    assert_eq!(create(&tree, "/f", 0o600, false, false), Ok(FileSummary { size: 5, entries: 0 }));
    assert_eq!(read(&tree, "f"), "12345");
    assert_eq!(create(&tree, "/f", 0o600, false, true), Ok(FileSummary { size: 0, entries: 0 }));
    assert_eq!(read(&tree, "f"), "");
    std::fs::create_dir(tree.path.join("d")).unwrap();
    symlink("/etc/passwd", tree.path.join("l")).unwrap();
    mknodat(CWD, tree.path.join("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for (path, code) in [
        ("/none/f", ErrorCode::NotFound),
        ("/d", ErrorCode::NotRegular),
        ("/", ErrorCode::NotRegular),
        ("/l", ErrorCode::Symlink),
        ("/fifo", ErrorCode::NotRegular),
    ] {
        assert_eq!(create(&tree, path, 0o600, false, true), Err(code), "{path}");
    }
}

#[test]
fn mode_times_and_size_change_alone() {
    let tree = Tree::new();
    tree.write("f", "12345");
    let look = || std::fs::metadata(tree.path.join("f")).unwrap();
    let before = look();
    set(&tree, SetAttributesRequest { mode: Some(0o100_604), ..unchanged("/f") }).unwrap();
    assert_eq!((look().mode() & 0o7777, look().mtime_nsec()), (0o604, before.mtime_nsec()));
    set(&tree, SetAttributesRequest { modified_ms: Some(1_234_567), ..unchanged("/f") }).unwrap();
    assert_eq!((look().mtime(), look().mtime_nsec(), look().atime()), (1234, 567_000_000, before.atime()));
    set(&tree, SetAttributesRequest { accessed_ms: Some(5_000), ..unchanged("/f") }).unwrap();
    assert_eq!((look().mtime(), look().atime()), (1234, 5));
    set(&tree, SetAttributesRequest { size: Some(2), modified_ms: Some(9_000), ..unchanged("/f") }).unwrap();
    assert_eq!((read(&tree, "f").as_str(), look().mtime()), ("12", 9));
    set(&tree, SetAttributesRequest { size: Some(4), ..unchanged("/f") }).unwrap();
    assert_eq!(read(&tree, "f"), "12\0\0");
    std::fs::create_dir(tree.path.join("d")).unwrap();
    set(&tree, SetAttributesRequest { mode: Some(0o711), modified_ms: Some(7_000), ..unchanged("/d") }).unwrap();
    let directory = std::fs::metadata(tree.path.join("d")).unwrap();
    assert_eq!((directory.mode() & 0o7777, directory.mtime()), (0o711, 7));
    assert_eq!(
        set(&tree, SetAttributesRequest { size: Some(0), ..unchanged("/d") }).err(),
        Some(ErrorCode::NotRegular)
    );
}

#[test]
fn attributes_of_what_a_link_leads_to_stay() {
    let tree = Tree::new();
    tree.write("f", "12345");
    symlink("f", tree.path.join("l")).unwrap();
    symlink(".", tree.path.join("here")).unwrap();
    for request in [
        SetAttributesRequest { mode: Some(0), ..unchanged("/l") },
        SetAttributesRequest { size: Some(0), ..unchanged("/l") },
        SetAttributesRequest { modified_ms: Some(0), ..unchanged("/here/f") },
    ] {
        assert_eq!(set(&tree, request).err(), Some(ErrorCode::Symlink));
    }
    assert_eq!(read(&tree, "f"), "12345");
    assert_eq!(set(&tree, unchanged("/none")).err(), Some(ErrorCode::NotFound));
}

#[test]
fn links_are_made_where_nothing_is() {
    let tree = Tree::new();
    tree.write("f", "f");
    let symbolic = |path: &str, target: &str| {
        let request = SymlinkRequest { path: ByteBuf::from(path), target: ByteBuf::from(target) };
        run(&tree, &FileRequest::Symlink(request)).map(drop)
    };
    symbolic("/l", "../anything at all").unwrap();
    assert_eq!(std::fs::read_link(tree.path.join("l")).unwrap().to_str(), Some("../anything at all"));
    assert_eq!(symbolic("/l", "f"), Err(ErrorCode::Exists));
    assert_eq!(symbolic("/", "f"), Err(ErrorCode::Exists));
    assert_eq!(symbolic("/none/l", "f"), Err(ErrorCode::NotFound));
    assert_eq!(symbolic("/empty", ""), Err(ErrorCode::BadArgument));
    assert_eq!(symbolic("/nul", "a\0b"), Err(ErrorCode::BadArgument));
    let hard = |from: &str, to: &str| {
        let request = MoveRequest { from: ByteBuf::from(from), to: ByteBuf::from(to) };
        run(&tree, &FileRequest::Link(request)).map(drop)
    };
    hard("/f", "/g").unwrap();
    assert_eq!(std::fs::metadata(tree.path.join("g")).unwrap().nlink(), 2);
    assert_eq!(hard("/f", "/l"), Err(ErrorCode::Exists));
    hard("/l", "/m").unwrap();
    assert!(std::fs::symlink_metadata(tree.path.join("m")).unwrap().is_symlink(), "the link itself");
}

#[test]
fn following_stays_inside() {
    let tree = Tree::new();
    tree.write("d/f", "123");
    symlink("d", tree.path.join("to-d")).unwrap();
    symlink("to-d/f", tree.path.join("to-f")).unwrap();
    symlink(tree.path.join("d/f"), tree.path.join("absolute")).unwrap();
    symlink("/etc/passwd", tree.path.join("out")).unwrap();
    symlink("..", tree.path.join("up")).unwrap();
    symlink("circle", tree.path.join("circle")).unwrap();
    let expected = [&[0x98, 0xc4, 4][..], b"/d/f", &[0, 3]].concat();
    for path in ["/d/f", "/to-d/f", "/to-f", "/absolute"] {
        assert_eq!(resolve(&tree, path).unwrap()[..expected.len()], expected, "{path}");
    }
    assert_eq!(resolve(&tree, "/").unwrap()[..5], [0x98, 0xc4, 1, b'/', 1]);
    for (path, code) in [
        ("/out", ErrorCode::NotFound),
        ("/up", ErrorCode::NotFound),
        ("/none", ErrorCode::NotFound),
        ("/circle", ErrorCode::Symlink),
        ("/d/f/x", ErrorCode::NotDirectory),
    ] {
        assert_eq!(resolve(&tree, path).err(), Some(code), "{path}");
    }
}

#[test]
fn content_goes_anywhere_in_a_file_that_is_there() {
    let tree = Tree::new();
    tree.write("f", "0123456789");
    assert_eq!(write_at(&tree, "/f", Some(3), "abc"), Ok(10));
    assert_eq!(read(&tree, "f"), "012abc6789");
    assert_eq!(write_at(&tree, "/f", Some(12), "x"), Ok(13));
    assert_eq!(read(&tree, "f"), "012abc6789\0\0x");
    assert_eq!(write_at(&tree, "/f", None, "end"), Ok(16));
    assert!(read(&tree, "f").ends_with("xend"));
    assert_eq!(write_at(&tree, "/none", Some(0), "x"), Err(ErrorCode::NotFound));
    symlink("f", tree.path.join("l")).unwrap();
    assert_eq!(write_at(&tree, "/l", Some(0), "x"), Err(ErrorCode::Symlink));
    mknodat(CWD, tree.path.join("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert_eq!(write_at(&tree, "/fifo", Some(0), "x"), Err(ErrorCode::NotRegular));
}
