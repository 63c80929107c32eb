//! The registers of the transport: reads and writes of any width in any order, by a driver that often means well, with
//! rings wherever it says.

use super::queue::{Echo, check_echo};
use crate::guest::{Guest, HEAP, HIGH, HIGH_BYTES, LOW_BYTES, REGISTERS};
use crate::script::Script;

/// What a status is written as on the way to a running device, and what it never should be.
const STATUSES: [u32; 9] = [0, 1, 3, 0xB, 0xF, 0x4F, 0x80, 0x8F, 0x7];
const STEPS_MAX: u32 = 500;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut guest = Guest::new(Box::<Echo>::default());
    let mut script = Script::new(input);
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        guest.confuse();
        take_step(step, &mut script, &mut guest);
        guest.turn();
    }
    guest.settle();
    assert!(guest.start(u64::MAX, u16::MAX), "an honest driver was refused");
    check_echo(&mut guest);
}

fn take_step(step: u8, script: &mut Script<'_>, guest: &mut Guest) {
    match step % 16 {
        0..=3 => guest.set(script.choose(&REGISTERS), script.number() as u32),
        4 => guest.mmio.write(script.number(), &script.bytes(16)),
        5 => {
            let bytes = script.below(17) as usize;
            guest.mmio.read(script.number(), &mut vec![0xA5; bytes]);
        }
        6 | 7 => guest.set(0x70, script.choose(&STATUSES)),
        8 | 9 => set_up_queue(script, guest),
        10 => {
            guest.set(0x24, script.below(3) as u32);
            guest.set(0x20, if script.one_in(2) { 0b101 } else { script.u32() });
        }
        11 => {
            let place = address(script);
            let data = script.bytes(64);
            guest.scribble(place, &data);
        }
        12 => guest.kick(script.below(4) as u32),
        13 => {
            let state = guest.mmio.save();
            let mut damaged = state.clone();
            script.edit(&mut damaged, 3);
            guest.pause(|guest| {
                let _ = guest.mmio.load(&damaged);
            });
            guest.pause(|guest| guest.mmio.load(&state).expect("a state that was saved"));
        }
        14 => {
            guest.start(u64::MAX, 1 << script.below(7));
        }
        _ => guest.take_interrupt(),
    }
}

/// Where rings and what they hold may lie.
fn address(script: &mut Script<'_>) -> u64 {
    match script.u8() % 8 {
        0..=3 => script.below(HEAP),
        4 => LOW_BYTES.saturating_sub(script.below(0x800)),
        5 => HIGH + script.below(HIGH_BYTES),
        6 => u64::MAX - script.below(0x1000),
        _ => script.number(),
    }
}

/// The registers of one queue, with few mistakes.
fn set_up_queue(script: &mut Script<'_>, guest: &mut Guest) {
    guest.set(0x30, script.below(3) as u32);
    let size = if script.one_in(4) { script.number() as u32 } else { 1 << script.below(7) };
    guest.set(0x38, size);
    for (register, alignment) in [(0x80, 16), (0x90, 2), (0xA0, 4)] {
        let place = address(script);
        let place = if script.one_in(8) { place } else { place / alignment * alignment };
        guest.set(register, place as u32);
        guest.set(register + 4, (place >> 32) as u32);
    }
    guest.set(0x44, u32::from(!script.one_in(8)));
}
