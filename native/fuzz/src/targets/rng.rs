//! The source of randomness.

use crate::guest::Guest;
use crate::script::Script;
use crate::story::{self, Direction, Subject};
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::limiter::{Limits, Rate};
use fluxvm_engine::virtio::rng::Rng;

struct Source {
    limits: Limits,
}

impl Subject for Source {
    fn device(&mut self) -> Box<dyn VirtioDevice> {
        Box::new(Rng::new(self.limits).expect("a source"))
    }

    fn direction(&self, _: usize) -> Direction {
        Direction::ToGuest
    }

    fn request(&mut self, _: usize, _: &mut Script<'_>) -> Vec<u8> {
        Vec::new()
    }

    fn check(&mut self, guest: &mut Guest) {
        let room = guest.room(16);
        assert_eq!(guest.request(0, &[room]), 16);
    }
}

/// Runs one input: its first byte says how much the guest may draw.
pub fn run(input: &[u8]) {
    let Some((first, story)) = input.split_first() else { return };
    let limited = Limits { bytes: Some(Rate { per_second: 1 << 24, burst: 4096 }), operations: None };
    let limits = if first & 1 == 0 { Limits::default() } else { limited };
    story::tell(story, &mut Source { limits });
}
