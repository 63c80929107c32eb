//! Replays what campaigns have learned, with blind changes of it; when FLUXVM_TEST_FULL is 1, runs each
//! target for ten minutes, guided by coverage.

use fluxvm_fuzz::Target;
use fluxvm_fuzz::guard::Guarded;
use fluxvm_fuzz::targets::ALL;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

/// For one target: its corpus, and blind changes for what is left of it.
const SHORT: Duration = Duration::from_millis(1500);
const CAMPAIGN_SECONDS: &str = "600";
const INPUT_BYTES_MAX: usize = 512;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora")
}

/// The committed inputs of a target, always in the same order.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder().join(target.name)).expect("a corpus");
    let mut inputs: Vec<_> = files.map(|file| std::fs::read(file.expect("a file").path()).expect("an input")).collect();
    inputs.sort();
    inputs
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn bytes(&mut self, max: usize) -> Vec<u8> {
        (0..=self.below(max)).map(|_| self.below(256) as u8).collect()
    }
}

/// Another input: two of the corpus put together and changed in some places.
fn changed(corpus: &[Vec<u8>], numbers: &mut Numbers) -> Vec<u8> {
    let mut input = corpus[numbers.below(corpus.len())].clone();
    let other = &corpus[numbers.below(corpus.len())];
    let cut = numbers.below(input.len() + 1);
    input.splice(cut..cut, other.iter().copied());
    for _ in 0..numbers.below(6) {
        let place = numbers.below(input.len().max(1)).min(input.len());
        match numbers.below(3) {
            0 => drop(input.splice(place..place, numbers.bytes(8))),
            1 => drop(input.drain(place..(place + numbers.below(9)).min(input.len()))),
            _ => input.iter_mut().skip(place).take(1).for_each(|byte| *byte = numbers.below(256) as u8),
        }
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

/// Shows the input that a target broke at.
struct Told<'a>(&'a [u8]);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let bytes: String = self.0.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            eprintln!("the input was: printf '{bytes}'");
        }
    }
}

fn run(target: &Target, input: &[u8]) {
    let _told = Told(input);
    (target.run)(input);
}

fn replay(target: &Target) {
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    let end = Instant::now() + SHORT;
    for input in &corpus {
        run(target, input);
    }
    let mut numbers = Numbers(1);
    while Instant::now() < end {
        run(target, &changed(&corpus, &mut numbers));
    }
}

fn campaign(target: &Target) {
    let (script, started_in) = (folder().with_file_name("campaign"), tempfile::tempdir().expect("a folder"));
    let output = Command::new(script).args([target.name, CAMPAIGN_SECONDS]).current_dir(&started_in).output();
    let output = output.expect("a campaign");
    let text = String::from_utf8_lossy(&output.stderr);
    let end = text.floor_char_boundary(text.len().saturating_sub(4000));
    assert!(output.status.success(), "{}: {}", target.name, &text[end..]);
}

#[test]
fn no_target_breaks_on_what_was_learned_or_on_changes_of_it() {
    let is_long = std::env::var("FLUXVM_TEST_FULL").is_ok_and(|value| value == "1");
    for target in &ALL {
        if let Some(missing) = (target.missing)() {
            eprintln!("missing host capability for {}: {missing}", target.name);
            continue;
        }
        // A target keeps the thread that it began on: some make a network of their own for it.
        let replayed = std::thread::scope(|scope| scope.spawn(|| replay(target)).join());
        if let Err(panic) = replayed {
            std::panic::resume_unwind(panic);
        }
        if is_long {
            campaign(target);
        }
    }
}
