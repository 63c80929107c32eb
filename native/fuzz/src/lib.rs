//! Fuzzing of the engine: each target takes bytes for a story that a hostile guest, image, state or client tells, and
//! panics when the engine does what it never may. `campaign` runs them guided by coverage, `tests/corpora.rs` replays what
//! was learned.

pub mod guard;
pub mod guest;
pub mod rings;
pub mod room;
pub mod script;
pub mod story;
pub mod targets;

/// One thing to be fuzzed.
pub struct Target {
    /// Its name, and the name of its corpus.
    pub name: &'static str,
    /// What the host must have for it; nothing is run where it is missing.
    pub missing: fn() -> Option<&'static str>,
    /// Runs one input on the calling thread, which is always the same for a target.
    pub run: fn(&[u8]),
}

/// The target of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    targets::ALL.iter().find(|target| target.name == name)
}
