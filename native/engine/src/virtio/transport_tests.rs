//! The transport as a driver sees it: the way up, hostile registers, rings of every kind, interrupts, state.

use super::testing::{Dice, EVENT_INDEX, Echo, PLAIN, Piece, TestGuest, rounds, torment};
use super::{
    DeviceContext, DeviceError, DeviceKind, EventHandler, FEATURE_EVENT_INDEX, FEATURE_VERSION_1, GuestRam, Interest,
    QUEUE_NOTIFY, Reactor, StateError, StateReader, StateWriter, VirtioDevice, VirtioMmio,
};
use rustix::event::EventfdFlags;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

fn echo() -> Box<Echo> {
    Box::new(Echo::new())
}

#[test]
fn a_driver_recognises_the_device() {
    let guest = TestGuest::new(echo());
    assert_eq!(guest.get(0x00), u32::from_le_bytes(*b"virt"));
    assert_eq!(guest.get(0x04), 2);
    assert_eq!(guest.get(0x08), DeviceKind::Entropy as u32);
    assert_eq!(guest.offered() & 0b111, 0b101);
    assert_ne!(guest.offered() & FEATURE_VERSION_1, 0);
    assert_eq!(guest.get(0xB0), u32::MAX, "no shared memory");
    assert_eq!(guest.config::<3>(5), [5, 6, 7]);
    guest.set(0x14, 2);
    assert_eq!(guest.get(0x10), 0, "there are two halves of features");
}

#[test]
fn features_must_be_offered_modern_and_make_sense_together() {
    let guest = TestGuest::new(echo());
    for (features, accepted) in [
        (FEATURE_VERSION_1, true),
        (FEATURE_VERSION_1 | 0b101, true),
        (FEATURE_VERSION_1 | 0b100, false),
        (FEATURE_VERSION_1 | 0b010, false),
        (0b1, false),
        (FEATURE_VERSION_1 | 1 << 63, false),
    ] {
        guest.set(0x70, 0);
        guest.set(0x70, 3);
        guest.choose(features);
        guest.set(0x70, 0xB);
        assert_eq!(guest.status() & 8 != 0, accepted, "{features:#x}");
    }
}

#[test]
fn features_are_chosen_before_and_queues_after_the_agreement() {
    let mut guest = TestGuest::new(echo());
    guest.set(0x70, 3);
    guest.set(0x30, 0);
    guest.set(0x44, 1);
    assert_eq!(guest.get(0x44), 0, "a queue before the features");
    guest.choose(FEATURE_VERSION_1);
    guest.set(0x70, 0xB);
    guest.choose(0);
    guest.set_up_queue(0, 16);
    guest.set(0x70, 0xF);
    guest.set(0x44, 0);
    assert_eq!(guest.get(0x44), 1, "the queue of a running device is fixed");
    let (data, room) = (guest.give(b"hello"), guest.room(5));
    assert_eq!(guest.request(0, &[data, room]), 5, "the features were not taken back");
}

#[test]
fn a_queue_that_is_not_in_memory_never_gets_ready() {
    let guest = TestGuest::new(echo());
    guest.set(0x70, 3);
    guest.choose(FEATURE_VERSION_1);
    guest.set(0x70, 0xB);
    let good = [(0x80, 0x1000), (0x90, 0x2000), (0xA0, 0x3000)];
    for bad in [(0x80, 0xFFFF_FFF0_u64), (0x90, u64::MAX - 1), (0xA0, 0x200_0000 - 4), (0x90, 0)] {
        for (register, address) in good.into_iter().chain([bad]) {
            guest.set(register, address as u32);
            guest.set(register + 4, (address >> 32) as u32);
        }
        guest.set(0x44, 1);
        assert_eq!(guest.get(0x44), 0, "{bad:x?}");
    }
    guest.set(0x30, 2);
    assert_eq!(guest.get(0x34), 0, "there is no third queue");
    guest.set(0x44, 1);
    assert_eq!(guest.get(0x44), 0);
}

#[test]
fn a_device_that_cannot_start_says_so_and_a_reset_helps() {
    let mut device = echo();
    device.fails_to_start = true;
    let mut guest = TestGuest::running(device);
    assert_eq!(guest.wait_broken(), "driver: not today");
    assert_eq!(guest.get(0x60), 2, "the guest is told");
    guest.set(0x70, 0);
    assert_eq!((guest.status(), guest.get(0x60), guest.mmio.fault()), (0, 0, None));
}

#[test]
fn requests_come_back_in_rings_of_every_kind() {
    for features in [PLAIN, EVENT_INDEX, u64::MAX] {
        let mut guest = TestGuest::running_with(echo(), features);
        for round in 0..100_u32 {
            let text = round.to_le_bytes();
            let (data, more) = (guest.give(&text[..1]), guest.give(&text[1..]));
            let (room, rest) = (guest.room(3), guest.room(9));
            let pieces = [data, more, room, rest];
            let queue = round as usize % 2;
            let head = if round % 3 == 0 { guest.push_indirect(queue, &pieces) } else { guest.push(queue, &pieces) };
            guest.kick(queue);
            assert_eq!(guest.wait_used(queue), (head, 4));
            assert_eq!(guest.bytes(room), text[..3]);
            assert_eq!(guest.bytes(rest)[0], text[3]);
        }
    }
}

#[test]
fn many_requests_make_one_interrupt_with_the_event_index() {
    let mut guest = TestGuest::running_with(echo(), EVENT_INDEX);
    guest.quiesce();
    let data = guest.give(b"x");
    for _ in 0..12 {
        guest.push(0, &[data]);
    }
    guest.reactor.resume();
    for _ in 0..12 {
        guest.wait_used(0);
    }
    // One for going on, one for the requests.
    guest.until("the interrupts", |guest| guest.get(0x60) == 1);
    assert!(guest.interrupts() <= 3, "an interrupt for each request");
    guest.set(0x64, 1);
    assert_eq!(guest.get(0x60), 0);
}

#[test]
fn a_driver_that_wants_no_interrupt_gets_none() {
    let mut guest = TestGuest::running_with(echo(), PLAIN);
    let available = guest.queues[0].available;
    guest.memory.write_obj(1_u16, GuestAddress(available)).expect("a ring");
    let data = guest.give(b"x");
    guest.request(0, &[data]);
    // The call that gave the buffer back has ended when a second one is through.
    guest.memory.write_obj(0_u16, GuestAddress(available)).expect("a ring");
    guest.request(0, &[data]);
    guest.until("an interrupt", |guest| guest.get(0x60) == 1);
    assert_eq!(guest.interrupts(), 1);
}

#[test]
fn a_full_ring_of_requests_that_never_ends_does_not_keep_the_reactor_from_standing_still() {
    let mut guest = TestGuest::running_with(echo(), PLAIN);
    let data = guest.give(b"x");
    for _ in 0..16 {
        guest.push(0, &[data]);
    }
    let memory = guest.memory.clone();
    let available = guest.queues[0].available;
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = done.clone();
    // A guest that makes more available while the device works, as another CPU would.
    let flood = std::thread::spawn(move || {
        let mut index = 16_u16;
        while !seen.load(std::sync::atomic::Ordering::Relaxed) {
            let used: u16 = memory.read_obj(GuestAddress(available + 0x4000 + 2)).expect("a ring");
            if index.wrapping_sub(used) < 16 {
                index = index.wrapping_add(1);
                memory.store(index, GuestAddress(available + 2), std::sync::atomic::Ordering::Release).expect("a ring");
            }
        }
    });
    guest.kick(0);
    for _ in 0..5 {
        guest.quiesce();
        guest.reactor.resume();
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    flood.join().expect("the flood ends");
}

#[test]
fn broken_chains_stop_the_device_and_a_reset_starts_it_again() {
    let nowhere = Piece { address: 0x200_0000 - 4, bytes: 8, writable: false };
    let far = Piece { address: u64::MAX - 3, bytes: 8, writable: false };
    let mut guest = TestGuest::running(echo());
    let written = Piece { writable: true, ..guest.give(b"abc") };
    let read = guest.give(b"abc");
    for pieces in [vec![nowhere], vec![far], vec![written, read]] {
        guest.push(0, &pieces);
        guest.kick(0);
        guest.wait_broken();
        guest.start(u64::MAX);
    }
    assert_eq!(guest.request(0, &[read, written]), 3);
}

#[test]
fn endless_chains_are_found() {
    let mut guest = TestGuest::running(echo());
    let table = guest.queues[0].descriptors;
    let data = guest.allocate(16);
    // 0 → 1 → 0, then one that goes on outside the queue, then one that names itself.
    for (first, second) in [((1, 1), (1, 0)), ((1, 16), (0, 0)), ((1, 0), (0, 0))] {
        guest.describe(table, 0, data, 4, first.0, first.1);
        guest.describe(table, 1, data, 4, second.0, second.1);
        guest.offer(0, 0);
        guest.kick(0);
        assert_eq!(guest.wait_broken(), "a chain of descriptors is broken");
        guest.start(u64::MAX);
    }
}

#[test]
fn hostile_tables_of_descriptors_are_refused() {
    let mut guest = TestGuest::running(echo());
    let queue = guest.queues[0].descriptors;
    let table = guest.allocate(1 << 20);
    let data = guest.allocate(16);
    let set = |guest: &TestGuest, bytes: u32, flags: u16| guest.describe(queue, 0, table, bytes, flags, 0);
    type Arrange<'a> = &'a dyn Fn(&TestGuest);
    let cases: [(&str, Arrange<'_>); 5] = [
        ("a table in a table", &|guest| {
            set(guest, 16, 4);
            guest.describe(table, 0, table, 16, 4, 0);
        }),
        ("not whole entries", &|guest| set(guest, 17, 4)),
        ("an empty table", &|guest| set(guest, 0, 4)),
        ("a table that names itself", &|guest| {
            set(guest, 32, 4);
            guest.describe(table, 0, data, 1, 1, 0);
        }),
        ("too many", &|guest| {
            set(guest, 2000 * 16, 4);
            (0..2000).for_each(|index| guest.describe(table, index, data, 1, 1, index + 1));
        }),
    ];
    for (what, arrange) in cases {
        arrange(&guest);
        guest.offer(0, 0);
        guest.kick(0);
        assert_eq!(guest.wait_broken(), "a chain of descriptors is broken", "{what}");
        guest.start(u64::MAX);
    }
}

#[test]
fn a_ring_that_jumps_ahead_stops_the_device() {
    let mut guest = TestGuest::running(echo());
    let available = guest.queues[0].available;
    guest.memory.write_obj(17_u16, GuestAddress(available + 2)).expect("a ring");
    guest.kick(0);
    assert_eq!(guest.wait_broken(), "the queue makes no sense");
}

#[test]
fn the_state_goes_to_a_device_that_was_made_alike_and_nothing_is_lost() {
    let mut guest = TestGuest::running(echo());
    for _ in 0..5 {
        let data = guest.give(b"before");
        guest.request(0, &[data]);
    }
    guest.quiesce();
    // Made available and notified while everything stands still: the new device must find it by itself.
    let (data, room) = (guest.give(b"in between"), guest.room(10));
    let head = guest.push(0, &[data, room]);
    let mut guest = guest.restored(echo());
    assert_eq!(guest.wait_used(0), (head, 10));
    assert_eq!(guest.bytes(room), b"in between");
    guest.until("an interrupt", |guest| guest.get(0x60) & 1 == 1);
    assert_eq!(guest.request(0, &[data, room]), 10);
}

#[test]
fn a_guest_that_was_put_back_is_interrupted_though_nothing_waits() {
    let mut guest = TestGuest::running(echo());
    let data = guest.give(b"x");
    // An interrupt that the guest had not taken yet is lost with its machine.
    guest.request(0, &[data]);
    let mut guest = guest.restored(echo());
    guest.until("an interrupt", |guest| guest.interrupts() > 0);
    assert_eq!(guest.get(0x60) & 1, 1);
}

#[test]
fn nothing_new_begins_when_everything_comes_to_rest() {
    let mut guest = TestGuest::running(echo());
    let data = guest.give(b"x");
    guest.request(0, &[data]);
    // Made available and not yet notified, as by a CPU that was stopped in between.
    for queue in 0..2 {
        guest.push(queue, &[data]);
    }
    guest.quiesce();
    assert_eq!((guest.used(0), guest.used(1)), (None, None));
    guest.reactor.resume();
    guest.wait_used(0);
    guest.wait_used(1);
}

#[test]
fn a_device_goes_back_to_its_own_earlier_state() {
    let mut guest = TestGuest::running(echo());
    guest.quiesce();
    let early = guest.mmio.save();
    guest.reactor.resume();
    guest.set(0x70, 0);
    guest.quiesce();
    let reset = guest.mmio.save();
    assert_eq!(guest.mmio.load(&early), Ok(()));
    guest.reactor.resume();
    let data = guest.give(b"x");
    guest.request(0, &[data]);
    guest.quiesce();
    assert_eq!(guest.mmio.load(&reset), Ok(()));
    assert_eq!(guest.status(), 0);
}

#[test]
fn no_state_from_outside_does_harm() {
    let guest = TestGuest::running(echo());
    guest.quiesce();
    let good = guest.mmio.save();
    assert_eq!(guest.mmio.load(&good[..good.len() - 1]), Err(StateError::Short));
    assert_eq!(guest.mmio.load(&[&good[..], &[0]].concat()), Err(StateError::Long));
    let mut dice = Dice::new(1);
    for _ in 0..rounds(2000) {
        let mut bytes = good.clone();
        for _ in 0..=dice.below(4) {
            let place = dice.below(bytes.len() as u64) as usize;
            bytes[place] = dice.next() as u8;
        }
        bytes.truncate(bytes.len() - if dice.one_in(4) { dice.below(bytes.len() as u64) as usize } else { 0 });
        // Some of these are states that could be; the device must then still run.
        if guest.mmio.load(&bytes).is_ok() {
            guest.reactor.resume();
            guest.quiesce();
        }
    }
    assert_eq!(guest.mmio.load(&good), Ok(()));
}

#[test]
fn a_hostile_driver_gets_nowhere() {
    for seed in 1..=4 {
        let mut guest = TestGuest::running(echo());
        torment(&mut guest, seed, rounds(1500));
        let (data, room) = (guest.give(b"honest"), guest.room(6));
        assert_eq!(guest.request(0, &[data, room]), 6);
    }
}

#[test]
fn the_event_index_is_a_wish_of_the_driver() {
    assert_eq!(TestGuest::running_with(echo(), PLAIN).status(), 0xF);
    let guest = TestGuest::new(echo());
    assert_ne!(guest.offered() & FEATURE_EVENT_INDEX, 0);
}

/// A device that watches something that is always ready, and finds fault with its driver: with each request, or when it
/// is to come to rest.
struct Restless {
    event: EventFd,
    at_rest_only: bool,
}

impl VirtioDevice for Restless {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Entropy
    }

    fn queue_sizes(&self) -> &[u16] {
        &[8]
    }

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, _: u64, _: &mut [u8]) {}

    fn activate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(context.events.watch(&self.event, 0, Interest::READ)?)
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        context.events.unwatch(&self.event).expect("it was watched");
    }

    fn process_queue(&mut self, _: &mut DeviceContext<'_>, _: usize) -> Result<(), DeviceError> {
        if self.at_rest_only { Ok(()) } else { Err(DeviceError::Driver("never right")) }
    }

    fn quiesce(&mut self, _: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Err(DeviceError::Driver("never at rest"))
    }

    fn save(&self, _: &mut StateWriter) {}

    fn load(&mut self, _: &mut StateReader<'_>) -> Result<(), StateError> {
        Ok(())
    }
}

/// Its transport, started by a driver.
fn restless(reactor: &Reactor, at_rest_only: bool) -> Arc<VirtioMmio> {
    let event = || EventFd::new(EventfdFlags::NONBLOCK.bits() as i32).expect("an event");
    let device = Restless { event: event(), at_rest_only };
    device.event.write(1).expect("ready");
    let memory = Arc::new(GuestRam::from_ranges(&[(GuestAddress(0), 4096)]).expect("memory"));
    let mmio = VirtioMmio::new(reactor, memory, Box::new(device), event()).expect("a transport");
    for (offset, value) in [(0x70, 3_u32), (0x24, 1), (0x20, 1), (0x70, 0xB), (0x70, 0xF)] {
        mmio.write(offset, &value.to_le_bytes());
    }
    assert!(mmio.fault().is_none());
    mmio
}

#[test]
fn a_device_that_broke_down_keeps_nobody_awake() {
    let reactor = Reactor::threadless().expect("a reactor");
    let mmio = restless(&reactor, false);
    assert_eq!(reactor.turn(0).expect("a turn"), 1);
    assert_eq!(reactor.turn(0).expect("a turn"), 1, "what is watched is always ready");
    mmio.write(QUEUE_NOTIFY, &0_u32.to_le_bytes());
    reactor.turn(0).expect("a turn");
    assert_eq!(mmio.fault().as_deref(), Some("driver: never right"));
    assert_eq!(reactor.turn(0).expect("a turn"), 0);
    mmio.write(0x70, &0_u32.to_le_bytes());
}

#[test]
fn a_driver_that_breaks_the_rules_does_not_keep_its_machine_from_resting() {
    let reactor = Reactor::threadless().expect("a reactor");
    let mmio = restless(&reactor, true);
    assert_eq!(EventHandler::quiesce(&*mmio), Ok(()));
    assert_eq!(mmio.fault().as_deref(), Some("driver: never at rest"));
    EventHandler::resume(&*mmio);
    assert_eq!(reactor.turn(0).expect("a turn"), 0);
}
