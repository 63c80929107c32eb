//! The saved state of a machine: a guest goes on from it in place and in another machine, and one that is damaged harms nobody.

#[allow(dead_code, reason = "each test uses a part of the harness")]
mod guest;

use fluxvm_engine::arch::layout;
use fluxvm_engine::error::Error;
use fluxvm_engine::machine::Lifecycle;
use fluxvm_engine::memory::Mapping;
use fluxvm_engine::virtio::limiter::Limits;
use fluxvm_engine::virtio::rng::Rng;
use fluxvm_engine::virtio::{
    DeviceContext, DeviceError, DeviceKind, StateError, StateReader, StateWriter, VirtioDevice,
};
use guest::{COUNTER, Guest, SECOND_COUNTER, can_run, copy, ram_file, wait};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use vm_memory::Bytes;

#[test]
fn a_machine_goes_on_from_its_saved_state_in_place_and_in_a_new_one() {
    if !can_run() {
        return;
    }
    let file = ram_file();
    let source = || vec![Box::new(Rng::new(Limits::default()).unwrap()) as Box<dyn VirtioDevice>];
    let mut guest = Guest::with_ram('s', 2, source(), file.try_clone().unwrap());
    guest.machine.start().unwrap();
    guest.wait_printed("2");
    guest.wait_beyond(COUNTER, 100);
    assert!(matches!(guest.machine.save(), Err(Error::WrongState { .. })));
    guest.machine.pause().unwrap();
    let state = guest.machine.save().unwrap();
    let base = copy(&file);
    let counts = (guest.word(COUNTER), guest.word(SECOND_COUNTER));
    guest.machine.ram().replace(&base, Mapping::Private).unwrap();

    for _ in 0..3 {
        guest.machine.resume().unwrap();
        guest.wait_beyond(COUNTER, counts.0 + 1000);
        guest.wait_beyond(SECOND_COUNTER, counts.1 + 1000);
        guest.machine.pause().unwrap();
        guest.machine.ram().replace(&base, Mapping::Private).unwrap();
        guest.machine.load(&state).unwrap();
        assert_eq!((guest.word(COUNTER), guest.word(SECOND_COUNTER)), counts);
        assert_eq!(guest.machine.lifecycle(), Lifecycle::Paused);
    }
    guest.machine.stop();

    let mut other = Guest::with_ram('s', 2, source(), ram_file());
    other.machine.ram().replace(&base, Mapping::Private).unwrap();
    other.machine.load(&state).unwrap();
    other.machine.resume().unwrap();
    other.wait_beyond(COUNTER, counts.0);
    other.wait_beyond(SECOND_COUNTER, counts.1);
    assert_eq!(other.printed(), "", "it does not begin anew");
    let mut word = [0; 4];
    base.read_exact_at(&mut word, COUNTER).unwrap();
    assert_eq!(u32::from_le_bytes(word), counts.0, "the base is not written");
}

#[test]
fn each_load_makes_another_generation_and_tells_the_guest() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::new('g', 1, vec![]);
    let generation = |guest: &Guest| guest.machine.ram().memory().read_obj::<u128>(layout::GENERATION).unwrap();
    let mut seen = vec![generation(&guest)];
    guest.machine.start().unwrap();
    guest.wait_printed("w");
    guest.machine.pause().unwrap();
    assert_eq!(seen, [generation(&guest)]);
    let state = guest.machine.save().unwrap();
    for printed in ["wg", "wgg", "wggg"] {
        guest.machine.load(&state).unwrap();
        assert!(!seen.contains(&generation(&guest)));
        seen.push(generation(&guest));
        guest.machine.resume().unwrap();
        guest.wait_printed(printed);
        guest.machine.pause().unwrap();
    }
    let mut other = Guest::new('g', 1, vec![]);
    other.machine.load(&state).unwrap();
    assert!(!seen.contains(&generation(&other)));
}

/// A device whose configuration is a number that each look at it makes one more.
struct Numbers(AtomicU32);

impl VirtioDevice for Numbers {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Entropy
    }

    fn queue_sizes(&self) -> &[u16] {
        &[8]
    }

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, _: u64, data: &mut [u8]) {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        data.copy_from_slice(&number.to_le_bytes());
    }

    fn activate(&mut self, _: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reset(&mut self, _: &mut DeviceContext<'_>) {}

    fn process_queue(&mut self, _: &mut DeviceContext<'_>, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(self.0.load(Ordering::Relaxed));
    }

    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        *self.0.get_mut() = state.u32()?;
        Ok(())
    }
}

/// Where the guest notes a number that came, and that which should have.
const WRONG_NUMBER: u64 = 0x5_0024;
const RIGHT_NUMBER: u64 = 0x5_0028;

/// A pause often finds the vCPU in the middle of an access, also of one in a row that one instruction makes.
#[test]
fn no_access_is_lost_or_made_twice_by_a_pause_or_by_a_saved_state() {
    if !can_run() {
        return;
    }
    let device = || vec![Box::new(Numbers(AtomicU32::new(0))) as Box<dyn VirtioDevice>];
    let mut file = ram_file();
    let mut guest = Guest::with_ram('a', 1, device(), file.try_clone().unwrap());
    guest.machine.start().unwrap();
    for round in 0..120 {
        let counted = guest.word(COUNTER);
        wait(
            || guest.word(COUNTER) != counted || guest.word(RIGHT_NUMBER) != 0,
            || format!("the guest stays at {counted}"),
        );
        guest.machine.pause().unwrap();
        match round % 3 {
            0 => (),
            1 => guest.machine.load(&guest.machine.save().unwrap()).unwrap(),
            _ => {
                let state = guest.machine.save().unwrap();
                let next = copy(&file);
                let other = Guest::with_ram('a', 1, device(), ram_file());
                other.machine.ram().replace(&next, Mapping::Shared).unwrap();
                (guest, file) = (other, next);
                guest.machine.load(&state).unwrap();
            }
        }
        assert_eq!((guest.word(WRONG_NUMBER), guest.word(RIGHT_NUMBER)), (0, 0), "round {round}");
        guest.machine.resume().unwrap();
    }
}

/// The line of the interrupt, the way to it and the vector are set by the guest, in the controllers, before the state is saved.
#[test]
fn a_guest_in_a_new_machine_takes_the_interrupts_that_it_had_asked_for() {
    if !can_run() {
        return;
    }
    let file = ram_file();
    let mut guest = Guest::with_ram('g', 1, vec![], file.try_clone().unwrap());
    guest.machine.start().unwrap();
    guest.wait_printed("w");
    guest.machine.pause().unwrap();
    let state = guest.machine.save().unwrap();
    let mut other = Guest::with_ram('g', 1, vec![], ram_file());
    other.machine.ram().replace(&copy(&file), Mapping::Private).unwrap();
    other.machine.load(&state).unwrap();
    other.machine.resume().unwrap();
    other.wait_printed("g");
}

#[test]
fn as_many_vcpus_as_there_can_be_pause_and_go_on_from_a_state() {
    if !can_run() {
        return;
    }
    let file = ram_file();
    let mut guest = Guest::with_ram('s', layout::VCPUS_MAX, vec![], file.try_clone().unwrap());
    guest.machine.start().unwrap();
    guest.wait_printed("2");
    guest.machine.pause().unwrap();
    let (state, base) = (guest.machine.save().unwrap(), copy(&file));
    guest.machine.resume().unwrap();
    guest.wait_beyond(COUNTER, guest.word(COUNTER));
    guest.machine.pause().unwrap();
    guest.machine.ram().replace(&base, Mapping::Private).unwrap();
    guest.machine.load(&state).unwrap();
    let counts = (guest.word(COUNTER), guest.word(SECOND_COUNTER));
    guest.machine.resume().unwrap();
    guest.wait_beyond(COUNTER, counts.0);
    guest.wait_beyond(SECOND_COUNTER, counts.1);
}

#[test]
fn a_state_for_another_machine_or_a_damaged_one_is_refused() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::new('c', 1, vec![]);
    guest.machine.start().unwrap();
    guest.wait_beyond(COUNTER, 0);
    guest.machine.pause().unwrap();
    let state = guest.machine.save().unwrap();
    for length in (0..state.len()).step_by(97) {
        assert!(matches!(guest.machine.load(&state[..length]), Err(Error::SavedState(_))), "{length}");
    }
    let longer = [state.as_slice(), &[0]].concat();
    assert!(matches!(guest.machine.load(&longer), Err(Error::SavedState(_))));
    let mut other = Guest::new('c', 2, vec![]);
    assert!(matches!(other.machine.load(&state), Err(Error::SavedState(_))));
    other.machine.start().unwrap();
    other.wait_beyond(COUNTER, 0);
    guest.machine.load(&state).unwrap();
    guest.machine.resume().unwrap();
    guest.wait_beyond(COUNTER, guest.word(COUNTER));
}

/// A state that anyone may have written is refused or taken, by the machine or by KVM; the monitor goes on.
#[test]
fn a_state_with_wrong_values_harms_nobody() {
    if !can_run() {
        return;
    }
    let source = vec![Box::new(Rng::new(Limits::default()).unwrap()) as Box<dyn VirtioDevice>];
    let mut guest = Guest::new('s', 2, source);
    guest.machine.start().unwrap();
    guest.wait_printed("2");
    guest.machine.pause().unwrap();
    let state = guest.machine.save().unwrap();
    let mut number = 11u64;
    let mut below = |limit: usize| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) as usize % limit
    };
    for _ in 0..if std::env::var("FLUXVM_TEST_FULL").is_ok_and(|value| value == "1") { 50_000 } else { 500 } {
        let mut wrong = state.clone();
        for _ in 0..=below(4) {
            let index = below(wrong.len());
            wrong[index] ^= 1 << below(8);
        }
        let _ = guest.machine.load(&wrong);
    }
    guest.machine.load(&state).unwrap();
    guest.machine.resume().unwrap();
    guest.wait_beyond(COUNTER, guest.word(COUNTER));
    guest.wait_beyond(SECOND_COUNTER, guest.word(SECOND_COUNTER));
}
