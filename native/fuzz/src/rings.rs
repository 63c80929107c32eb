//! One queue as its driver keeps it: what was given to the device, and whether what comes back can be true.

use crate::guest::{HEAP, TABLES};
use fluxvm_engine::virtio::GuestRam;
use std::collections::HashMap;
use vm_memory::{Bytes, GuestAddress};

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 16;
/// Flag of a descriptor: another one follows.
pub const NEXT: u16 = 1;
/// Flag of a descriptor: it names a table.
pub const INDIRECT: u16 = 4;
const WRITE: u16 = 2;
/// No chain that the device takes is longer, with its table.
const DESCRIPTORS_MAX: u32 = 2048;

/// A piece of memory in a chain.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub bytes: u32,
    /// For the device to write.
    pub writable: bool,
}

impl Piece {
    /// As a descriptor.
    #[must_use]
    pub fn describe(&self, flags: u16, next: u16) -> [u8; 16] {
        let flags = flags | if self.writable { WRITE } else { 0 };
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&self.address.to_le_bytes());
        entry[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        entry[12..14].copy_from_slice(&flags.to_le_bytes());
        entry[14..].copy_from_slice(&next.to_le_bytes());
        entry
    }
}

/// What a chain has room for, and whether the device may change the chain while it writes.
struct Room {
    bytes: u64,
    shifts: bool,
}

/// Where the driver keeps a queue, and what it has given to the device.
#[derive(Default)]
pub struct Rings {
    /// Descriptors.
    pub size: u16,
    /// Address of the table of descriptors.
    pub descriptors: u64,
    /// Address of the ring of what the device may take.
    pub available: u64,
    /// Address of the ring of what came back.
    pub used: u64,
    /// The next descriptor for a chain.
    pub next_descriptor: u16,
    /// Bytes of tables handed out.
    pub table_bytes: u64,
    next_available: u16,
    next_used: u16,
    /// Entries of the available ring before this one were looked at.
    noted: u16,
    /// The most that the chain of each head ever had room for.
    rooms: HashMap<u16, u64>,
}

impl Rings {
    /// Empty rings of so many descriptors at these addresses.
    #[must_use]
    pub fn new(size: u16, descriptors: u64, available: u64, used: u64) -> Self {
        Self { size, descriptors, available, used, ..Self::default() }
    }

    /// Puts a head into the available ring.
    ///
    /// # Panics
    /// When the ring is not in memory, as everywhere here.
    pub fn offer(&mut self, memory: &GuestRam, head: u16) {
        let slot = self.available + 4 + u64::from(self.next_available % self.size) * 2;
        self.next_available = self.next_available.wrapping_add(1);
        memory.write_obj(head, GuestAddress(slot)).expect("a ring");
        memory.write_obj(self.next_available, GuestAddress(self.available + 2)).expect("a ring");
    }

    /// The next chain that came back: its head and the bytes written.
    pub fn take_used(&mut self, memory: &GuestRam) -> Option<(u16, u32)> {
        if index(memory, self.used) == self.next_used {
            return None;
        }
        let entry = self.used_entry(memory, self.next_used);
        self.next_used = self.next_used.wrapping_add(1);
        // With the event index the driver says where it wants its next interrupt.
        let wish = self.available + 4 + u64::from(self.size) * 2;
        memory.write_obj(self.next_used, GuestAddress(wish)).expect("a ring");
        Some(entry)
    }

    /// Notes how much room each chain has that the device is about to see, or all that it might see. False: what comes
    /// back from these will say nothing about the device.
    pub fn note_chains(&mut self, memory: &GuestRam, all: bool) -> bool {
        let end = index(memory, self.available);
        let mut place = if all { end.wrapping_sub(self.size) } else { self.noted };
        if end.wrapping_sub(place) > self.size {
            return false;
        }
        let mut stays = true;
        while place != end {
            let slot = self.available + 4 + u64::from(place % self.size) * 2;
            let head: u16 = memory.read_obj(GuestAddress(slot)).expect("a ring");
            let room = self.room_of(memory, head);
            stays &= !room.shifts;
            let known = self.rooms.entry(head).or_default();
            *known = room.bytes.max(*known);
            place = place.wrapping_add(1);
        }
        self.noted = end;
        stays
    }

    /// Room in a chain, whatever the device may think of it.
    fn room_of(&self, memory: &GuestRam, head: u16) -> Room {
        let (mut table, mut size) = (self.descriptors, u32::from(self.size));
        let (mut index, mut is_indirect) = (u32::from(head), false);
        let mut room = Room { bytes: 0, shifts: false };
        for _ in 0..=DESCRIPTORS_MAX {
            if index >= size {
                return room;
            }
            let address = table.wrapping_add(u64::from(index) * DESCRIPTOR_BYTES);
            let Ok([low, high, bytes, rest]) = memory.read_obj::<[u32; 4]>(GuestAddress(address)) else { return room };
            let (begin, flags) = (u64::from(low) | u64::from(high) << 32, rest as u16);
            if flags & INDIRECT != 0 && !is_indirect {
                // A table among the buffers may be written while it is read.
                room.shifts |= !(TABLES..HEAP).contains(&begin);
                (table, size, index, is_indirect) = (begin, bytes / DESCRIPTOR_BYTES as u32, 0, true);
                continue;
            }
            if flags & WRITE != 0 {
                room.bytes += u64::from(bytes);
                room.shifts |= begin < HEAP;
            }
            if flags & NEXT == 0 {
                return room;
            }
            index = rest >> 16;
        }
        // It has no end: the device breaks down at it, and to look again each time would take longer than all else.
        Room { shifts: true, ..room }
    }

    /// Looks at what came back and was not taken.
    ///
    /// # Panics
    /// When a chain came back that was never given, or with more bytes than it had room for.
    pub fn check_used(&self, memory: &GuestRam) {
        let end = index(memory, self.used);
        let count = end.wrapping_sub(self.next_used);
        // A driver that has not looked for long may have been lapped.
        let mut place = if count > self.size { end.wrapping_sub(self.size) } else { self.next_used };
        while place != end {
            let (head, bytes) = self.used_entry(memory, place);
            let room = self.rooms.get(&head).copied();
            assert!(
                room.is_some_and(|room| u64::from(bytes) <= room),
                "chain {head} came back with {bytes} bytes; room: {room:?}"
            );
            place = place.wrapping_add(1);
        }
    }

    fn used_entry(&self, memory: &GuestRam, place: u16) -> (u16, u32) {
        let slot = self.used + 4 + u64::from(place % self.size) * 8;
        let [head, bytes]: [u32; 2] = memory.read_obj(GuestAddress(slot)).expect("a ring");
        (head as u16, bytes)
    }
}

/// How far a ring was filled.
fn index(memory: &GuestRam, ring: u64) -> u16 {
    memory.read_obj(GuestAddress(ring + 2)).expect("a ring")
}
