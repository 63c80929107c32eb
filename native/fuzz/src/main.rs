//! The driver that is guided by coverage: runs the target that FLUXVM_FUZZ_TARGET names. libFuzzer reads the arguments.

#![no_main]

use fluxvm_fuzz::guard::Guarded;
use fluxvm_fuzz::{Target, find};
use std::sync::LazyLock;

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("FLUXVM_FUZZ_TARGET").unwrap_or_default();
    find(&name).unwrap_or_else(|| panic!("there is no target {name:?}"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (TARGET.run)(input);
});
