//! Reading and writing files in trees that do not mean well.

use crate::tree::Tree;
use files::chunks::ChunkReader;
use files::{Links, open_file, write_file};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_bytes::ByteBuf;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use wire::request::{ReadFileRequest, WriteFileRequest};
use wire::{ErrorCode, Fault};

fn read(tree: &Tree, links: Links, path: &str, max: u64) -> Result<Vec<u8>, ErrorCode> {
    let request = ReadFileRequest { path: ByteBuf::from(path), max };
    let mut content = Vec::new();
    let sent = open_file(&tree.root(links), &request).and_then(|file| {
        let size = file.size;
        file.send(&mut content).inspect(|sent| assert_eq!(*sent, size))
    });
    sent.map(|_| content).map_err(|fault| fault.code)
}

fn request(path: &str) -> WriteFileRequest {
    WriteFileRequest { path: ByteBuf::from(path), mode: 0o644, parents: true, max: 100 }
}

fn write(tree: &Tree, links: Links, request: &WriteFileRequest, content: &str) -> Result<u64, ErrorCode> {
    write_file(&tree.root(links), request, &mut content.as_bytes()).map_err(|fault: Fault| fault.code)
}

fn names(tree: &Tree) -> Vec<String> {
    let entries = std::fs::read_dir(&tree.path).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_are_read_whole_or_not_at_all() {
    let tree = Tree::new();
    tree.write("d/file", "content");
    assert_eq!(read(&tree, Links::Refuse, "/d/file", 7), Ok(b"content".to_vec()));
    for (path, max, code) in [
        ("/d/file", 6, ErrorCode::TooLarge),
        ("/d/none", 9, ErrorCode::NotFound),
        ("/d/file/x", 9, ErrorCode::NotDirectory),
        ("/d", 9, ErrorCode::NotRegular),
        ("/", 9, ErrorCode::NotRegular),
        ("/d/../d/file", 9, ErrorCode::BadArgument),
        ("d/file", 9, ErrorCode::BadArgument),
    ] {
        assert_eq!(read(&tree, Links::Refuse, path, max), Err(code), "{path}");
    }
}

#[test]
fn a_fifo_holds_nobody() {
    let tree = Tree::new();
    mknodat(CWD, tree.path.join("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert_eq!(read(&tree, Links::Refuse, "/fifo", 9), Err(ErrorCode::NotRegular));
    assert_eq!(write(&tree, Links::Refuse, &request("/fifo"), "x"), Err(ErrorCode::NotRegular));
}

#[test]
fn links_are_refused_or_stay_inside() {
    let tree = Tree::new();
    tree.write("etc/passwd", "inside");
    symlink("/etc", tree.path.join("absolute")).unwrap();
    symlink("../../../../../etc", tree.path.join("climbing")).unwrap();
    symlink("etc/passwd", tree.path.join("plain")).unwrap();
    symlink("/proc/self/root/etc", tree.path.join("magic")).unwrap();
    for path in ["/absolute/passwd", "/climbing/passwd", "/plain"] {
        assert_eq!(read(&tree, Links::Refuse, path, 99), Err(ErrorCode::Symlink), "{path}");
        assert_eq!(read(&tree, Links::Follow, path, 99), Ok(b"inside".to_vec()), "{path}");
    }
    assert_eq!(read(&tree, Links::Follow, "/magic/passwd", 99), Err(ErrorCode::NotFound));
    assert_eq!(write(&tree, Links::Refuse, &request("/absolute/new"), "x"), Err(ErrorCode::Symlink));
    assert_eq!(write(&tree, Links::Refuse, &request("/plain"), "x"), Err(ErrorCode::Symlink));
    assert_eq!(write(&tree, Links::Follow, &request("/absolute/a/new"), "new"), Ok(3));
    assert_eq!(std::fs::read_to_string(tree.path.join("etc/a/new")).unwrap(), "new");
}

#[test]
fn writing_makes_parents_and_sets_the_mode() {
    let tree = Tree::new();
    let deep = WriteFileRequest { mode: 0o4751, ..request("/a/b/c/file") };
    let shallow = WriteFileRequest { parents: false, ..deep.clone() };
    assert_eq!(write(&tree, Links::Refuse, &shallow, "x"), Err(ErrorCode::NotFound));
    assert_eq!(write(&tree, Links::Refuse, &deep, "content"), Ok(7));
    let mode = |path: &str| tree.path.join(path).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("a"), mode("a/b/c"), mode("a/b/c/file")), (0o755, 0o755, 0o751));
    assert_eq!(write(&tree, Links::Refuse, &request("/a/b/c/file/x"), "x"), Err(ErrorCode::NotDirectory));
    assert_eq!(write(&tree, Links::Refuse, &request("/a/b"), "x"), Err(ErrorCode::NotRegular));
    assert_eq!(write(&tree, Links::Refuse, &request("/"), "x"), Err(ErrorCode::NotRegular));
}

#[test]
fn a_replaced_file_keeps_its_owner_and_its_other_names() {
    let tree = Tree::new();
    tree.write("file", "old");
    std::fs::hard_link(tree.path.join("file"), tree.path.join("other")).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(tree.path.join("file"), Some(1234), Some(1235)).unwrap();
    }
    let before = tree.path.join("file").metadata().unwrap();
    write(&tree, Links::Refuse, &request("/file"), "new").unwrap();
    let after = tree.path.join("file").metadata().unwrap();
    assert_eq!((before.uid(), before.gid()), (after.uid(), after.gid()));
    assert_eq!(std::fs::read_to_string(tree.path.join("other")).unwrap(), "old");
}

#[test]
fn a_failed_write_leaves_the_old_content_and_nothing_else() {
    let tree = Tree::new();
    tree.write("file", "old");
    assert_eq!(write(&tree, Links::Refuse, &request("/file"), &"x".repeat(101)), Err(ErrorCode::TooLarge));
    let cut = write_file(&tree.root(Links::Refuse), &request("/file"), &mut ChunkReader::new(&b"\0\0\0\x05new"[..]));
    assert_eq!(cut.unwrap_err().code, ErrorCode::Cancelled);
    assert_eq!(names(&tree), ["file"]);
    assert_eq!(std::fs::read_to_string(tree.path.join("file")).unwrap(), "old");
}

#[test]
fn a_directory_without_the_right_to_write_is_respected() {
    let tree = Tree::new();
    tree.write("closed/file", "old");
    std::fs::set_permissions(&tree.path, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(tree.path.join("closed"), PermissionsExt::from_mode(0o555)).unwrap();
    let root = tree.root(Links::Refuse);
    let unprivileged = move || {
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        write_file(&root, &request("/closed/file"), &mut &b"new"[..])
    };
    let fault = std::thread::spawn(unprivileged).join().unwrap().unwrap_err();
    std::fs::set_permissions(tree.path.join("closed"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(fault.code, ErrorCode::Denied);
    assert!(!fault.message.contains("os error"), "{fault}");
}
