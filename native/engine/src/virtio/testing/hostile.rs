//! A driver for tests that breaks every rule, by dice that fall the same way each time.

use super::guest::{HEAP, MEMORY_BYTES, Piece, QUEUE_BYTES, TestGuest};
use crate::virtio::{FEATURE_VERSION_1, MMIO_BYTES};
use vm_memory::{Bytes, GuestAddress};

/// Numbers that look random and are the same each time.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Does hostile things with a device for so many rounds: registers, rings and descriptors that make no sense, mixed with
/// some that do. Nothing may panic or hang, and after a reset the device must work for an honest driver again.
pub(crate) fn torment(guest: &mut TestGuest, seed: u64, rounds: u32) {
    let mut dice = Dice::new(seed);
    for _ in 0..rounds {
        match dice.below(12) {
            0 => {
                let offset = dice.below(MMIO_BYTES + 16);
                let count = 1 << dice.below(5);
                let data = dice.bytes(count);
                guest.mmio.write(offset, &data);
            }
            1 => {
                let mut data = vec![0; 1 << dice.below(5)];
                guest.mmio.read(dice.below(MMIO_BYTES + 16), &mut data);
            }
            2 => {
                let _ = guest.try_start(dice.next() | FEATURE_VERSION_1);
            }
            3 => scribble(guest, &mut dice),
            _ => offer_nonsense(guest, &mut dice),
        }
        if guest.status() != 0xF && dice.one_in(3) {
            let _ = guest.try_start(dice.next() | FEATURE_VERSION_1);
        }
        if dice.one_in(4) {
            // The device has seen everything so far, each piece of nonsense by itself.
            guest.quiesce();
            guest.reactor.resume();
        }
        if dice.one_in(64) {
            guest.quiesce();
            let state = guest.mmio.save();
            guest.mmio.load(&state).expect("a state that was just saved");
            guest.reactor.resume();
        }
    }
    guest.rewind();
    guest.start(u64::MAX);
    assert_eq!(guest.status(), 0xF, "an honest driver does not get on: {:?}", guest.mmio.fault());
}

fn scribble(guest: &mut TestGuest, dice: &mut Dice) {
    let data = dice.bytes(8);
    let address = 0x1000 + dice.below(QUEUE_BYTES * 2);
    guest.memory.write_slice(&data, GuestAddress(address)).expect("in memory");
}

fn offer_nonsense(guest: &mut TestGuest, dice: &mut Dice) {
    if guest.queues.is_empty() {
        return guest.start(u64::MAX);
    }
    guest.rewind();
    let queue = dice.below(guest.queues.len() as u64) as usize;
    let count = 1 + dice.below(5) as usize;
    let pieces: Vec<Piece> = (0..count)
        .map(|place| {
            let honest = !dice.one_in(16);
            let bytes = if dice.one_in(8) {
                dice.below(1 << 20)
            } else {
                [1, 8, 16, 20, 44, 512, 4096][dice.below(7) as usize]
            };
            let bytes = if honest { bytes as u32 } else { dice.next() as u32 };
            let address = if honest { HEAP + dice.below(MEMORY_BYTES as u64 - HEAP - (1 << 20)) } else { dice.next() };
            let writable = if dice.one_in(20) { dice.one_in(2) } else { place * 2 >= count };
            Piece { address, bytes, writable }
        })
        .collect();
    if let Some(first) = pieces.first().filter(|piece| piece.address < MEMORY_BYTES as u64 - 64) {
        // A header that devices may understand: small numbers.
        let header: Vec<u8> = (0..16).map(|place| if place % 4 == 0 { dice.below(16) as u8 } else { 0 }).collect();
        guest.memory.write_slice(&header, GuestAddress(first.address)).expect("in memory");
    }
    let head = if dice.one_in(4) { guest.push_indirect(queue, &pieces) } else { guest.push(queue, &pieces) };
    if dice.one_in(16) {
        let table = guest.queues[queue].descriptors;
        let random = dice.next();
        guest.describe(table, head, random, dice.next() as u32, dice.below(8) as u16, dice.next() as u16);
    }
    if dice.one_in(32) {
        guest.offer(queue, dice.next() as u16);
    }
    guest.kick(dice.below(guest.queues.len() as u64 + 1) as usize);
}

/// Rounds of a hostile test: short by default, some minutes for each device when `FLUXVM_TEST_FULL` is 1.
pub(crate) fn rounds(short: u32) -> u32 {
    if std::env::var("FLUXVM_TEST_FULL").is_ok_and(|value| value == "1") { short * 500 } else { short }
}
