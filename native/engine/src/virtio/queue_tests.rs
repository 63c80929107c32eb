//! Queues without a device: counters that wrap, batches, pieces of chains, and when an interrupt is wanted.

use super::queue::{Queue, QueueError};
use super::testing::{Dice, rounds};
use super::{Buffer, Chain, FEATURE_EVENT_INDEX, GuestRam};
use std::sync::atomic::Ordering;
use virtio_queue::desc::split::Descriptor as SplitDescriptor;
use virtio_queue::{QueueOwnedT, QueueState};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

const SIZE: u16 = 8;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const BUFFER: u64 = 0x4000;

fn memory() -> GuestRam {
    GuestRam::from_ranges(&[(GuestAddress(0), 0x1_0000)]).expect("memory")
}

/// A queue that has gone so far, with features, and nothing in it.
fn queue(memory: &GuestRam, position: u16, features: u64) -> Queue {
    memory.write_obj(position, GuestAddress(AVAILABLE + 2)).expect("a ring");
    memory.write_obj(position, GuestAddress(USED + 2)).expect("a ring");
    let mut queue = queue_at(memory, position);
    queue.start(features);
    queue
}

/// The same, with whatever the driver has offered.
fn queue_at(memory: &GuestRam, position: u16) -> Queue {
    let state = QueueState {
        max_size: SIZE,
        size: SIZE,
        ready: true,
        event_idx_enabled: false,
        next_avail: position,
        next_used: position,
        desc_table: DESCRIPTORS,
        avail_ring: AVAILABLE,
        used_ring: USED,
    };
    let mut queue = Queue::from_state(state, memory).expect("a state that can be");
    queue.begin_turn();
    queue
}

fn describe(memory: &GuestRam, index: u16, bytes: u32, flags: u16, next: u16) {
    let entry = u128::from(BUFFER + u64::from(index) * 0x100)
        | u128::from(bytes) << 64
        | u128::from(flags) << 96
        | u128::from(next) << 112;
    memory.write_obj(entry, GuestAddress(DESCRIPTORS + u64::from(index) * 16)).expect("a table");
}

fn offer(memory: &GuestRam, position: u16, head: u16) {
    memory.write_obj(head, GuestAddress(AVAILABLE + 4 + u64::from(position % SIZE) * 2)).expect("a ring");
    memory.store(position.wrapping_add(1), GuestAddress(AVAILABLE + 2), Ordering::Release).expect("a ring");
}

fn used(memory: &GuestRam, position: u16) -> (u32, u32) {
    let entry: u64 = memory.read_obj(GuestAddress(USED + 4 + u64::from(position % SIZE) * 8)).expect("a ring");
    (entry as u32, (entry >> 32) as u32)
}

fn used_index(memory: &GuestRam) -> u16 {
    memory.load(GuestAddress(USED + 2), Ordering::Acquire).expect("a ring")
}

#[test]
fn counters_wrap() {
    let memory = memory();
    let mut queue = queue(&memory, u16::MAX - 2, FEATURE_EVENT_INDEX);
    let mut chain = Chain::default();
    describe(&memory, 3, 10, 2, 0);
    for step in 0..6_u16 {
        let position = (u16::MAX - 2).wrapping_add(step);
        offer(&memory, position, 3);
        assert_eq!(queue.pop(&memory, &mut chain), Ok(true));
        assert_eq!((chain.head(), chain.writable_bytes()), (3, 10));
        queue.add_used(&memory, 3, u32::from(step)).expect("given back");
        assert_eq!(used(&memory, position), (3, u32::from(step)));
        assert_eq!(used_index(&memory), position.wrapping_add(1));
        assert_eq!(queue.pop(&memory, &mut chain), Ok(false));
    }
}

#[test]
fn a_batch_is_seen_whole_also_across_the_end_of_the_ring() {
    let memory = memory();
    let mut queue = queue(&memory, 6, 0);
    queue.add_used_together(&memory, &[(1, 100), (2, 200), (3, 300)]).expect("given back");
    assert_eq!(used_index(&memory), 9);
    assert_eq!([used(&memory, 6), used(&memory, 7), used(&memory, 8)], [(1, 100), (2, 200), (3, 300)]);
    assert_eq!(queue.takes_interrupt(&memory), Ok(true));
    queue.add_used_together(&memory, &[]).expect("nothing");
    assert_eq!(queue.takes_interrupt(&memory), Ok(false));
    assert_eq!(queue.add_used_together(&memory, &[(1, 0), (SIZE, 0)]), Err(QueueError::Ring));
    assert_eq!(queue.add_used_together(&memory, &[(1, 0); SIZE as usize + 1]), Err(QueueError::Ring));
    assert_eq!(used_index(&memory), 9, "a batch that is refused shows nothing");
}

#[test]
fn an_interrupt_comes_when_the_index_that_the_driver_named_is_passed() {
    let memory = memory();
    let mut queue = queue(&memory, 0, FEATURE_EVENT_INDEX);
    let wish = GuestAddress(AVAILABLE + 4 + u64::from(SIZE) * 2);
    for (wanted, given, expected) in [(0_u16, 1, true), (3, 2, false), (3, 1, true), (3, 1, false), (9, 5, true)] {
        memory.write_obj(wanted, wish).expect("a ring");
        for _ in 0..given {
            queue.add_used(&memory, 0, 0).expect("given back");
        }
        assert_eq!(queue.takes_interrupt(&memory), Ok(expected), "wants {wanted}");
    }
    assert_eq!(queue.takes_interrupt(&memory), Ok(false), "nothing was given back");
}

#[test]
fn pieces_cover_exactly_what_is_asked_for() {
    let memory = memory();
    let mut queue = queue(&memory, 0, 0);
    let mut chain = Chain::default();
    for (index, bytes) in [(0, 5), (1, 7), (2, 0), (3, 9)] {
        describe(&memory, index, bytes, if index == 3 { 0 } else { 1 }, index + 1);
    }
    offer(&memory, 0, 0);
    assert_eq!(queue.pop(&memory, &mut chain), Ok(true));
    assert_eq!(chain.readable_bytes(), 21);
    let pieces = |skip, limit| -> Vec<(u64, u32)> {
        let relative = |buffer: Buffer| (buffer.address.0 - BUFFER, buffer.bytes);
        chain.readable().pieces(skip, limit).map(relative).collect()
    };
    assert_eq!(pieces(0, u64::MAX), [(0, 5), (0x100, 7), (0x300, 9)], "an empty buffer is none");
    assert_eq!(pieces(4, 2), [(4, 1), (0x100, 1)]);
    assert_eq!(pieces(5, 7), [(0x100, 7)]);
    assert_eq!(pieces(12, 1), [(0x300, 1)]);
    assert_eq!(pieces(20, 100), [(0x308, 1)]);
    assert_eq!(pieces(21, 100), []);
    assert_eq!(pieces(3, 0), []);
    assert_eq!(chain.read(&memory, 20, &mut [0; 2]), Err(QueueError::Buffer), "one byte too many");
    assert_eq!(chain.write(&memory, 0, &[1]), Err(QueueError::Buffer), "nothing is writable");
}

#[test]
fn what_was_put_back_comes_again_and_a_turn_ends() {
    let memory = memory();
    let mut queue = queue(&memory, 0, 0);
    let mut chain = Chain::default();
    describe(&memory, 0, 1, 0, 0);
    offer(&memory, 0, 0);
    assert_eq!(queue.is_empty(&memory), Ok(false));
    assert_eq!(queue.pop(&memory, &mut chain), Ok(true));
    assert_eq!(queue.is_empty(&memory), Ok(true));
    queue.unpop();
    assert_eq!(queue.pop(&memory, &mut chain), Ok(true));
    assert!(!queue.turn_is_over());
    queue.unpop();
    queue.end_turn();
    assert_eq!(queue.pop(&memory, &mut chain), Ok(false));
    assert!(queue.turn_is_over() && !queue.is_drained());
    queue.begin_turn();
    assert_eq!(queue.pop(&memory, &mut chain), Ok(true));
}

#[test]
fn chains_are_those_that_the_rings_of_the_library_know() {
    let memory = memory();
    let mut dice = Dice::new(12);
    let (mut chain, mut good) = (Chain::default(), 0);
    for _ in 0..rounds(20_000) {
        // Tables in the queue and behind it, of descriptors that often lead on.
        for index in 0..2 * u64::from(SIZE) {
            let flags = [0, 1, 1, 2, 3, 4, 5, 7][dice.below(8) as usize];
            let address = if dice.one_in(16) { dice.below(0x1_1000) } else { DESCRIPTORS + dice.below(16) * 16 };
            let bytes = [0, 1, 16, 64, 128, 130, 1 << 20, u32::MAX][dice.below(8) as usize];
            let entry = SplitDescriptor::new(address, bytes, flags, dice.below(10) as u16);
            memory.write_obj(entry, GuestAddress(DESCRIPTORS + index * 16)).expect("a table");
        }
        let head = dice.below(9) as u16;
        offer(&memory, 0, head);
        let mut queue = queue_at(&memory, 0);
        let mut ends = false;
        let mut expected = [Vec::new(), Vec::new()];
        let mut is_good = true;
        let mut rings = virtio_queue::Queue::try_from(queue.state()).expect("rings");
        for descriptor in rings.iter(&memory).expect("heads").next().expect("a chain") {
            ends = !descriptor.has_next();
            let (address, bytes) = (descriptor.addr(), descriptor.len());
            if bytes > 0 {
                is_good &= memory.get_slice(address, bytes as usize).is_ok();
                is_good &= descriptor.is_write_only() || expected[1].is_empty();
                expected[usize::from(descriptor.is_write_only())].push(Buffer { address, bytes });
            }
        }
        let popped = queue.pop(&memory, &mut chain);
        assert_eq!(popped.is_ok(), is_good && ends, "{popped:?}");
        if popped.is_ok() {
            good += 1;
            assert_eq!([chain.readable().to_vec(), chain.writable().to_vec()], expected);
            queue.take(&memory, head, &mut chain).expect("once more");
            assert_eq!([chain.readable().to_vec(), chain.writable().to_vec()], expected);
        }
    }
    assert!(good > 1000, "{good}");
    assert_eq!(Queue::new(SIZE).take(&memory, 0, &mut chain), Err(QueueError::Ring), "it was never set up");
}

#[test]
fn states_that_no_driver_could_have_made_are_refused() {
    let memory = memory();
    let good = queue(&memory, 5, 0).state();
    assert!(Queue::from_state(good, &memory).is_some());
    for wrong in [
        QueueState { size: 3, ..good },
        QueueState { size: 16, ..good },
        QueueState { desc_table: DESCRIPTORS + 1, ..good },
        QueueState { avail_ring: 0xFFFE, ..good },
        QueueState { avail_ring: 0, ..good },
        QueueState { used_ring: u64::MAX - 3, ..good },
    ] {
        assert!(Queue::from_state(wrong, &memory).is_none(), "{wrong:?}");
    }
}
