//! The balloon as its driver sees it, with memory whose pages are counted.

use super::{Balloon, BalloonControl, Statistics};
use crate::virtio::GuestRam;
use crate::virtio::testing::{Piece, TestGuest, rounds, torment};
use fluxvm_sys::guest_vm::Mapping;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use vm_memory::{Bytes, FileOffset, GuestAddress};

/// What the machine says it has; the memory of tests is smaller.
const MEMORY_BYTES: u64 = 256 << 20;
const REAL_BYTES: usize = 32 << 20;
const NO_STATISTICS: u64 = !(1 << 1);

fn balloon() -> (Box<Balloon>, BalloonControl) {
    let balloon = Balloon::new(MEMORY_BYTES, Mapping::Shared).expect("a device");
    let control = balloon.control();
    (Box::new(balloon), control)
}

/// A guest whose memory is a file, all of it written, and that file.
fn guest_in_file(features: u64) -> (TestGuest, BalloonControl, File) {
    let fd = rustix::fs::memfd_create("guest-ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    let file = File::from(fd);
    file.set_len(REAL_BYTES as u64).expect("its size");
    let place = Some(FileOffset::new(file.try_clone().expect("its twin"), 0));
    let memory = GuestRam::from_ranges_with_files([(GuestAddress(0), REAL_BYTES, place)]).expect("guest memory");
    memory.write_slice(&vec![0x5A; REAL_BYTES], GuestAddress(0)).expect("touched");
    let (device, control) = balloon();
    let mut guest = TestGuest::with_memory(Arc::new(memory), device);
    guest.start(features);
    (guest, control, file)
}

fn resident(file: &File) -> u64 {
    file.metadata().expect("its size").blocks() * 512
}

fn pages(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_le_bytes).collect()
}

#[test]
fn the_host_asks_and_the_guest_reads_how_much() {
    let (device, control) = balloon();
    let mut guest = TestGuest::running(device);
    control.set_target(100 << 20).expect("enough is left");
    guest.until("the interrupt", |guest| guest.get(0x60) == 2);
    assert_eq!(u32::from_le_bytes(guest.config(0)), 25600);
    assert_eq!(guest.get(0xFC), 1, "the generation tells of the change");
    guest.mmio.write(0x104, &1000_u32.to_le_bytes());
    assert_eq!(control.actual_bytes(), 1000 * 4096);
    guest.mmio.write(0x104, &u32::MAX.to_le_bytes());
    assert_eq!(control.actual_bytes(), MEMORY_BYTES, "no guest has more than all");
}

#[test]
fn the_guest_keeps_64_mib() {
    let (_, control) = balloon();
    assert!(control.set_target(MEMORY_BYTES - (64 << 20)).is_ok());
    for wanted in [MEMORY_BYTES - (64 << 20) + 1, MEMORY_BYTES, u64::MAX] {
        assert_eq!(control.set_target(wanted).expect_err("too much").wanted, wanted);
    }
    assert_eq!(control.target_bytes(), MEMORY_BYTES - (64 << 20), "a refusal changes nothing");
    let small = Balloon::new(32 << 20, Mapping::Shared).expect("a device").control();
    assert!(small.set_target(4096).is_err());
    assert!(small.set_target(0).is_ok());
}

#[test]
fn pages_that_the_guest_gives_go_back_to_the_host() {
    let (mut guest, _, file) = guest_in_file(u64::MAX);
    let before = resident(&file);
    // Backwards and twice, as a hostile guest might.
    let list = guest.give(&pages((4096..4096 + 512).rev().chain(4096..4100)));
    guest.request(0, &[list]);
    assert_eq!(before - resident(&file), 512 * 4096);
    let untouched: u8 = guest.memory.read_obj(GuestAddress(4096 * 4096 - 1)).expect("in memory");
    let taken: u8 = guest.memory.read_obj(GuestAddress(4096 * 4096)).expect("in memory");
    assert_eq!((untouched, taken), (0x5A, 0));
    guest.request(1, &[list]);
}

#[test]
fn a_layered_guest_falls_back_to_its_base_and_the_base_is_not_touched() {
    let (mut guest, control, file) = guest_in_file(u64::MAX);
    control.set_mapping(Mapping::Private);
    let before = resident(&file);
    let list = guest.give(&pages(4096..4096 + 512));
    guest.request(0, &[list]);
    assert_eq!(resident(&file), before, "a hole in a file that others use");
}

#[test]
fn page_numbers_outside_of_memory_do_nothing() {
    let (mut guest, _, file) = guest_in_file(u64::MAX);
    let before = resident(&file);
    let list = guest.give(&pages([u32::MAX, u32::MAX - 1, 8192, 1 << 20].into_iter()));
    guest.request(0, &[list]);
    assert_eq!(resident(&file), before);
    let torn = guest.give(&[1, 2, 3]);
    guest.push(0, &[torn]);
    guest.kick(0);
    guest.wait_broken();
}

#[test]
fn pages_that_the_guest_does_not_use_are_taken_whole() {
    for (features, queue) in [(u64::MAX, 3), (NO_STATISTICS, 2)] {
        let (mut guest, _, file) = guest_in_file(features);
        let before = resident(&file);
        let whole = Piece { address: 16 << 20, bytes: 2 << 20, writable: true };
        let torn = Piece { address: (20 << 20) + 100, bytes: 8192, writable: true };
        let less = Piece { address: (22 << 20) + 1, bytes: 4096, writable: true };
        assert_eq!(guest.request(queue, &[whole, torn, less]), 0);
        assert_eq!(before - resident(&file), (2 << 20) + 4096, "only pages that are reported whole");
    }
}

#[test]
fn statistics_come_when_they_are_asked_for() {
    let (device, control) = balloon();
    let mut guest = TestGuest::running(device);
    let entry = |tag: u16, value: u64| [&tag.to_le_bytes()[..], &value.to_le_bytes()].concat();
    let told = guest.give(&[entry(4, 1000), entry(5, 2000), entry(99, 1), entry(6, 1500)].concat());
    let head = guest.push(2, &[told]);
    guest.kick(2);
    guest.until("statistics", |_| control.statistics().free == Some(1000));
    let expected = Statistics { free: Some(1000), total: Some(2000), available: Some(1500), ..Statistics::default() };
    assert_eq!(control.statistics(), expected);
    assert!(guest.used(2).is_none(), "the buffer waits for the next question");
    control.ask_statistics();
    assert_eq!(guest.wait_used(2), (head, 0));
}

#[test]
fn it_goes_on_after_a_restore_with_what_it_had() {
    let (device, control) = balloon();
    let mut guest = TestGuest::running(device);
    control.set_target(10 << 20).expect("enough is left");
    let told = guest.give(&[0; 10]);
    let head = guest.push(2, &[told]);
    guest.kick(2);
    guest.until("the buffer is taken", |guest| {
        control.ask_statistics();
        guest.used(2).is_some()
    });
    let second = guest.push(2, &[told]);
    assert_ne!(head, second);
    guest.kick(2);
    guest.mmio.write(0x104, &77_u32.to_le_bytes());
    guest.quiesce();
    guest.reactor.resume();
    let (device, control) = balloon();
    let mut guest = guest.restored(device);
    assert_eq!((control.target_bytes(), control.actual_bytes()), (10 << 20, 77 * 4096));
    control.ask_statistics();
    assert_eq!(guest.wait_used(2), (second, 0));
}

#[test]
fn a_driver_that_gave_up_leaves_nothing_to_the_next_one_after_a_restore() {
    let mut guest = TestGuest::running(balloon().0);
    let buffer = guest.give(&[0; 10]);
    guest.push(2, &[buffer]);
    guest.kick(2);
    guest.quiesce();
    guest.reactor.resume();
    guest.set(0x70, 0x80);
    let (device, control) = balloon();
    let mut guest = guest.restored(device);
    guest.start(u64::MAX);
    control.ask_statistics();
    guest.request(2, &[buffer]);
    guest.quiesce();
    assert_eq!(guest.used(2), None, "a chain that this driver has not given");
}

#[test]
fn a_hostile_driver_gets_nowhere() {
    let (device, _) = balloon();
    let mut guest = TestGuest::running(device);
    torment(&mut guest, 31, rounds(1500));
    let list = guest.give(&pages(4096..4100));
    guest.request(0, &[list]);
}
