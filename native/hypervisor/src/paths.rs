//! Where the process finds what a caller names: a caller always says paths of the host, and in its jail the process sees only
//! two directories of it.

use crate::config::{ConfigError, JailConfig};
use fluxvm_jail::{DIRECTORY, SOCKETS};
use std::path::{Component, Path, PathBuf};

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    /// Directories of the host and where they are seen; none without a jail.
    seen: Vec<(PathBuf, &'static str)>,
}

impl Paths {
    /// Of a process in this jail.
    pub(crate) fn in_jail(jail: &JailConfig) -> Self {
        let mut seen = vec![(jail.directory.clone(), DIRECTORY), (jail.sockets.clone(), SOCKETS)];
        // When one lies in the other, the inner one decides.
        seen.sort_by_key(|(directory, _)| std::cmp::Reverse(directory.components().count()));
        Self { seen }
    }

    /// Where the process finds a file.
    ///
    /// # Errors
    /// [`ConfigError::Outside`] when it is not in one of the directories of the jail; `field` says who names it.
    pub(crate) fn find(&self, field: &'static str, path: &Path) -> Result<PathBuf, ConfigError> {
        if self.seen.is_empty() {
            return Ok(path.to_owned());
        }
        let found = self.seen.iter().find_map(|(directory, place)| {
            let rest = path.strip_prefix(directory).ok().filter(|rest| !rest.as_os_str().is_empty())?;
            rest.components().all(|part| matches!(part, Component::Normal(_))).then(|| Path::new(place).join(rest))
        });
        found.ok_or_else(|| ConfigError::Outside { field, path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(directory: &str, sockets: &str) -> Paths {
        let jail = format!(r#"{{"uid":1,"gid":1,"directory":{directory:?},"sockets":{sockets:?}}}"#);
        Paths::in_jail(&serde_json::from_str(&jail).unwrap())
    }

    #[test]
    fn paths_of_the_host_become_those_of_the_jail() {
        let paths = paths("/var/lib/box/volume", "/run/box");
        let find = |path: &str| paths.find("path", Path::new(path)).ok();
        assert_eq!(find("/var/lib/box/volume/a/b"), Some("/vm/a/b".into()));
        assert_eq!(find("/run/box/vsock"), Some("/run/vsock".into()));
        for outside in [
            "/etc/passwd",
            "/var/lib/box/volume",
            "/var/lib/box/volume2/a",
            "/var/lib/box/volume/../x",
            "a",
            "/vm/a",
            "/run/boxes",
        ] {
            assert_eq!(find(outside), None, "{outside}");
        }
        let error = paths.find("restore", Path::new("/etc/passwd")).unwrap_err().to_string();
        assert!(error.starts_with("restore: /etc/passwd lies neither in"), "{error}");
        assert_eq!(Paths::default().find("path", Path::new("x/../y")).unwrap(), Path::new("x/../y"));
    }

    #[test]
    fn of_nested_directories_the_inner_one_decides() {
        for (directory, sockets) in [("/box", "/box/run"), ("/box/run", "/box")] {
            let place = if sockets == "/box/run" { SOCKETS } else { DIRECTORY };
            let found = paths(directory, sockets).find("path", Path::new("/box/run/x")).unwrap();
            assert_eq!(found, Path::new(place).join("x"));
        }
    }
}
