//! What a machine leaves to be read: the console of its guest, and what its process prints. In a jail the process outside writes
//! both, each within a bound; without one the process does by itself.

use crate::config::{BootConfig, ConfigError, JailConfig, opening};
use crate::prepared::open as open_file;
use fluxvm_jail::{LogFile, Logs};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const BYTES_MAX: u64 = 4 << 20;
const MODE: u32 = 0o600;
/// A log that is full is moved to its path with this.
const EARLIER: &str = ".1";

/// Gives where the console prints, and the logs that a jail is entered with.
///
/// # Errors
/// [`ConfigError::Open`].
pub(crate) fn open(config: &BootConfig) -> Result<(Option<File>, Logs), ConfigError> {
    let mut logs = Logs::default();
    let console =
        config.console.as_deref().map(|path| open_console(path, config.jail.as_ref(), &mut logs)).transpose()?;
    if let Some(jail) = &config.jail
        && let Some(path) = &jail.log
    {
        let log = kept("jail.log", path, add_to("jail.log", path)?, jail)?;
        logs.add_printed(log).map_err(|errno| opening("jail.log", path)(errno.into()))?;
    }
    Ok((console, logs))
}

fn open_console(path: &Path, jail: Option<&JailConfig>, logs: &mut Logs) -> Result<File, ConfigError> {
    let file = add_to("console", path)?;
    match jail {
        // What is no file, such as a terminal, fills none.
        Some(jail) if file.metadata().map_err(opening("console", path))?.is_file() => {
            let log = kept("console", path, file, jail)?;
            logs.add(log).map_err(|errno| opening("console", path)(errno.into()))
        }
        _ => Ok(file),
    }
}

fn kept(field: &'static str, path: &Path, file: File, jail: &JailConfig) -> Result<LogFile, ConfigError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(EARLIER);
    let earlier = open_file(field, beside.as_ref(), OpenOptions::new().write(true).create(true).mode(MODE))?;
    Ok(LogFile { file, earlier, bytes_max: jail.limits.log_bytes.unwrap_or(BYTES_MAX) })
}

fn add_to(field: &'static str, path: &Path) -> Result<File, ConfigError> {
    open_file(field, path, OpenOptions::new().read(true).append(true).create(true).mode(MODE))
}
