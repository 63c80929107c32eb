//! Archives, in particular those that do not mean well.

use crate::arranging::run;
use crate::tree::Tree;
use files::{Links, perform_upload};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_bytes::ByteBuf;
use std::os::unix::fs::{PermissionsExt, symlink};
use tar::{Builder, EntryType, Header};
use wire::ErrorCode;
use wire::file_request::*;

fn unpack(tree: &Tree, path: &str, archive: &[u8]) -> Result<FileSummary, ErrorCode> {
    let request = FileUploadRequest::ArchiveWrite(PathRequest { path: ByteBuf::from(path) });
    perform_upload(&tree.root(Links::Refuse), &request, &mut &archive[..]).map_err(|fault| fault.code)
}

fn pack(tree: &Tree, path: &str) -> Result<Vec<u8>, ErrorCode> {
    run(tree, &FileRequest::ArchiveRead(PathRequest { path: ByteBuf::from(path) })).map(|done| done.content)
}

/// Name, kind, content or target.
type HostileEntry<'a> = (&'a str, EntryType, &'a str);

/// An archive of entries that a well-meaning writer would not write.
fn archive(entries: &[HostileEntry<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o640);
        header.set_mtime(1_000_000_000);
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        if is_link {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        let content = if is_link { "" } else { content };
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn a_tree_survives_the_way_there_and_back() {
    let tree = Tree::new();
    let long = "n".repeat(200);
    let deep = format!("src/{}/f", ["d".repeat(60).as_str(); 5].join("/"));
    tree.write("src/a", "content");
    tree.write("src/empty", "");
    tree.write(&format!("src/{long}"), vec![7; 100_000]);
    tree.write(&deep, "deep");
    symlink("a", tree.path.join("src/link")).unwrap();
    symlink(&long, tree.path.join("src/longlink")).unwrap();
    mknodat(CWD, tree.path.join("src/fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    std::fs::set_permissions(tree.path.join("src/a"), PermissionsExt::from_mode(0o751)).unwrap();
    let packed = pack(&tree, "/src").unwrap();
    unpack(&tree, "/made/dst", &packed).unwrap();
    std::fs::remove_file(tree.path.join("src/fifo")).unwrap();
    let same = std::process::Command::new("diff")
        .args(["-r", "--no-dereference", "src", "made/dst"])
        .current_dir(&tree.path)
        .status();
    assert!(same.unwrap().success());
    let a = std::fs::metadata(tree.path.join("made/dst/a")).unwrap();
    assert_eq!(a.permissions().mode() & 0o7777, 0o751);
    let before = std::fs::metadata(tree.path.join("src/a")).unwrap().modified().unwrap();
    assert!(before.duration_since(a.modified().unwrap()).unwrap().as_secs() < 1);
    assert_eq!(pack(&tree, "/src/fifo"), Err(ErrorCode::NotFound));
}

#[test]
fn archives_of_other_writers_are_understood_and_ours_by_them() {
    let tree = Tree::new();
    let name = format!("src/{}/{}", "ü".repeat(80), "x".repeat(120));
    tree.write(&name, "content");
    let run = |script: &str| {
        let done = std::process::Command::new("sh").args(["-c", script]).current_dir(&tree.path).status().unwrap();
        assert!(done.success(), "{script}");
    };
    for format in ["gnu", "pax", "ustar"] {
        if format == "ustar" {
            run("rm -r src && mkdir src && echo content >src/short");
        }
        run(&format!("tar --format={format} -C src -cf archive.tar ."));
        unpack(&tree, &format!("/{format}"), &std::fs::read(tree.path.join("archive.tar")).unwrap()).unwrap();
        run(&format!("diff -r src {format}"));
    }
    tree.write("ours.tar", pack(&tree, "/gnu").unwrap());
    run("mkdir theirs && tar -C theirs -xf ours.tar && diff -r gnu theirs");
}

#[test]
fn nothing_appears_outside() {
    let hostile: &[(&str, &[HostileEntry<'_>])] = &[
        ("climbing", &[("../out", EntryType::Regular, "x")]),
        ("climbing inside", &[("a/../../out", EntryType::Regular, "x")]),
        ("absolute", &[("/tmp/fluxvm-out", EntryType::Regular, "x")]),
        ("link up", &[("l", EntryType::Symlink, "..")]),
        ("link far up", &[("d/e/l", EntryType::Symlink, "../../../x")]),
        ("absolute link", &[("l", EntryType::Symlink, "/etc")]),
        ("link that climbs late", &[("d/l", EntryType::Symlink, "x/../../..")]),
        (
            "through a link",
            &[("d/f", EntryType::Regular, ""), ("l", EntryType::Symlink, "d"), ("l/x", EntryType::Regular, "x")],
        ),
        (
            "directory over a link",
            &[
                ("d/f", EntryType::Regular, ""),
                ("l", EntryType::Symlink, "d"),
                ("l/", EntryType::Directory, ""),
                ("l/x", EntryType::Regular, "x"),
            ],
        ),
        ("hard link out", &[("h", EntryType::Link, "../kept")]),
        ("absolute hard link", &[("h", EntryType::Link, "/etc/passwd")]),
        (
            "hard link through a link",
            &[("d/f", EntryType::Regular, ""), ("l", EntryType::Symlink, "d"), ("h", EntryType::Link, "l/f")],
        ),
        ("hard link to a link", &[("l", EntryType::Symlink, "d"), ("h", EntryType::Link, "l")]),
        ("character device", &[("c", EntryType::Char, "")]),
        ("block device", &[("b", EntryType::Block, "")]),
        ("fifo", &[("p", EntryType::Fifo, "")]),
        ("nameless", &[("./", EntryType::Symlink, "x")]),
        ("file over a directory", &[("d/f", EntryType::Regular, ""), ("d", EntryType::Regular, "")]),
    ];
    for (what, entries) in hostile {
        let tree = Tree::new();
        tree.write("kept", "kept");
        std::fs::create_dir(tree.path.join("into")).unwrap();
        assert!(unpack(&tree, "/into", &archive(entries)).is_err(), "{what}");
        let mut names: Vec<_> = std::fs::read_dir(&tree.path).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["into", "kept"], "{what}");
        assert!(!std::path::Path::new("/tmp/fluxvm-out").exists());
        assert_eq!(std::fs::read(tree.path.join("kept")).unwrap(), b"kept");
    }
}

#[test]
fn links_that_were_there_before_are_not_followed() {
    let tree = Tree::new();
    let outside = Tree::new();
    std::fs::create_dir(tree.path.join("into")).unwrap();
    symlink(&outside.path, tree.path.join("into/l")).unwrap();
    assert_eq!(unpack(&tree, "/into", &archive(&[("l/x", EntryType::Regular, "x")])), Err(ErrorCode::Symlink));
    // The link's own name is free to be given to a file.
    unpack(&tree, "/into", &archive(&[("l", EntryType::Regular, "x")])).unwrap();
    assert_eq!(std::fs::read_dir(&outside.path).unwrap().count(), 0);
    symlink(&outside.path, tree.path.join("away")).unwrap();
    assert_eq!(unpack(&tree, "/away", &archive(&[])), Err(ErrorCode::Symlink));
}

#[test]
fn well_meant_links_are_made() {
    let tree = Tree::new();
    let entries =
        [("d/f", EntryType::Regular, "x"), ("d/l", EntryType::Symlink, "../d/f"), ("h", EntryType::Link, "d/f")];
    unpack(&tree, "/into", &archive(&entries)).unwrap();
    assert_eq!(std::fs::read(tree.path.join("into/d/l")).unwrap(), b"x");
    assert_eq!(std::fs::read(tree.path.join("into/h")).unwrap(), b"x");
    // Again, over what is there.
    unpack(&tree, "/into", &archive(&entries)).unwrap();
}

#[test]
fn what_is_no_archive_or_no_whole_one_is_refused() {
    let tree = Tree::new();
    let whole = archive(&[("f", EntryType::Regular, &"x".repeat(2000))]);
    for bytes in [&b"no archive at all"[..], &[7; 2048], &whole[..1000]] {
        assert_eq!(unpack(&tree, "/into", bytes), Err(ErrorCode::BadArgument));
    }
    // A name said to have gigabytes takes no memory.
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..4].copy_from_slice(b"long");
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(8 << 30);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(1 << 20, b'a');
    assert_eq!(unpack(&tree, "/into", &bytes), Err(ErrorCode::BadArgument));
}

#[test]
fn a_file_that_did_not_come_whole_has_no_name() {
    let tree = Tree::new();
    let content = "x".repeat(100_000);
    let whole = archive(&[("first", EntryType::Regular, "one"), ("second", EntryType::Regular, &content)]);
    assert_eq!(unpack(&tree, "/into", &whole[..50_000]), Err(ErrorCode::BadArgument));
    assert_eq!(std::fs::read(tree.path.join("into/first")).unwrap(), b"one");
    assert!(!tree.path.join("into/second").exists());
}

#[test]
fn modes_of_directories_do_not_keep_their_content_out() {
    let tree = Tree::new();
    let mut entries = archive(&[("d/", EntryType::Directory, ""), ("d/f", EntryType::Regular, "x")]);
    // The directory's mode in the first header, and its checksum.
    let mut header = Header::new_gnu();
    header.as_mut_bytes().copy_from_slice(&entries[..512]);
    header.set_mode(0o500);
    header.set_cksum();
    entries[..512].copy_from_slice(header.as_bytes());
    unpack(&tree, "/into", &entries).unwrap();
    let mode = std::fs::metadata(tree.path.join("into/d")).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o500);
    std::fs::set_permissions(tree.path.join("into/d"), PermissionsExt::from_mode(0o700)).unwrap();
}
