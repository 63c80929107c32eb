//! The balloon: lists of pages, reports of free memory, statistics, and a host that changes its mind.

use crate::guest::{Guest, HEAP};
use crate::script::Script;
use crate::story::{self, Direction, Subject};
use fluxvm_engine::memory::Mapping;
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::balloon::{Balloon, BalloonControl};

/// What the balloon is told that the guest has.
const MEMORY_BYTES: u64 = 256 << 20;
const PAGE_BYTES: u64 = 4096;

struct Inflated {
    mapping: Mapping,
    control: Option<BalloonControl>,
}

impl Subject for Inflated {
    fn device(&mut self) -> Box<dyn VirtioDevice> {
        let balloon = Balloon::new(MEMORY_BYTES, self.mapping).expect("a balloon");
        self.control = Some(balloon.control());
        Box::new(balloon)
    }

    fn direction(&self, queue: usize) -> Direction {
        if queue == 3 { Direction::ToGuest } else { Direction::FromGuest }
    }

    fn request(&mut self, queue: usize, script: &mut Script<'_>) -> Vec<u8> {
        let count = script.below(12);
        if queue == 2 {
            let entry = |script: &mut Script<'_>| {
                let mut entry = (script.below(9) as u16).to_le_bytes().to_vec();
                entry.extend(script.number().to_le_bytes());
                entry
            };
            return (0..count).flat_map(|_| entry(script)).collect();
        }
        let page = |script: &mut Script<'_>| match script.u8() {
            0..=0xDF => (HEAP / PAGE_BYTES + script.below(256)) as u32,
            _ => script.number() as u32,
        };
        (0..count).flat_map(|_| page(script).to_le_bytes()).collect()
    }

    fn host(&mut self, script: &mut Script<'_>, guest: &mut Guest) {
        let control = self.control.as_ref().expect("a device was made");
        match script.below(4) {
            0 => drop(control.set_target(script.number().saturating_mul(PAGE_BYTES))),
            1 => control.ask_statistics(),
            2 => guest.mmio.write(0x104, &script.u32().to_le_bytes()),
            _ => {
                let _ = (control.target_bytes(), control.statistics());
                assert!(control.actual_bytes() <= MEMORY_BYTES, "a guest gave more than it has");
            }
        }
    }

    fn keeps_rings(&self) -> bool {
        false
    }

    fn check(&mut self, guest: &mut Guest) {
        let pages = guest.give(&((HEAP / PAGE_BYTES + 9) as u32).to_le_bytes());
        let at = HEAP + 9 * PAGE_BYTES;
        guest.write(at, &[7]);
        for queue in [0, 1] {
            assert_eq!(guest.request(queue, &[pages]), 0);
        }
        let page: u8 = vm_memory::Bytes::read_obj(&*guest.memory, vm_memory::GuestAddress(at)).expect("in memory");
        assert!(page == 0 || self.mapping == Mapping::Private, "the page was not given back");
    }
}

/// Runs one input: its first byte says how memory is mapped.
pub fn run(input: &[u8]) {
    let Some((first, story)) = input.split_first() else { return };
    let mapping = if first & 1 == 0 { Mapping::Shared } else { Mapping::Private };
    story::tell(story, &mut Inflated { mapping, control: None });
}
