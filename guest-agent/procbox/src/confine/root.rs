//! The sandbox's root: a small read-only memory file system with the granted paths bound in, a `/proc`, a
//! `/dev/pts` of its own, and nothing else.

use super::{accounts, during, names, terminals};
use crate::config::LaunchConfig;
use crate::limits::*;
use crate::plan::Plan;
use crate::sys::mount::{self, NO_DEVICES, NO_EXEC, NO_SUID, READ_ONLY};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat, mknodat};
use nix::unistd::symlinkat;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Device nodes that a command may open; any other is bound without the right to open devices.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// What every sandbox has, granted or not.
pub const OWN_DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", TERMINAL_DEVICE];

/// A process's controlling terminal, if it has one.
pub const TERMINAL_DEVICE: &str = "/dev/tty";

/// Parts of `/proc` that tell about the host or its kernel and are of no use inside.
const MASKED_IN_PROC: [&str; 22] = [
    "acpi",
    "asound",
    "bus",
    "config.gz",
    "fs",
    "interrupts",
    "irq",
    "kallsyms",
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "modules",
    "sched_debug",
    "scsi",
    "slabinfo",
    "sysrq-trigger",
    "timer_list",
];

/// How an object appears inside.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Access {
    Read,
    Write,
}

/// Something that is bound in: a detached copy of its mount, and where it goes.
struct Bind {
    inside: PathBuf,
    tree: OwnedFd,
    is_directory: bool,
}

/// A link that stands for another granted place.
struct Link {
    inside: PathBuf,
    target: PathBuf,
}

/// Builds the root of the user `uid` in this mount namespace and moves into it.
pub fn enter(config: &LaunchConfig, plan: &Plan, uid: u32, terminals: Option<OwnedFd>) -> Result<(), String> {
    mount::make_all_private().map_err(during("making mounts private"))?;
    let write_paths = config.write_paths.iter().map(PathBuf::as_path).chain(OWN_DEVICES.map(Path::new));
    let (mut binds, mut links) = collect(&config.read_paths, write_paths)?;
    if config.network.is_some() {
        // The host's own tells of resolvers that this network does not have.
        binds.retain(|bind| bind.inside != Path::new(names::RESOLVER_FILE));
        links.retain(|link| link.inside != Path::new(names::RESOLVER_FILE));
    }
    let workspace = copy(&config.workspace, &config.mount_at, Access::Write);
    binds.push(workspace.map_err(during("copying the mount of the workspace"))?);
    // The workspace's own copy is in `binds`, so that directory, the one that surely exists, can be covered.
    let host = open_path(&config.workspace).map_err(during("opening the workspace"))?;
    let root = small_root(host.as_fd())?;
    for bind in &binds {
        let attached = match accounts::replacement(&bind.inside, uid, &config.mount_at) {
            Some(content) => write(root.as_fd(), &bind.inside, &content),
            None => attach(root.as_fd(), bind),
        };
        attached.map_err(during(format!("binding {}", bind.inside.display())))?;
    }
    if let Some(network) = &config.network {
        let (path, content) = (Path::new(names::RESOLVER_FILE), names::resolver_file(network));
        write(root.as_fd(), path, content.as_bytes()).map_err(during("writing who resolves names"))?;
    }
    link_all(root.as_fd(), &links)?;
    if plan.proc {
        attach_proc(root.as_fd()).map_err(during("mounting /proc"))?;
    }
    attach_terminals(root.as_fd(), terminals).map_err(during("mounting /dev/pts"))?;
    move_into(root.as_fd())
}

/// Builds a root with `read_paths`, the devices that every program may expect, and at `inside` the detached mount `tree`
/// of the directory `place`, in this mount namespace, and moves into it.
pub fn enter_with(read_paths: &[PathBuf], tree: OwnedFd, place: BorrowedFd<'_>, inside: &Path) -> Result<(), String> {
    let (mut binds, links) = collect(read_paths, ["/dev/null", "/dev/urandom"].map(Path::new).into_iter())?;
    binds.push(Bind { inside: inside.to_owned(), tree, is_directory: true });
    let root = small_root(place)?;
    for bind in &binds {
        attach(root.as_fd(), bind).map_err(during(format!("binding {}", bind.inside.display())))?;
    }
    link_all(root.as_fd(), &links)?;
    move_into(root.as_fd())
}

/// An empty root. It must be attached somewhere before anything is attached to it: it covers the directory `host`.
fn small_root(host: BorrowedFd<'_>) -> Result<OwnedFd, String> {
    let size = CString::new(ROOT_BYTES_MAX.to_string()).expect("digits");
    let inodes = CString::new(ROOT_INODES_MAX.to_string()).expect("digits");
    let options = [(c"size", size.as_c_str()), (c"nr_inodes", inodes.as_c_str()), (c"mode", c"755")];
    let root = mount::new_filesystem(c"tmpfs", &options, NO_SUID | NO_DEVICES).map_err(during("making the root"))?;
    mount::attach_on(root.as_fd(), host).map_err(during("attaching the root"))?;
    Ok(root)
}

fn move_into(root: BorrowedFd<'_>) -> Result<(), String> {
    mount::set_attributes(root, READ_ONLY | NO_SUID | NO_DEVICES, false)
        .map_err(during("making the root read-only"))?;
    mount::change_root(root).map_err(during("changing the root"))
}

/// Copies the mounts of everything granted, before any of it is covered; and the links that stand for another
/// granted place (`/bin` for `/usr/bin`).
fn collect<'a>(
    read_paths: &'a [PathBuf],
    write_paths: impl Iterator<Item = &'a Path>,
) -> Result<(Vec<Bind>, Vec<Link>), String> {
    let mut wanted: Vec<(&Path, Access)> = read_paths.iter().map(|path| (path.as_path(), Access::Read)).collect();
    wanted.extend(write_paths.map(|path| (path, Access::Write)));
    wanted.sort_by_key(|(path, access)| (path.components().count(), *access == Access::Read));
    let (mut binds, mut links) = (Vec::<Bind>::new(), Vec::<Link>::new());
    let mut readable: Vec<PathBuf> = Vec::new();
    for (path, access) in wanted {
        let covered = binds.iter().any(|bind| bind.inside == path)
            || (access == Access::Read && readable.iter().any(|parent| path.starts_with(parent)));
        if covered || !path.exists() {
            continue;
        }
        let failed = || during(format!("copying the mount of {}", path.display()));
        let real = fs::canonicalize(path).map_err(failed())?;
        if access == Access::Read && real != path && readable.iter().any(|parent| real.starts_with(parent)) {
            links.push(Link { inside: path.to_owned(), target: real });
            continue;
        }
        binds.push(copy(&real, path, access).map_err(failed())?);
        if access == Access::Read {
            readable.push(path.to_owned());
        }
    }
    Ok((binds, links))
}

fn copy(source: &Path, inside: &Path, access: Access) -> io::Result<Bind> {
    let kind = fs::metadata(source)?.file_type();
    let tree = mount::clone_tree(&c_string(source))?;
    let mut attributes = NO_SUID;
    if kind.is_char_device() && DEVICES.iter().any(|device| source == Path::new(device)) {
        attributes |= NO_EXEC;
    } else {
        attributes |= NO_DEVICES;
    }
    if access == Access::Read {
        attributes |= READ_ONLY;
    }
    mount::set_attributes(tree.as_fd(), attributes, true)?;
    Ok(Bind { inside: inside.to_owned(), tree, is_directory: kind.is_dir() })
}

fn attach(root: BorrowedFd<'_>, bind: &Bind) -> io::Result<()> {
    let relative = below_root(&bind.inside);
    if bind.is_directory {
        make_directory(root, relative)?;
    } else {
        make_directory(root, relative.parent().unwrap_or(Path::new("")))?;
        let mode = Mode::from_bits_truncate(0o444);
        ignore_existing(mknodat(root, relative, SFlag::S_IFREG, mode, 0))?;
    }
    mount::attach(bind.tree.as_fd(), root, &c_string(relative))
}

fn write(root: BorrowedFd<'_>, inside: &Path, content: &[u8]) -> io::Result<()> {
    let relative = below_root(inside);
    make_directory(root, relative.parent().unwrap_or(Path::new("")))?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(root, relative, flags, Mode::from_bits_truncate(0o644))?;
    File::from(file).write_all(content)
}

fn link_all(root: BorrowedFd<'_>, links: &[Link]) -> Result<(), String> {
    for Link { inside, target } in links {
        link(root, inside, target).map_err(during(format!("linking {}", inside.display())))?;
    }
    Ok(())
}

fn link(root: BorrowedFd<'_>, inside: &Path, target: &Path) -> io::Result<()> {
    let relative = below_root(inside);
    make_directory(root, relative.parent().unwrap_or(Path::new("")))?;
    ignore_existing(symlinkat(target, root, relative))
}

fn attach_proc(root: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = NO_SUID | NO_DEVICES | NO_EXEC;
    // Init and the workers are not dumpable; this keeps even their names from commands.
    let proc = mount::new_filesystem(c"proc", &[(c"hidepid", c"2")], attributes)?;
    make_directory(root, Path::new("proc"))?;
    mount::attach(proc.as_fd(), root, c"proc")?;
    for name in MASKED_IN_PROC {
        mask(root, &Path::new("proc").join(name))?;
    }
    Ok(())
}

fn mask(root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let stat = match fstatat(root, path, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => return Ok(()),
        other => other?,
    };
    let cover = if stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
        mount::new_filesystem(c"tmpfs", &[(c"size", c"4096"), (c"mode", c"555")], READ_ONLY | NO_SUID | NO_DEVICES)?
    } else {
        let cover = mount::clone_tree(c"/dev/null")?;
        mount::set_attributes(cover.as_fd(), READ_ONLY | NO_SUID | NO_DEVICES | NO_EXEC, false)?;
        cover
    };
    mount::attach(cover.as_fd(), root, &c_string(path))
}

/// Terminals, and the names below `/dev` that programs expect.
fn attach_terminals(root: BorrowedFd<'_>, made: Option<OwnedFd>) -> io::Result<()> {
    let made = match made {
        Some(made) => made,
        None => terminals::make(None)?,
    };
    make_directory(root, Path::new("dev/pts"))?;
    mount::attach(made.as_fd(), root, c"dev/pts")?;
    let names = [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ];
    for (name, target) in names {
        ignore_existing(symlinkat(target, root, &Path::new("dev").join(name)))?;
    }
    Ok(())
}

fn make_directory(root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let mut made = PathBuf::new();
    for part in path.components() {
        made.push(part);
        ignore_existing(mkdirat(root, &made, Mode::from_bits_truncate(0o755)))?;
    }
    Ok(())
}

fn ignore_existing(result: nix::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::EEXIST) => Ok(()),
        other => Ok(other?),
    }
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(nix::fcntl::AT_FDCWD, path, OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_DIRECTORY, Mode::empty())?)
}

fn below_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("checked paths hold no NUL")
}
