//! The story that an input tells about a device: what guest and host do, step by step, with an honest driver at the end,
//! for whom the device must still be there.

use crate::guest::{Guest, HEAP, HIGH, HIGH_BYTES, LOW_BYTES, REGISTERS};
use crate::rings::Piece;
use crate::script::Script;
use fluxvm_engine::virtio::{FEATURE_EVENT_INDEX, QUEUE_NOTIFY, VirtioDevice};

/// Steps of one story; longer inputs say nothing new.
const STEPS_MAX: u32 = 400;
/// What has no use for a guest that is only up to harm.
const SIZE_MAX: u16 = 32;

/// Which way the buffers of a queue go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device writes them.
    ToGuest,
    /// The device reads them.
    FromGuest,
    /// First some to be read, then some to be written.
    Both,
}

/// What is fuzzed: a device, and the host around it.
pub trait Subject {
    /// The device.
    fn device(&mut self) -> Box<dyn VirtioDevice>;

    /// Which way the buffers of a queue go.
    fn direction(&self, queue: usize) -> Direction;

    /// What an almost honest driver puts in front of a request.
    fn request(&mut self, queue: usize, script: &mut Script<'_>) -> Vec<u8>;

    /// Something happens on the host.
    fn host(&mut self, _script: &mut Script<'_>, _guest: &mut Guest) {}

    /// Whether chains that come back say something about the device; not when it takes memory of rings away on request.
    fn keeps_rings(&self) -> bool {
        true
    }

    /// Uses a device that was started by an honest driver, and panics when it does not do what it is for.
    fn check(&mut self, guest: &mut Guest);
}

/// Tells a story to a subject.
pub fn tell(input: &[u8], subject: &mut dyn Subject) {
    let mut guest = Guest::new(subject.device());
    let mut script = Script::new(input);
    guest.start(u64::MAX, SIZE_MAX);
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        if !subject.keeps_rings() {
            guest.confuse();
        }
        take_step(step, &mut script, &mut guest, subject);
        if step & 0x80 == 0 {
            guest.turn();
        }
    }
    guest.settle();
    assert!(guest.start(u64::MAX, u16::MAX), "an honest driver was refused");
    assert_eq!(guest.get(0x70), 0xF, "the device does not start: {:?}", guest.mmio.fault());
    subject.check(&mut guest);
    assert_eq!(guest.mmio.fault(), None, "an honest driver broke the device");
}

fn take_step(step: u8, script: &mut Script<'_>, guest: &mut Guest, subject: &mut dyn Subject) {
    match step & 0x7F {
        0..=39 => push(script, guest, subject),
        40..=59 => subject.host(script, guest),
        60..=69 => scribble(script, guest),
        70..=79 => access_register(script, guest),
        80..=84 => {
            let wanted = if script.one_in(4) { script.u64() } else { u64::MAX };
            let wanted = if script.one_in(2) { wanted & !FEATURE_EVENT_INDEX } else { wanted };
            guest.start(wanted, 1 << script.below(9));
        }
        85..=94 => {
            guest.take_interrupt();
            for queue in 0..guest.queues() {
                while guest.used(queue).is_some() {}
            }
        }
        95..=104 => guest.kick(script.u8().into()),
        105..=109 => guest.pause(|_| ()),
        110..=114 => load(script, guest),
        115..=119 => describe(script, guest),
        120..=122 => offer(script, guest),
        _ => guest.settle(),
    }
}

/// Gives the device a chain that may make sense.
fn push(script: &mut Script<'_>, guest: &mut Guest, subject: &mut dyn Subject) {
    if guest.queues() == 0 {
        return;
    }
    let queue = script.below(guest.queues() as u64) as usize;
    let shape = script.u8();
    let mut pieces = Vec::new();
    let direction = subject.direction(queue);
    if direction != Direction::ToGuest {
        let request = subject.request(queue, script);
        if shape & 1 == 0 || request.len() < 2 {
            pieces.push(guest.give(&request));
        } else {
            let (first, second) = request.split_at(1 + script.below(request.len() as u64 - 1) as usize);
            pieces.extend([guest.give(first), guest.give(second)]);
        }
    }
    for _ in 0..shape >> 1 & 3 {
        let writable = direction != Direction::FromGuest;
        pieces.push(Piece { writable, ..piece(script, guest) });
    }
    if direction == Direction::Both {
        pieces.push(guest.room(1));
    }
    if shape & 8 != 0 && !pieces.is_empty() {
        // One that does not belong there.
        let place = script.below(pieces.len() as u64) as usize;
        pieces[place] = piece(script, guest);
    }
    if pieces.is_empty() {
        pieces.push(guest.room(64));
    }
    guest.push(queue, &pieces, shape & 16 != 0);
    if shape & 32 == 0 {
        guest.kick(queue as u32);
    }
}

/// A buffer that often lies in memory.
fn piece(script: &mut Script<'_>, guest: &mut Guest) -> Piece {
    let bytes = match script.u8() {
        kind @ 0..=0xEF => [0, 1, 4, 12, 16, 44, 64, 512, 600, 1526, 4096, 8192, 0x1_0000][usize::from(kind) % 13],
        _ => script.number() as u32,
    };
    let writable = script.one_in(2);
    let place = script.u8();
    if place > 0xBF || bytes > 0x1_0000 {
        guest.lose_buffers();
    }
    let address = match place {
        0..=0xBF => guest.room(bytes.min(0x1_0000)).address,
        0xC0..=0xCF => LOW_BYTES.saturating_sub(script.below(0x2000)),
        0xD0..=0xDF => HIGH + script.below(HIGH_BYTES),
        0xE0..=0xE7 => script.below(HEAP),
        0xE8..=0xEF => HEAP + script.below(LOW_BYTES - HEAP),
        _ => script.number(),
    };
    Piece { address, bytes, writable }
}

fn scribble(script: &mut Script<'_>, guest: &mut Guest) {
    let address = if script.one_in(4) { script.below(HEAP) } else { HEAP + script.below(LOW_BYTES - HEAP) };
    let data = script.bytes(32);
    guest.scribble(address, &data);
}

fn access_register(script: &mut Script<'_>, guest: &mut Guest) {
    let offset = if script.one_in(8) { script.u16().into() } else { script.choose(&REGISTERS) };
    let value = script.number().to_le_bytes();
    let kind = script.u8();
    let bytes = if kind & 0x1E == 0x1E { 1 << (kind >> 5 & 3) } else { 4 };
    if kind & 1 == 0 {
        guest.mmio.write(offset, &value[..bytes]);
        if (0x38..=0xA7).contains(&offset) && offset != QUEUE_NOTIFY && offset != 0x64 {
            // Queues may lie elsewhere from here on.
            guest.confuse();
        }
    } else {
        guest.mmio.read(offset, &mut vec![0; bytes]);
    }
}

/// Saves the state of the device and loads it again, as it is or damaged.
fn load(script: &mut Script<'_>, guest: &mut Guest) {
    let damaged = script.one_in(2);
    guest.pause(|guest| {
        let mut state = guest.mmio.save();
        if damaged {
            script.edit(&mut state, 4);
            guest.confuse();
            let _ = guest.mmio.load(&state);
        } else {
            guest.mmio.load(&state).expect("a state that was just saved");
        }
    });
}

/// Writes a descriptor that may be nonsense.
fn describe(script: &mut Script<'_>, guest: &mut Guest) {
    if guest.queues() > 0 {
        let queue = script.below(guest.queues() as u64) as usize;
        let (index, flags, next) = (script.below(64) as u16, script.below(8) as u16, script.number() as u16);
        let piece = Piece { writable: false, ..piece(script, guest) };
        guest.describe(queue, index, piece, flags, next);
    }
}

fn offer(script: &mut Script<'_>, guest: &mut Guest) {
    if guest.queues() > 0 {
        let queue = script.below(guest.queues() as u64) as usize;
        guest.offer(queue, script.number() as u16);
        guest.kick(queue as u32);
    }
}
