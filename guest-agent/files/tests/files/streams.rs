//! Parts of files, and content that comes as a stream.

use crate::arranging::{Done, run};
use crate::tree::Tree;
use files::{Links, perform_upload};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_bytes::ByteBuf;
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use wire::ErrorCode;
use wire::file_request::*;

fn range(tree: &Tree, offset: u64, from_end: bool, length: Option<u64>) -> Result<Done, ErrorCode> {
    run(tree, &FileRequest::ReadRange(ReadRangeRequest { path: ByteBuf::from("/f"), offset, from_end, length }))
}

#[test]
fn a_part_is_announced_and_sent() {
    let tree = Tree::new();
    tree.write("f", "0123456789");
    for (offset, from_end, length, expected) in [
        (0, false, None, "0123456789"),
        (3, false, Some(4), "3456"),
        (3, false, Some(100), "3456789"),
        (10, false, None, ""),
        (u64::MAX, false, Some(u64::MAX), ""),
        (2, true, None, "89"),
        (100, true, None, "0123456789"),
    ] {
        let done = range(&tree, offset, from_end, length).unwrap();
        assert_eq!(done.content, expected.as_bytes());
        assert_eq!((done.opened.size, done.opened.length), (10, expected.len() as u64));
        assert_eq!(done.summary.size, expected.len() as u64);
    }
    std::fs::remove_file(tree.path.join("f")).unwrap();
    assert_eq!(range(&tree, 0, false, None).err(), Some(ErrorCode::NotFound));
    mknodat(CWD, tree.path.join("f"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert_eq!(range(&tree, 0, false, None).err(), Some(ErrorCode::NotRegular));
}

/// Content that breaks off.
struct Cut(&'static [u8]);

impl Read for Cut {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { self.0.read(buffer) }
    }
}

fn write(tree: &Tree, request: WriteStreamRequest, content: &mut impl Read) -> Result<u64, ErrorCode> {
    let request = FileUploadRequest::WriteStream(request);
    perform_upload(&tree.root(Links::Refuse), &request, content).map(|done| done.size).map_err(|fault| fault.code)
}

fn to(path: &str, mode: Option<u32>, offset: Option<u64>) -> WriteStreamRequest {
    WriteStreamRequest { path: ByteBuf::from(path), mode, parents: true, offset }
}

fn mode(tree: &Tree, path: &str) -> u32 {
    std::fs::metadata(tree.path.join(path)).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_replaced_file_keeps_its_mode_and_its_old_content_until_the_end() {
    let tree = Tree::new();
    assert_eq!(write(&tree, to("/d/f", None, None), &mut &b"new"[..]), Ok(3));
    assert_eq!(mode(&tree, "d/f"), 0o644);
    assert_eq!(write(&tree, to("/d/f", Some(0o600), None), &mut &b"newer"[..]), Ok(5));
    assert_eq!(write(&tree, to("/d/f", None, None), &mut &b"newest"[..]), Ok(6));
    assert_eq!(mode(&tree, "d/f"), 0o600);
    assert_eq!(write(&tree, to("/d/f", None, None), &mut Cut(b"half")), Err(ErrorCode::Cancelled));
    assert_eq!(std::fs::read(tree.path.join("d/f")).unwrap(), b"newest");
    assert_eq!(std::fs::read_dir(tree.path.join("d")).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_file_written_in_place_goes_on_where_it_ends_and_nowhere_else() {
    let tree = Tree::new();
    assert_eq!(write(&tree, to("/f", None, Some(0)), &mut Cut(b"first ")), Err(ErrorCode::Cancelled));
    assert_eq!(write(&tree, to("/f", None, Some(5)), &mut &b"x"[..]), Err(ErrorCode::OffsetMismatch));
    assert_eq!(write(&tree, to("/f", None, Some(7)), &mut &b"x"[..]), Err(ErrorCode::OffsetMismatch));
    assert_eq!(write(&tree, to("/f", None, Some(6)), &mut &b"second"[..]), Ok(12));
    assert_eq!(std::fs::read(tree.path.join("f")).unwrap(), b"first second");
    assert_eq!(write(&tree, to("/f", None, Some(0)), &mut &b"x"[..]), Ok(1));
    assert_eq!(write(&tree, to("/none", None, Some(1)), &mut &b"x"[..]), Err(ErrorCode::NotFound));
}

/// Content in the middle of which another write is tried.
struct Meanwhile<'a>(&'a Tree, Option<Result<u64, ErrorCode>>);

impl Read for Meanwhile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.1.is_some() {
            return Ok(0);
        }
        self.1 = Some(write(self.0, to("/f", None, Some(0)), &mut &b"other"[..]));
        buffer[..4].copy_from_slice(b"this");
        Ok(4)
    }
}

#[test]
fn a_file_is_written_in_place_by_one_at_a_time() {
    let tree = Tree::new();
    let mut content = Meanwhile(&tree, None);
    assert_eq!(write(&tree, to("/f", None, Some(0)), &mut content), Ok(4));
    assert_eq!(content.1, Some(Err(ErrorCode::Busy)));
    assert_eq!(std::fs::read(tree.path.join("f")).unwrap(), b"this");
}

#[test]
fn what_is_no_file_is_not_written() {
    let tree = Tree::new();
    mknodat(CWD, tree.path.join("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    symlink("/etc/passwd", tree.path.join("l")).unwrap();
    std::fs::create_dir(tree.path.join("d")).unwrap();
    for offset in [None, Some(0)] {
        for (path, code) in [
            ("/fifo", ErrorCode::NotRegular),
            ("/d", ErrorCode::NotRegular),
            ("/", ErrorCode::NotRegular),
            ("/l", ErrorCode::Symlink),
            ("/l/x", ErrorCode::Symlink),
        ] {
            assert_eq!(write(&tree, to(path, None, offset), &mut &b"x"[..]), Err(code), "{path} {offset:?}");
        }
    }
}
