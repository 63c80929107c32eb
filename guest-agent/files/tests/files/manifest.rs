//! Manifests of real trees, kind and hostile ones, against a look that shares no code with the walker.

use crate::tree::{Contents, Tree, apply_delta, look_afresh, read_listing};
use files::{Links, Manifests};
use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat};
use serde_bytes::ByteBuf;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use wire::request::{ManifestRequest, ManifestSummary};
use wire::{ErrorCode, Fault};

/// Longer than any timestamp granularity that the walker allows for on disks with nanoseconds.
const SETTLE: Duration = Duration::from_millis(30);

fn request(paths: &[&str]) -> ManifestRequest {
    let paths = paths.iter().map(|path| ByteBuf::from(path.as_bytes())).collect();
    ManifestRequest { paths, files_max: 200_000, listing_max: 64 << 20, base: None }
}

fn manifests(tree: &Tree) -> Manifests {
    Manifests::new(tree.root(Links::Refuse), 4)
}

fn run(manifests: &mut Manifests, request: &ManifestRequest) -> Result<(Vec<u8>, ManifestSummary), Fault> {
    let mut bytes = Vec::new();
    manifests.run(request, &AtomicBool::new(false), &mut bytes).map(|summary| (bytes, summary))
}

fn list(tree: &Tree) -> Contents {
    read_listing(&run(&mut manifests(tree), &request(&["/"])).unwrap().0)
}

#[test]
fn names_of_any_bytes_in_byte_order() {
    let tree = Tree::new();
    for name in ["a/x", "a-b", "a.b", "a0", "a b", "A", "ü", "a/-", "-a", "\n"] {
        tree.write(name, name);
    }
    for byte in (1..=255u8).filter(|byte| *byte != b'/' && *byte != b'.') {
        std::fs::write(tree.path.join(OsStr::from_bytes(&[byte])), [byte]).ok();
    }
    tree.write(&"n".repeat(255), "long");
    assert_eq!(list(&tree), look_afresh(&tree.path));
}

#[test]
fn special_files_are_named_and_never_opened() {
    let tree = Tree::new();
    mknodat(CWD, tree.path.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = UnixListener::bind(tree.path.join("socket")).unwrap();
    symlink("fifo", tree.path.join("link")).unwrap();
    symlink("/dev/zero", tree.path.join("out")).unwrap();
    symlink(".", tree.path.join("loop")).unwrap();
    if rustix::process::geteuid().is_root() {
        mknodat(CWD, tree.path.join("zero"), FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 5)).unwrap();
    }
    let started = Instant::now();
    assert_eq!(list(&tree), look_afresh(&tree.path));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn directories_larger_than_a_chunk() {
    let tree = Tree::new();
    for number in 0..3000 {
        tree.write(&format!("many/{number}"), number.to_string());
    }
    for number in 0..600 {
        std::fs::create_dir(tree.path.join(format!("many/d{number}"))).unwrap();
    }
    assert_eq!(list(&tree), look_afresh(&tree.path));
}

#[test]
fn deep_trees() {
    let tree = Tree::new();
    let path = vec!["d"; 150].join("/");
    tree.write(&format!("{path}/file"), "deep");
    assert_eq!(list(&tree), look_afresh(&tree.path));
}

#[test]
fn a_path_beyond_the_limit_is_a_limit() {
    let tree = Tree::new();
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = rustix::fs::open(&tree.path, flags, Mode::empty()).unwrap();
    let name = "l".repeat(250);
    for _ in 0..18 {
        mkdirat(&directory, &name, Mode::RWXU).unwrap();
        directory = openat(&directory, &name, flags, Mode::empty()).unwrap();
    }
    let fault = run(&mut manifests(&tree), &request(&["/"])).unwrap_err();
    assert_eq!(fault.code, ErrorCode::Limit, "{fault}");
}

#[test]
fn several_starting_points_keep_their_full_paths() {
    let tree = Tree::new();
    for path in ["a/one", "b/two", "b/c/three", "d/four"] {
        tree.write(path, path);
    }
    let listed = read_listing(&run(&mut manifests(&tree), &request(&["/b", "/a", "/b/c"])).unwrap().0);
    let mut expected = look_afresh(&tree.path);
    expected.retain(|path, _| path.starts_with(b"/a") || path.starts_with(b"/b"));
    assert_eq!(listed, expected);
}

#[test]
fn starting_points_must_be_directories() {
    let tree = Tree::new();
    tree.write("file", "");
    symlink(".", tree.path.join("link")).unwrap();
    for (path, code) in [
        ("/missing", ErrorCode::NotFound),
        ("/file", ErrorCode::NotDirectory),
        ("/link", ErrorCode::Symlink),
        ("/a/../b", ErrorCode::BadArgument),
        ("b", ErrorCode::BadArgument),
    ] {
        assert_eq!(run(&mut manifests(&tree), &request(&[path])).unwrap_err().code, code, "{path}");
    }
}

#[test]
fn limits_hold_at_their_edges() {
    let tree = Tree::new();
    for number in 0..20 {
        tree.write(&format!("d{}/{number}", number % 3), "x");
    }
    let (bytes, summary) = run(&mut manifests(&tree), &request(&["/"])).unwrap();
    assert_eq!((summary.files, summary.entries), (20, 24));
    let size = bytes.len() as u64;
    let with = |files_max, listing_max| {
        let request = ManifestRequest { files_max, listing_max, ..request(&["/"]) };
        run(&mut manifests(&tree), &request).map_err(|fault| fault.code).map(|_| ())
    };
    assert_eq!(with(20, size), Ok(()));
    assert_eq!(with(19, size), Err(ErrorCode::Limit));
    assert_eq!(with(20, size - 1), Err(ErrorCode::Limit));
    assert_eq!(with(20, 0), Err(ErrorCode::Limit));
}

#[test]
fn what_would_be_read_for_hours_is_a_limit_that_names_the_file() {
    let tree = Tree::new();
    tree.write("small", "x");
    let sparse = std::fs::File::create(tree.path.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let began = std::time::Instant::now();
    let fault = run(&mut manifests(&tree), &request(&["/"])).unwrap_err();
    assert_eq!(fault.code, ErrorCode::Limit, "{fault}");
    assert!(fault.to_string().contains("sparse: more than 512 GiB to hash"), "{fault}");
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
    sparse.set_len(1 << 20).unwrap();
    run(&mut manifests(&tree), &request(&["/"])).unwrap();
}

#[test]
fn an_unreadable_file_has_an_empty_fingerprint() {
    let tree = Tree::new();
    tree.write("open", "open");
    tree.write("closed", "closed");
    std::fs::set_permissions(&tree.path, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(tree.path.join("closed"), PermissionsExt::from_mode(0o000)).unwrap();
    let mut manifests = manifests(&tree);
    let (first, second) = as_nobody(|| {
        let mut run = || run(&mut manifests, &request(&["/"])).unwrap().0;
        (run(), run())
    });
    let listed = read_listing(&first);
    assert_eq!(listed[b"/closed".as_slice()].fingerprint, b"");
    assert_eq!(listed[b"/open".as_slice()].fingerprint.len(), 32);
    assert_eq!(first, second);
}

#[test]
fn an_unreadable_directory_fails_the_walk_by_name() {
    let tree = Tree::new();
    tree.write("d/closed/inside", "inside");
    std::fs::set_permissions(&tree.path, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(tree.path.join("d/closed"), PermissionsExt::from_mode(0o000)).unwrap();
    let mut manifests = manifests(&tree);
    let fault = as_nobody(|| run(&mut manifests, &request(&["/"]))).unwrap_err();
    std::fs::set_permissions(tree.path.join("d/closed"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(fault.code, ErrorCode::WalkFailed);
    assert!(fault.message.contains("d/closed: Permission denied"), "{fault}");
}

/// Runs on a thread without the rights of root, where this process has them.
fn as_nobody<T: Send>(action: impl FnOnce() -> T + Send) -> T {
    let unprivileged = || {
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        action()
    };
    std::thread::scope(|scope| scope.spawn(unprivileged).join().unwrap())
}

#[test]
fn a_walk_can_be_given_up() {
    let tree = Tree::new();
    tree.write("file", "");
    let fault = manifests(&tree).run(&request(&["/"]), &AtomicBool::new(true), &mut Vec::new()).unwrap_err();
    assert_eq!(fault.code, ErrorCode::Cancelled);
}

#[test]
fn a_tree_that_changes_under_the_walk_is_no_error() {
    let tree = Tree::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(7);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                edit(&tree, &mut random);
            }
        });
        let mut manifests = manifests(&tree);
        let started = Instant::now();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while started.elapsed() < Duration::from_millis(1500) {
                read_listing(&run(&mut manifests, &request(&["/"])).unwrap().0);
            }
        }));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome.unwrap();
    });
}

#[test]
fn settled_files_are_not_read_again() {
    let tree = Tree::new();
    for number in 0..100 {
        tree.write(&number.to_string(), "content");
    }
    std::thread::sleep(SETTLE);
    let mut manifests = manifests(&tree);
    run(&mut manifests, &request(&["/"])).unwrap();
    assert_eq!((manifests.report().hashed, manifests.report().known), (100, 0));
    tree.write("5", "CONTENT");
    run(&mut manifests, &request(&["/"])).unwrap();
    assert_eq!((manifests.report().hashed, manifests.report().known), (1, 99));
    // Too fresh to have been trusted.
    run(&mut manifests, &request(&["/"])).unwrap();
    assert_eq!((manifests.report().hashed, manifests.report().known), (1, 99));
}

#[test]
fn a_store_through_an_old_mapping_is_seen() {
    let tree = Tree::new();
    tree.write("mapped", vec![b'a'; 4096]);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(tree.path.join("mapped")).unwrap();
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the place, and the file is as long as the mapping.
    let page =
        unsafe { mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, &file, 0) }.unwrap().cast::<u8>();
    // SAFETY: inside the mapping made above, which nobody else uses.
    let store = |byte: u8| unsafe { page.write_volatile(byte) };
    store(b'b');
    drop(file);
    std::thread::sleep(SETTLE);
    let mut manifests = manifests(&tree);
    let before = read_listing(&run(&mut manifests, &request(&["/"])).unwrap().0);
    // The page is still dirty, so this store moves no timestamp.
    store(b'c');
    let after = read_listing(&run(&mut manifests, &request(&["/"])).unwrap().0);
    // SAFETY: unmapped once, and not used afterwards.
    unsafe { munmap(page.cast(), 4096) }.unwrap();
    assert_ne!(before, after);
    assert_eq!(after, look_afresh(&tree.path));
}

#[test]
fn deltas_of_trees_with_many_blocks() {
    let tree = Tree::new();
    for number in 0..4000 {
        tree.write(&format!("d{}/{number}", number % 7), number.to_string());
    }
    let mut manifests = manifests(&tree);
    let mut random = Random(3);
    let (bytes, mut summary) = run(&mut manifests, &request(&["/"])).unwrap();
    let mut host = read_listing(&bytes);
    for round in 0..10 {
        for _ in 0..random.below(6) {
            let (directory, number) = (random.below(7), random.below(9000));
            let path = format!("d{directory}/{number}");
            match random.below(3) {
                0 => drop(std::fs::remove_file(tree.path.join(path))),
                1 => drop(std::fs::rename(tree.path.join(path), tree.path.join(format!("d0/{round}-moved")))),
                _ => tree.write(&path, "changed"),
            }
        }
        let before = host.clone();
        let request = ManifestRequest { base: Some(summary.digest), ..request(&["/"]) };
        let bytes;
        (bytes, summary) = run(&mut manifests, &request).unwrap();
        apply_delta(&mut host, &bytes);
        assert_eq!(host, look_afresh(&tree.path), "round {round}");
        let same = host.iter().filter(|(path, now)| now.kind == 0 && before.get(*path) == Some(now)).count();
        assert_eq!(summary.unchanged, same as u64);
    }
}

/// A small generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One change of any kind. That a thing is not there or in the way is part of the game.
fn edit(tree: &Tree, random: &mut Random) {
    let any = |random: &mut Random| {
        let names = ["a", "b", "a-b", "a.c", "é", "s p"];
        let depth = 1 + random.below(3);
        let parts: Vec<&str> = (0..depth).map(|_| names[random.below(6) as usize]).collect();
        tree.path.join(parts.join("/"))
    };
    let path = any(random);
    let content = vec![b'a' + random.below(26) as u8; random.below(50) as usize];
    let _ = match random.below(12) {
        0..=2 => std::fs::create_dir_all(path.parent().unwrap()).and_then(|()| std::fs::write(&path, &content)),
        3 | 4 => rewrite_unnoticed(&path, random),
        5 => std::fs::remove_file(&path),
        6 => std::fs::remove_dir_all(&path),
        7 => std::fs::rename(&path, any(random)),
        8 => symlink("a", &path),
        9 => std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700 + random.below(64) as u32)),
        10 => std::fs::create_dir_all(&path),
        _ => std::fs::hard_link(&path, any(random)),
    };
}

/// Other content of the same size, with the modification time put back.
fn rewrite_unnoticed(path: &std::path::Path, random: &mut Random) -> std::io::Result<()> {
    let metadata = path.symlink_metadata()?;
    if metadata.is_file() {
        let content = vec![b'A' + random.below(26) as u8; metadata.len() as usize];
        std::fs::write(path, content)?;
        std::fs::File::options().write(true).open(path)?.set_modified(metadata.modified()?)?;
    }
    Ok(())
}

#[test]
fn any_sequence_of_edits_gives_what_a_fresh_look_gives() {
    let mut known = 0;
    for seed in 0..6 {
        let tree = Tree::new();
        let mut random = Random(seed);
        let mut manifests = manifests(&tree);
        let mut host = Contents::new();
        let mut base = None;
        for round in 0..15 {
            for _ in 0..random.below(30) {
                edit(&tree, &mut random);
            }
            if random.below(2) == 0 {
                std::thread::sleep(SETTLE);
            }
            let request = ManifestRequest { base: base.take(), ..request(&["/"]) };
            let (bytes, summary) = run(&mut manifests, &request).unwrap();
            assert_eq!(summary.delta, request.base.is_some());
            if summary.delta {
                apply_delta(&mut host, &bytes);
            } else {
                host = read_listing(&bytes);
            }
            assert_eq!(host, look_afresh(&tree.path), "seed {seed}, round {round}");
            assert_eq!(summary.entries, host.len() as u64);
            known += manifests.report().known;
            // Now and then the host has lost what it held.
            base = (random.below(5) > 0).then_some(summary.digest);
        }
    }
    assert!(known > 0, "the cache was never used");
}
