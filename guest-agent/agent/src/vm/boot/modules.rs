//! The kernel modules in the initrd, in the order in which they are to be loaded.

use super::say;
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// File names, one a line.
const ORDER: &str = "/modules.order";
const DIRECTORY: &str = "/modules";

/// Loads every module. One for hardware that this machine does not have says so, which is no failure; what else fails is
/// said, and decided by whether the root is found.
pub fn load_all() -> Result<(), String> {
    let order = std::fs::read_to_string(ORDER).map_err(|error| format!("{ORDER}: {error}"))?;
    for name in order.lines().filter(|name| !name.is_empty()) {
        match load(&Path::new(DIRECTORY).join(name)) {
            Ok(()) => {}
            Err(error) if [Errno::EXIST, Errno::NODEV].contains(&errno(&error)) => {}
            Err(error) => say(&format!("kernel module {name}: {error}")),
        }
    }
    Ok(())
}

fn load(path: &Path) -> std::io::Result<()> {
    Ok(rustix::system::finit_module(File::open(path)?, c"", 0)?)
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(0))
}

/// Gives their memory back.
pub fn remove() {
    let _ = std::fs::remove_dir_all(DIRECTORY);
    let _ = std::fs::remove_file(ORDER);
}
