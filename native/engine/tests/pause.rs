//! A pause of the engine's machine: guests that count, that sleep and that have a second vCPU stop and go on, a guest learns of
//! it, and its memory can be replaced meanwhile.

#[allow(dead_code, reason = "each test uses a part of the harness")]
mod guest;

use fluxvm_engine::memory::Mapping;
use guest::{COUNTER, Guest, SECOND_COUNTER, can_run, copy, ram_file};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use vm_memory::{Bytes, GuestAddress};

/// What the guest prints when it changes.
const LETTER: u64 = 0x5_0020;

#[test]
fn a_pause_stops_guests_that_count_and_guests_that_sleep() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::new('c', 1, vec![]);
    guest.machine.start().unwrap();
    for _ in 0..20 {
        guest.wait_beyond(COUNTER, guest.word(COUNTER));
        guest.machine.pause().unwrap();
        let count = guest.word(COUNTER);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(guest.word(COUNTER), count);
        guest.machine.resume().unwrap();
    }
    let mut guest = Guest::new('i', 4, vec![]);
    guest.machine.start().unwrap();
    for _ in 0..20 {
        guest.machine.pause().unwrap();
        guest.machine.resume().unwrap();
    }
    guest.machine.stop();
}

#[test]
fn a_second_vcpu_is_started_by_the_first_and_both_pause() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::new('s', 2, vec![]);
    guest.machine.start().unwrap();
    guest.wait_printed("2");
    for _ in 0..10 {
        let (first, second) = (guest.word(COUNTER), guest.word(SECOND_COUNTER));
        guest.wait_beyond(COUNTER, first);
        guest.wait_beyond(SECOND_COUNTER, second);
        guest.machine.pause().unwrap();
        let counts = (guest.word(COUNTER), guest.word(SECOND_COUNTER));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!((guest.word(COUNTER), guest.word(SECOND_COUNTER)), counts);
        guest.machine.resume().unwrap();
    }
}

#[test]
fn memory_is_replaced_under_a_paused_guest_in_place() {
    if !can_run() {
        return;
    }
    let file = ram_file();
    let mut guest = Guest::with_ram('m', 1, vec![], file.try_clone().unwrap());
    file.write_all_at(b"a", LETTER).unwrap();
    guest.machine.start().unwrap();
    guest.wait_printed("a");
    guest.machine.pause().unwrap();
    guest.machine.ram().replace(&file, Mapping::Private).unwrap();
    guest.machine.resume().unwrap();
    // A page that is still the file's shows what is written there; the guest never wrote to this one.
    file.write_all_at(b"b", LETTER).unwrap();
    guest.wait_printed("ab");
    guest.machine.pause().unwrap();
    let other = copy(&file);
    other.write_all_at(b"c", LETTER).unwrap();
    guest.machine.ram().replace(&other, Mapping::Private).unwrap();
    guest.machine.resume().unwrap();
    guest.wait_printed("abc");
}

/// Of a clock of KVM's in the guest's memory: that its vCPU was stopped.
const CLOCK_FLAGS: u64 = 0x5_0040 + 29;
const CLOCK_STOPPED: u8 = 2;

#[test]
fn a_guest_that_has_a_clock_of_kvm_learns_that_it_was_paused() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::new('k', 1, vec![]);
    guest.machine.start().unwrap();
    guest.wait_beyond(COUNTER, 0);
    let flags = |guest: &Guest| guest.machine.ram().memory().read_obj::<u8>(GuestAddress(CLOCK_FLAGS)).unwrap();
    assert_eq!(flags(&guest) & CLOCK_STOPPED, 0);
    guest.machine.pause().unwrap();
    assert_eq!(flags(&guest) & CLOCK_STOPPED, 0);
    guest.machine.resume().unwrap();
    guest.wait_beyond(COUNTER, guest.word(COUNTER));
    assert_eq!(flags(&guest) & CLOCK_STOPPED, CLOCK_STOPPED);
}
