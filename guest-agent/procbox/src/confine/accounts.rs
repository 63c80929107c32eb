//! The tables of users and groups inside: those of the host, and the sandbox's own user, whom programs ask about by number
//! (scp, for one, does not run as a user without a name).

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A table that is larger is shown as it is.
const TABLE_BYTES_MAX: u64 = 256 << 10;
/// Name of the sandbox's user and of its group.
const NAME: &str = "sandbox";

/// What the file at `path` holds inside instead of the host's content, for the user `uid`; `None` where that stays.
pub fn replacement(path: &Path, uid: u32, home: &Path) -> Option<Vec<u8>> {
    let entry = match path.to_str()? {
        "/etc/passwd" => format!("{NAME}:x:{uid}:{uid}:{NAME}:{}:/bin/sh\n", home.display()),
        "/etc/group" => format!("{NAME}:x:{uid}:\n"),
        _ => return None,
    };
    let mut table = Vec::new();
    File::open(path).ok()?.take(TABLE_BYTES_MAX + 1).read_to_end(&mut table).ok()?;
    with_entry(table, uid, &entry)
}

/// The table with `entry` at its end, unless it is too large or knows the number.
fn with_entry(mut table: Vec<u8>, id: u32, entry: &str) -> Option<Vec<u8>> {
    let id = id.to_string();
    let known =
        table.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b':').nth(2) == Some(id.as_bytes()));
    if known || table.len() as u64 > TABLE_BYTES_MAX {
        return None;
    }
    if table.last().is_some_and(|last| *last != b'\n') {
        table.push(b'\n');
    }
    table.extend_from_slice(entry.as_bytes());
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_added_once_and_on_a_line_of_its_own() {
        let added = with_entry(b"root:x:0:0::/:/bin/sh".to_vec(), 200_000, "sandbox:x:200000:\n").unwrap();
        assert_eq!(added, b"root:x:0:0::/:/bin/sh\nsandbox:x:200000:\n");
        assert_eq!(with_entry(added, 200_000, "other:x:200000:\n"), None);
        assert_eq!(with_entry(vec![b'x'; (TABLE_BYTES_MAX + 1) as usize], 1, "e\n"), None);
    }
}
