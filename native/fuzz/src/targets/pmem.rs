//! The device of images in memory, which can only be asked to flush.

use super::memory_file;
use crate::guest::{Guest, LOW_BYTES};
use crate::script::Script;
use crate::story::{self, Direction, Subject};
use fluxvm_engine::memory::Image;
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::pmem::Pmem;

const IMAGE_BYTES: u64 = 2 << 20;

struct Memory {
    images: Vec<Image>,
}

impl Subject for Memory {
    fn device(&mut self) -> Box<dyn VirtioDevice> {
        Box::new(Pmem::new(&self.images[0]))
    }

    fn direction(&self, _: usize) -> Direction {
        Direction::Both
    }

    fn request(&mut self, _: usize, script: &mut Script<'_>) -> Vec<u8> {
        if script.one_in(4) { script.bytes(12) } else { vec![0; 4] }
    }

    fn check(&mut self, guest: &mut Guest) {
        let (flush, answer) = (guest.give(&[0; 4]), guest.room(4));
        assert_eq!(guest.request(0, &[flush, answer]), 4);
        assert_eq!(guest.bytes(answer), [0; 4], "a flush was refused");
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let images = Image::map_all(&[memory_file(IMAGE_BYTES)], LOW_BYTES).expect("an image");
    story::tell(input, &mut Memory { images });
}
