//! The walk: a few threads that read directories, look at each entry and hash what is not known. It follows no
//! link, stays on the file system it started on, opens only regular files, and either sees everything or fails.

mod anchor;
mod enter;
mod look;

use super::WalkReport;
use super::cache::{Cache, Cursor, Learned};
use super::piece::{DirectoryId, Piece};
use crate::root::{CheckedPath, Root};
use anchor::Anchor;
use enter::Listed;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};
use wire::{ErrorCode, Fault};

const READ_BUFFER_SIZE: usize = 256 << 10;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub files_max: u64,
    pub listing_max: u64,
}

pub struct Walked {
    /// The starting points themselves; the content of each is the piece of the same index.
    pub starts: Vec<Piece>,
    /// By directory.
    pub pieces: Vec<Piece>,
    /// In small parts: one long list would be moved again and again while it grows.
    pub learned: Vec<Vec<Learned>>,
    pub generation: u32,
    pub report: WalkReport,
}

/// Walks every starting point. Faults as `Manifests::run` has them.
pub fn walk(
    root: &Root,
    starts: &[CheckedPath],
    cache: &Cache,
    limits: Limits,
    threads: usize,
    cancel: &AtomicBool,
) -> Result<Walked, Fault> {
    // Before the first file is looked at: a write during the walk leaves a timestamp that is not older than this.
    let taken_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as i128);
    let walk = Walk {
        anchors: starts.iter().map(|path| Anchor::open(root, path)).collect::<Result<_, _>>()?,
        cache,
        generation: cache.next_generation(),
        taken_ns,
        limits,
        cancel,
        files: AtomicU64::new(0),
        listing_bytes: AtomicU64::new(0),
        hashed_bytes: AtomicU64::new(0),
        state: Mutex::new(State::default()),
        changed: Condvar::new(),
    };
    for anchor in 0..walk.anchors.len() {
        let id = walk.new_directory();
        walk.lock().tasks.push(Task::Enter { id, anchor, path: Vec::new() });
    }
    let finds: Vec<Finds> = std::thread::scope(|scope| {
        // Fewer threads than wished for (a process limit, say) make the walk slower, not wrong.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, || walk.work()).ok();
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let own = walk.work();
        others.into_iter().map(|thread| thread.join().expect("a walker panicked")).chain([own]).collect()
    });
    walk.finish(finds)
}

enum Task {
    /// Read a directory, `path` relative to its anchor.
    Enter { id: DirectoryId, anchor: usize, path: Vec<u8> },
    /// Look at a part of a large directory's entries.
    Look(Arc<Listed>, std::ops::Range<usize>),
}

#[derive(Default)]
struct State {
    tasks: Vec<Task>,
    working: usize,
    directories: u32,
    failed: Option<Fault>,
}

/// What one thread has found.
#[derive(Default)]
struct Finds {
    pieces: Vec<(DirectoryId, Piece)>,
    learned: Vec<Vec<Learned>>,
    report: WalkReport,
}

/// A thread's own space.
struct Scratch {
    buffer: Vec<u8>,
    finds: Finds,
    /// From the task at hand.
    learned: Vec<Learned>,
    cursor: Cursor,
}

struct Walk<'a> {
    anchors: Vec<Anchor>,
    cache: &'a Cache,
    generation: u32,
    taken_ns: i128,
    limits: Limits,
    cancel: &'a AtomicBool,
    files: AtomicU64,
    listing_bytes: AtomicU64,
    hashed_bytes: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

impl Walk<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a walker panicked")
    }

    fn new_directory(&self) -> DirectoryId {
        let mut state = self.lock();
        state.directories += 1;
        state.directories - 1
    }

    /// One thread's part: tasks until there are none and nobody can make more.
    fn work(&self) -> Finds {
        let mut scratch = Scratch {
            buffer: vec![0; READ_BUFFER_SIZE],
            finds: Finds::default(),
            learned: Vec::new(),
            cursor: Cursor::default(),
        };
        while let Some(task) = self.next_task() {
            let mut turn = Turn { walk: self, done: Err(Fault::new(ErrorCode::Internal, "a walker panicked")) };
            turn.done = match task {
                _ if self.is_given_up() => Err(given_up()),
                Task::Enter { id, anchor, path } => self.enter(id, anchor, path, &mut scratch),
                Task::Look(listed, range) => self.look_at(&listed, range, &mut scratch),
            };
            if !scratch.learned.is_empty() {
                scratch.finds.learned.push(std::mem::take(&mut scratch.learned));
            }
        }
        scratch.finds
    }

    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(task) = state.tasks.pop() {
                state.working += 1;
                return Some(task);
            }
            if state.working == 0 {
                return None;
            }
            state = self.changed.wait(state).expect("a walker panicked");
        }
    }

    fn add_tasks(&self, tasks: impl IntoIterator<Item = Task>) {
        self.lock().tasks.extend(tasks);
        self.changed.notify_all();
    }

    fn is_given_up(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn finish(self, finds: Vec<Finds>) -> Result<Walked, Fault> {
        let state = self.state.into_inner().expect("a walker panicked");
        if let Some(fault) = state.failed {
            return Err(fault);
        }
        let mut walked = Walked {
            starts: self.anchors.iter().map(Anchor::piece).collect(),
            pieces: Vec::new(),
            learned: Vec::new(),
            generation: self.generation,
            report: WalkReport::default(),
        };
        walked.pieces.resize_with(state.directories as usize, Piece::default);
        for mut find in finds {
            for (directory, piece) in find.pieces {
                walked.pieces[directory as usize] = piece;
            }
            walked.learned.append(&mut find.learned);
            walked.report.hashed += find.report.hashed;
            walked.report.known += find.report.known;
        }
        Ok(walked)
    }
}

/// A thread's work on one task. However it ends, the others learn of it.
struct Turn<'a> {
    walk: &'a Walk<'a>,
    done: Result<(), Fault>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.walk.lock();
        state.working -= 1;
        if let Err(fault) = &self.done {
            state.failed.get_or_insert_with(|| fault.clone());
            state.tasks.clear();
        }
        if state.working == 0 && state.tasks.is_empty() {
            self.walk.changed.notify_all();
        }
    }
}

fn given_up() -> Fault {
    Fault::new(ErrorCode::Cancelled, "the walk was given up")
}
