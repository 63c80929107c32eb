//! The engine with a guest of our own on this host's KVM: power, interrupts, devices, pause, more vCPUs, memory in place.

#[allow(dead_code, reason = "each test uses a part of the harness")]
mod guest;

use fluxvm_engine::arch::layout;
use fluxvm_engine::error::Error;
use fluxvm_engine::machine::Lifecycle;
use fluxvm_engine::memory::Mapping;
use fluxvm_engine::vcpu::End;
use fluxvm_engine::virtio::limiter::Limits;
use fluxvm_engine::virtio::rng::Rng;
use fluxvm_engine::virtio::{
    DeviceContext, DeviceError, DeviceKind, QUEUE_NOTIFY, StateError, StateReader, StateWriter, VirtioDevice,
};
use guest::driver::{Driver, READ, WINDOW, WRITE};
use guest::{COUNTER, Guest, RAM_BYTES, SECOND_COUNTER, can_run, image, ram_file, wait};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use vm_memory::{Bytes, GuestAddress};

/// What the guest prints when it changes.
const LETTER: u64 = 0x5_0020;
/// Where the guest puts what it draws.
const DRAWN: u64 = 0x6_3000;

#[test]
fn a_guest_prints_and_turns_itself_off() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::new('h', 1, vec![]);
    assert_eq!(guest.machine.lifecycle(), Lifecycle::Created);
    guest.machine.start().unwrap();
    assert_eq!(guest.end(), End::PowerOff);
    assert_eq!(guest.printed(), "hi");
    guest.machine.stop();
    assert_eq!(guest.machine.lifecycle(), Lifecycle::Stopped);
    assert!(guest.machine.start().is_err());
}

#[test]
fn a_bz_image_is_entered_in_64_bit_mode() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::with_kernel(image::bz_image());
    guest.machine.start().unwrap();
    assert_eq!(guest.end(), End::PowerOff);
    assert_eq!(guest.printed(), "6");
}

#[test]
fn a_reset_and_a_crash_are_told_apart() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::new('r', 1, vec![]);
    guest.machine.start().unwrap();
    assert_eq!(guest.end(), End::Reset);
    let mut guest = Guest::new('f', 2, vec![]);
    guest.machine.start().unwrap();
    assert!(matches!(guest.end(), End::Crash(_)));
    guest.machine.stop();
}

#[test]
fn typed_input_interrupts_the_guest_which_echoes_it() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::new('e', 1, vec![]);
    guest.machine.start().unwrap();
    for (index, letter) in b"abcq".iter().enumerate() {
        // Input that comes before the guest listens waits for it.
        assert_eq!(guest.machine.serial().lock().unwrap().enqueue(&[*letter]).unwrap(), 1);
        guest.wait_printed(&"abcq"[..=index]);
    }
    assert_eq!(guest.end(), End::PowerOff);
}

#[test]
fn a_virtio_device_is_notified_by_an_event_and_interrupts_by_one() {
    if !can_run() {
        return;
    }
    let source = Rng::new(Limits::default()).unwrap();
    let mut guest = Guest::new('v', 1, vec![Box::new(source)]);
    guest.machine.start().unwrap();
    assert_eq!(guest.end(), End::PowerOff);
    assert_eq!(guest.printed(), "K");
    let drawn: [u64; 8] = guest.machine.ram().memory().read_obj(GuestAddress(DRAWN)).unwrap();
    assert_ne!(drawn, [0; 8]);
}

#[test]
fn the_power_button_reaches_a_guest_that_listens() {
    if !can_run() {
        return;
    }
    let mut guest = Guest::new('p', 1, vec![]);
    guest.machine.start().unwrap();
    guest.wait_printed("w");
    guest.machine.press_power().unwrap();
    assert_eq!(guest.end(), End::PowerOff);
    assert_eq!(guest.printed(), "wp");
}

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

#[test]
fn the_pins_of_the_local_controller_are_for_external_interrupts_and_those_that_cannot_be_masked() {
    const DELIVERY: u32 = 0x700;
    const EXTERNAL: u32 = 0x700;
    const NON_MASKABLE: u32 = 0x400;
    if !can_run() {
        return;
    }
    let mut driver = Driver::new(Box::new(Numbers(AtomicU32::new(0))), 1, ram_file());
    assert_eq!([0xFEE0_0350, 0xFEE0_0360].map(|pin| driver.run(READ, pin, 0) & DELIVERY), [EXTERNAL, NON_MASKABLE]);
}

/// A defect of the monitor: a device that panics when its driver looks at its configuration, or notifies it.
struct Defect;

impl VirtioDevice for Defect {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Entropy
    }

    fn queue_sizes(&self) -> &[u16] {
        &[8]
    }

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, _: u64, _: &mut [u8]) {
        panic!("on purpose");
    }

    fn activate(&mut self, _: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reset(&mut self, _: &mut DeviceContext<'_>) {}

    fn process_queue(&mut self, _: &mut DeviceContext<'_>, _: usize) -> Result<(), DeviceError> {
        panic!("on purpose");
    }

    fn save(&self, _: &mut StateWriter) {}

    fn load(&mut self, _: &mut StateReader<'_>) -> Result<(), StateError> {
        Ok(())
    }
}

#[test]
fn a_panic_of_the_monitor_is_the_end_of_its_machine_and_of_nothing_else() {
    if !can_run() {
        return;
    }
    let other = &mut Guest::new('c', 1, vec![]);
    other.machine.start().unwrap();
    for (register, said) in [(QUEUE_NOTIFY, "a device of the monitor panicked"), (0x100, "the monitor panicked")] {
        let mut driver = Driver::new(Box::new(Defect), 1, ram_file());
        driver.begin(if register == QUEUE_NOTIFY { WRITE } else { READ }, WINDOW + register as u32, 0);
        assert_eq!(driver.guest.end(), End::Crash(said.to_owned()));
        driver.guest.machine.stop();
        assert_eq!(driver.guest.machine.lifecycle(), Lifecycle::Stopped);
    }
    other.wait_beyond(COUNTER, other.word(COUNTER));
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

fn copy(file: &File) -> File {
    let (mut bytes, copy) = (vec![0; RAM_BYTES as usize], ram_file());
    file.read_exact_at(&mut bytes, 0).unwrap();
    copy.write_all_at(&bytes, 0).unwrap();
    copy
}
