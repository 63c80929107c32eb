//! A driver for one device: it can do all that a guest can, honestly or not, and notices when the device breaks a promise:
//! chains that come back without having been given, or with more bytes written than they had room for, and bytes written
//! beside the buffers.

use crate::rings::{DESCRIPTOR_BYTES, INDIRECT, NEXT, Piece, Rings};
use fluxvm_engine::virtio::{
    EventHandler, FEATURE_VERSION_1, GuestRam, MMIO_BYTES, QUEUE_NOTIFY, Reactor, VirtioDevice, VirtioMmio,
};
use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use vm_memory::{Bytes, FileOffset, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

/// Memory of the guest: at zero, and beyond the hole.
pub const LOW_BYTES: u64 = 2 << 20;
/// Where the upper memory begins.
pub const HIGH: u64 = 4 << 30;
/// How much there is of it.
pub const HIGH_BYTES: u64 = 64 << 10;
/// Buffers begin here; rings and tables are below.
pub const HEAP: u64 = 0x10_0000;

const RINGS: u64 = 0x1000;
const RINGS_BYTES: u64 = 0x4000;
/// Tables of chains begin here.
pub const TABLES: u64 = 0xC_0000;
const TABLES_BYTES: u64 = HEAP - TABLES;

/// What lies between buffers.
const GAP: u8 = 0xC5;
const GAP_BYTES_MIN: u64 = 16;

/// Turns without waiting after which a device that still has something to do has it for ever.
const TURNS_MAX: u32 = 2000;
/// Turns of a millisecond that an honest request may take.
const PATIENCE_MS: u32 = 5000;

/// A guest with one device.
pub struct Guest {
    /// Its memory.
    pub memory: Arc<GuestRam>,
    /// The device's registers.
    pub mmio: Arc<VirtioMmio>,
    reactor: Reactor,
    line: EventFd,
    queues: Vec<Rings>,
    heap: u64,
    /// Memory behind buffers, which nobody has a reason to write.
    gaps: Vec<Range<u64>>,
    /// Whether all buffers that the device knows came from the heap, so that gaps are gaps.
    knows_buffers: bool,
    /// Rings may hold what the driver did not write, so that what comes back says nothing about the device.
    confused: bool,
    /// Memory of rings was changed since chains were looked at.
    scribbled: bool,
}

impl Guest {
    /// A guest that has not touched its device.
    ///
    /// # Panics
    /// When the host has no memory or descriptors left, as everywhere here.
    #[must_use]
    pub fn new(device: Box<dyn VirtioDevice>) -> Self {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory"));
        file.set_len(LOW_BYTES + HIGH_BYTES).expect("memory");
        let file = Arc::new(file);
        let region = |start, bytes: u64, offset| {
            (GuestAddress(start), bytes as usize, Some(FileOffset::from_arc(Arc::clone(&file), offset)))
        };
        let regions = [region(0, LOW_BYTES, 0), region(HIGH, HIGH_BYTES, LOW_BYTES)];
        let memory = Arc::new(GuestRam::from_ranges_with_files(&regions).expect("guest memory"));
        let reactor = Reactor::threadless().expect("a reactor");
        let line = EventFd::new(EventfdFlags::NONBLOCK.bits() as i32).expect("an event");
        let mmio = VirtioMmio::new(&reactor, Arc::clone(&memory), device, line.try_clone().expect("its twin"));
        let mmio = mmio.expect("a transport");
        Self {
            memory,
            mmio,
            reactor,
            line,
            queues: Vec::new(),
            heap: HEAP,
            gaps: Vec::new(),
            knows_buffers: true,
            confused: false,
            scribbled: false,
        }
    }

    /// Reads a register.
    #[must_use]
    pub fn get(&self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.mmio.read(offset, &mut data);
        u32::from_le_bytes(data)
    }

    /// Writes a register.
    pub fn set(&self, offset: u64, value: u32) {
        self.mmio.write(offset, &value.to_le_bytes());
    }

    /// Goes from reset to a running driver with those of the offered features that are in `wanted`, and queues of at most
    /// `size_max`, a power of two. False: the device does not take these features.
    pub fn start(&mut self, wanted: u64, size_max: u16) -> bool {
        for status in [0, 1, 3] {
            self.set(0x70, status);
        }
        self.check_gaps();
        self.queues.clear();
        self.heap = HEAP;
        self.gaps.clear();
        (self.confused, self.knows_buffers) = (false, true);
        let features = self.offered() & wanted | FEATURE_VERSION_1;
        for half in 0..2 {
            self.set(0x24, half);
            self.set(0x20, (features >> (32 * half)) as u32);
        }
        self.set(0x70, 0xB);
        if self.get(0x70) != 0xB {
            return false;
        }
        for queue in 0.. {
            self.set(0x30, queue);
            match self.get(0x34) as u16 {
                0 => break,
                size => self.set_up_queue(queue, size.min(size_max)),
            }
        }
        self.set(0x70, 0xF);
        true
    }

    fn offered(&self) -> u64 {
        let half = |index| {
            self.set(0x14, index);
            u64::from(self.get(0x10))
        };
        half(0) | half(1) << 32
    }

    fn set_up_queue(&mut self, queue: u32, size: u16) {
        let base = RINGS + u64::from(queue) * RINGS_BYTES;
        assert!(base + RINGS_BYTES <= TABLES, "more queues than there is room for");
        let (descriptors, available, used) = (base, base + 0x1000, base + 0x2000);
        self.write(base, &[0; RINGS_BYTES as usize]);
        self.set(0x38, u32::from(size));
        for (register, address) in [(0x80, descriptors), (0x90, available), (0xA0, used)] {
            self.set(register, address as u32);
            self.set(register + 4, (address >> 32) as u32);
        }
        self.set(0x44, 1);
        assert_eq!(self.get(0x44), 1, "an honest queue was refused");
        self.queues.push(Rings::new(size, descriptors, available, used));
    }

    /// How many queues are set up.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Puts bytes into memory; those that do not lie there are left out.
    pub fn write(&self, address: u64, data: &[u8]) {
        let _ = self.memory.write_slice(data, GuestAddress(address));
    }

    /// Puts bytes anywhere into memory, perhaps into rings.
    pub fn scribble(&mut self, address: u64, data: &[u8]) {
        self.write(address, data);
        self.scribbled = true;
        self.knows_buffers = false;
        let end = address.saturating_add(data.len() as u64);
        let hits = |rings: &Rings| address < rings.used + 0x2000 && rings.used < end;
        self.confused |= self.queues.iter().any(hits);
    }

    /// The driver has lost its way: what comes back from here on is not looked at until the next start.
    pub fn confuse(&mut self) {
        (self.confused, self.knows_buffers) = (true, false);
    }

    /// The device was given memory that is not from the heap.
    pub fn lose_buffers(&mut self) {
        self.knows_buffers = false;
    }

    /// Puts data where nothing else lies.
    pub fn give(&mut self, data: &[u8]) -> Piece {
        let piece = Piece { writable: false, ..self.room(data.len() as u32) };
        self.write(piece.address, data);
        piece
    }

    /// Memory for the device to write. The heap begins again at its end.
    pub fn room(&mut self, bytes: u32) -> Piece {
        let (bytes_with_gap, gap_begin) = ((u64::from(bytes) + GAP_BYTES_MIN).next_multiple_of(64), u64::from(bytes));
        if self.heap + bytes_with_gap > LOW_BYTES {
            // Earlier buffers may still be with the device.
            self.heap = HEAP;
            self.knows_buffers = false;
        }
        let address = self.heap;
        self.heap += bytes_with_gap;
        let gap = address + gap_begin..self.heap;
        self.write(gap.start, &vec![GAP; (gap.end - gap.start) as usize]);
        self.gaps.push(gap);
        Piece { address, bytes, writable: true }
    }

    /// What lies in a piece of low memory.
    #[must_use]
    pub fn bytes(&self, piece: Piece) -> Vec<u8> {
        let mut data = vec![0; piece.bytes as usize];
        self.memory.read_slice(&mut data, GuestAddress(piece.address)).expect("a piece in memory");
        data
    }

    /// Writes a descriptor.
    pub fn describe(&mut self, queue: usize, index: u16, piece: Piece, flags: u16, next: u16) {
        let table = self.queues[queue].descriptors;
        self.write(table + u64::from(index) * DESCRIPTOR_BYTES, &piece.describe(flags, next));
        self.scribbled = true;
        self.knows_buffers = false;
    }

    /// Makes a chain available and returns its head.
    pub fn push(&mut self, queue: usize, pieces: &[Piece], indirect: bool) -> u16 {
        let rings = &mut self.queues[queue];
        let (size, table, head) = (rings.size, rings.descriptors, rings.next_descriptor);
        if indirect {
            let place = TABLES + rings.table_bytes % (TABLES_BYTES - 0x1000);
            rings.table_bytes += pieces.len() as u64 * DESCRIPTOR_BYTES;
            rings.next_descriptor = (head + 1) % size;
            self.write_chain(place, 0, pieces.len() as u16, pieces);
            let list =
                Piece { address: place, bytes: (pieces.len() as u64 * DESCRIPTOR_BYTES) as u32, writable: false };
            self.write(table + u64::from(head) * DESCRIPTOR_BYTES, &list.describe(INDIRECT, 0));
        } else {
            rings.next_descriptor = (head + pieces.len() as u16) % size;
            self.write_chain(table, head, size, pieces);
        }
        self.offer(queue, head);
        self.scribbled = true;
        head
    }

    fn write_chain(&self, table: u64, first: u16, size: u16, pieces: &[Piece]) {
        for (place, piece) in pieces.iter().enumerate() {
            let index = (first + place as u16) % size;
            let more = if place + 1 == pieces.len() { 0 } else { NEXT };
            self.write(table + u64::from(index) * DESCRIPTOR_BYTES, &piece.describe(more, (index + 1) % size));
        }
    }

    /// Puts a head into the available ring.
    pub fn offer(&mut self, queue: usize, head: u16) {
        self.queues[queue].offer(&self.memory, head);
    }

    /// Tells the device that a queue has something.
    pub fn kick(&self, queue: u32) {
        self.set(QUEUE_NOTIFY, queue);
    }

    /// Serves the device once, without waiting, and looks at what comes back. Returns whether there was anything to do.
    pub fn turn(&mut self) -> bool {
        self.turn_within(0)
    }

    /// Serves the device once, when there is something to do within a time.
    pub fn wait(&mut self, wait_ms: u16) {
        self.turn_within(wait_ms);
    }

    fn turn_within(&mut self, wait_ms: u16) -> bool {
        self.note_chains();
        let events = self.reactor.turn(wait_ms).expect("the reactor turns");
        self.check_used();
        events > 0
    }

    /// Serves the device until it has nothing to do.
    ///
    /// # Panics
    /// When it always has: the thread of a real machine would then never sleep.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            if !self.turn() {
                return;
            }
        }
        assert!(self.confused, "the device has something to do for ever; fault: {:?}", self.mmio.fault());
    }

    /// Brings the device to rest, as before a snapshot, and lets it go on.
    pub fn pause(&mut self, at_rest: impl FnOnce(&mut Self)) {
        self.note_chains();
        let rest = EventHandler::quiesce(&*self.mmio);
        assert_eq!(rest, Ok(()), "a guest kept its machine from being paused");
        at_rest(self);
        EventHandler::resume(&*self.mmio);
        self.check_used();
    }

    /// The guest takes its interrupt.
    pub fn take_interrupt(&mut self) {
        let _ = self.line.read();
        let reasons = self.get(0x60);
        self.set(0x64, reasons);
    }

    /// The next chain that came back: its head and the bytes written.
    pub fn used(&mut self, queue: usize) -> Option<(u16, u32)> {
        self.queues[queue].take_used(&self.memory)
    }

    /// Waits until a condition holds, with the device being served.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn until<T>(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..PATIENCE_MS {
            if let Some(found) = condition(self) {
                return found;
            }
            self.turn_within(1);
        }
        panic!("waited in vain for {what}; status {:#x}, fault: {:?}", self.get(0x70), self.mmio.fault());
    }

    /// Gives a chain and waits until it comes back: the bytes written.
    pub fn request(&mut self, queue: usize, pieces: &[Piece]) -> u32 {
        let head = self.push(queue, pieces, false);
        self.kick(queue as u32);
        let (used, bytes) = self.until("a chain to come back", |guest| guest.used(queue));
        assert_eq!(used, head, "another chain came back");
        bytes
    }

    /// Looks at the chains that the device is about to see.
    fn note_chains(&mut self) {
        if self.confused {
            return;
        }
        let all = std::mem::take(&mut self.scribbled);
        for rings in &mut self.queues {
            self.confused |= !rings.note_chains(&self.memory, all);
        }
    }

    /// Looks at the chains that came back.
    fn check_used(&self) {
        if !self.confused {
            self.queues.iter().for_each(|rings| rings.check_used(&self.memory));
        }
    }

    /// Looks at the memory behind the buffers.
    fn check_gaps(&self) {
        if !self.knows_buffers || self.confused {
            return;
        }
        for gap in &self.gaps {
            let mut bytes = vec![0; (gap.end - gap.start) as usize];
            self.memory.read_slice(&mut bytes, GuestAddress(gap.start)).expect("in memory");
            assert!(bytes.iter().all(|byte| *byte == GAP), "the device wrote beside a buffer, at {gap:x?}: {bytes:x?}");
        }
    }
}

/// Offsets of the window that mean something, and the first that does not.
pub const REGISTERS: [u64; 30] = [
    0x00, 0x04, 0x08, 0x0C, 0x10, 0x14, 0x20, 0x24, 0x30, 0x34, 0x38, 0x44, 0x50, 0x60, 0x64, 0x70, 0x80, 0x84, 0x90,
    0x94, 0xA0, 0xA4, 0xAC, 0xB0, 0xBC, 0xFC, 0x100, 0x104, 0x108, MMIO_BYTES,
];
