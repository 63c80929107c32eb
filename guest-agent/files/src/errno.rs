//! From a failed system call to a fault of the protocol.

use rustix::io::Errno;
use wire::{ErrorCode, Fault};

/// What `errno` means to the host when `operation` met it on `path`.
pub fn fault(errno: Errno, operation: &str, path: &[u8]) -> Fault {
    let code = match errno {
        Errno::NOENT => ErrorCode::NotFound,
        Errno::NOTDIR => ErrorCode::NotDirectory,
        Errno::ISDIR | Errno::NXIO | Errno::NODEV => ErrorCode::NotRegular,
        Errno::NOTEMPTY | Errno::EXIST => ErrorCode::NotEmpty,
        Errno::LOOP => ErrorCode::Symlink,
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::XDEV | Errno::TXTBSY => ErrorCode::Denied,
        Errno::NOSPC | Errno::DQUOT => ErrorCode::NoSpace,
        Errno::FBIG => ErrorCode::TooLarge,
        Errno::NAMETOOLONG | Errno::INVAL => ErrorCode::BadArgument,
        _ => ErrorCode::Internal,
    };
    Fault::new(code, format!("{operation} {}: {}", path.escape_ascii(), describe(errno)))
}

/// The system's words for an errno, without Rust's "(os error N)".
pub fn describe(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}

/// The errno inside an I/O error; EIO when it holds none.
pub fn of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
