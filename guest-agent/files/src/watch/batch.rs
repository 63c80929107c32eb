//! The changes of a short time, brought together: what is said twice about a path is said once.

use std::collections::HashMap;
use wire::file_entry::{Change, ChangeKind};

#[derive(Default)]
pub struct Batch {
    changes: Vec<Change>,
    /// What was said last about a path.
    last: HashMap<Vec<u8>, ChangeKind>,
    /// The old name of a move whose new name has not been told, with the kernel's number for it.
    moving: Option<(u32, Vec<u8>)>,
}

impl Batch {
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    pub fn created(&mut self, path: Vec<u8>) {
        // A name that is found while it is announced.
        if self.last.get(&path) != Some(&ChangeKind::Created) {
            self.push(ChangeKind::Created, path, Vec::new());
        }
    }

    pub fn modified(&mut self, path: Vec<u8>) {
        if !matches!(self.last.get(&path), Some(ChangeKind::Created | ChangeKind::Modified)) {
            self.push(ChangeKind::Modified, path, Vec::new());
        }
    }

    pub fn removed(&mut self, path: Vec<u8>) {
        self.push(ChangeKind::Removed, path, Vec::new());
    }

    pub fn overflow(&mut self) {
        self.push(ChangeKind::Overflow, Vec::new(), Vec::new());
    }

    /// The first half of a move; without its second half it is a removal.
    pub fn moved_from(&mut self, cookie: u32, path: Vec<u8>) {
        self.settle();
        self.moving = Some((cookie, path));
    }

    /// The second half of a move; gives the old name when that was told. A file that got its first name just now, as
    /// one that is written beside another does, was created with its second: nobody has heard of the first.
    pub fn moved_to(&mut self, cookie: u32, path: Vec<u8>, is_directory: bool) -> Option<Vec<u8>> {
        match self.moving.take_if(|(number, _)| *number == cookie) {
            Some((_, from)) if !is_directory && self.last.get(&from) == Some(&ChangeKind::Created) => {
                self.last.remove(&from);
                self.changes.retain(|it| it.kind != ChangeKind::Created || it.path != from);
                self.created(path);
                Some(from)
            }
            Some((_, from)) => {
                self.last.remove(&path);
                self.changes.push(Change { kind: ChangeKind::Renamed, path: from.clone(), renamed_to: path });
                Some(from)
            }
            None => {
                self.created(path);
                None
            }
        }
    }

    /// What was moved out of sight, if that is what the open half of a move turns out to be.
    pub fn settle(&mut self) -> Option<Vec<u8>> {
        let (_, path) = self.moving.take()?;
        self.removed(path.clone());
        Some(path)
    }

    pub fn into_changes(mut self) -> Vec<Change> {
        self.settle();
        self.changes
    }

    fn push(&mut self, kind: ChangeKind, path: Vec<u8>, renamed_to: Vec<u8>) {
        self.last.insert(path.clone(), kind);
        self.changes.push(Change { kind, path, renamed_to });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(batch: Batch) -> Vec<(ChangeKind, Vec<u8>, Vec<u8>)> {
        batch.into_changes().into_iter().map(|it| (it.kind, it.path, it.renamed_to)).collect()
    }

    #[test]
    fn what_is_written_many_times_is_said_once() {
        let mut batch = Batch::default();
        for _ in 0..5 {
            batch.modified(b"/a".to_vec());
        }
        batch.created(b"/b".to_vec());
        batch.modified(b"/b".to_vec());
        batch.removed(b"/a".to_vec());
        batch.created(b"/a".to_vec());
        let kinds: Vec<ChangeKind> = said(batch).into_iter().map(|(kind, _, _)| kind).collect();
        assert_eq!(kinds, [ChangeKind::Modified, ChangeKind::Created, ChangeKind::Removed, ChangeKind::Created]);
    }

    #[test]
    fn halves_of_a_move_find_each_other() {
        let mut batch = Batch::default();
        batch.moved_from(1, b"/a".to_vec());
        assert_eq!(batch.moved_to(1, b"/b".to_vec(), false), Some(b"/a".to_vec()));
        batch.moved_from(2, b"/c".to_vec());
        assert_eq!(batch.moved_to(3, b"/d".to_vec(), false), None);
        batch.created(b"/tmp".to_vec());
        batch.moved_from(4, b"/tmp".to_vec());
        batch.moved_to(4, b"/e".to_vec(), false);
        let changes = said(batch);
        assert_eq!(changes.len(), 4);
        assert_eq!(changes[3], (ChangeKind::Created, b"/e".to_vec(), vec![]));
        assert_eq!(changes[0], (ChangeKind::Renamed, b"/a".to_vec(), b"/b".to_vec()));
        assert_eq!(changes[1], (ChangeKind::Created, b"/d".to_vec(), vec![]));
        assert_eq!(changes[2], (ChangeKind::Removed, b"/c".to_vec(), vec![]));
    }
}
