//! The engine with a guest of our own on this host's KVM: how it begins, power, interrupts, a device, and how it ends.

#[allow(dead_code, reason = "each test uses a part of the harness")]
mod guest;

use fluxvm_engine::machine::Lifecycle;
use fluxvm_engine::vcpu::End;
use fluxvm_engine::virtio::limiter::Limits;
use fluxvm_engine::virtio::rng::Rng;
use fluxvm_engine::virtio::{
    DeviceContext, DeviceError, DeviceKind, QUEUE_NOTIFY, StateError, StateReader, StateWriter, VirtioDevice,
};
use guest::driver::{Driver, READ, WINDOW, WRITE};
use guest::{COUNTER, Guest, can_run, image, ram_file};
use vm_memory::{Bytes, GuestAddress};

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
fn the_pins_of_the_local_controller_are_for_external_interrupts_and_those_that_cannot_be_masked() {
    const DELIVERY: u32 = 0x700;
    const EXTERNAL: u32 = 0x700;
    const NON_MASKABLE: u32 = 0x400;
    if !can_run() {
        return;
    }
    let mut driver = Driver::new(Box::new(Rng::new(Limits::default()).unwrap()), 1, ram_file());
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
