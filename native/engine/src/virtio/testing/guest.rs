//! A driver for tests that keeps every rule: it does to a device what a guest does, through registers, rings in guest memory
//! and the interrupt line.

use crate::virtio::{
    FEATURE_EVENT_INDEX, FEATURE_VERSION_1, GuestRam, QUEUE_NOTIFY, Reactor, VirtioDevice, VirtioMmio,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

pub(crate) const MEMORY_BYTES: usize = 32 << 20;
/// Where buffers of tests begin; the rings are below.
pub(super) const HEAP: u64 = 0x10_0000;
/// Room for the rings of one queue.
pub(super) const QUEUE_BYTES: u64 = 0x1_0000;
const PATIENCE: Duration = Duration::from_secs(10);
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

const NON_BLOCKING: i32 = rustix::event::EventfdFlags::NONBLOCK.bits() as i32;

/// A descriptor of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) writable: bool,
}

/// Where the driver keeps a queue.
pub(crate) struct DriverQueue {
    pub(crate) size: u16,
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
    next_descriptor: u16,
    next_available: u16,
    next_used: u16,
}

/// A guest with one device.
pub(crate) struct TestGuest {
    pub(crate) memory: Arc<GuestRam>,
    pub(crate) mmio: Arc<VirtioMmio>,
    pub(crate) line: EventFd,
    pub(crate) reactor: Reactor,
    pub(crate) queues: Vec<DriverQueue>,
    heap: u64,
}

impl TestGuest {
    /// A guest that has not touched its device.
    pub(crate) fn new(device: Box<dyn VirtioDevice>) -> Self {
        Self::with_memory(Arc::new(Self::fresh_memory()), device)
    }

    /// Memory as every guest here has it.
    pub(crate) fn fresh_memory() -> GuestRam {
        GuestRam::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).expect("guest memory")
    }

    /// The same with memory that has a history.
    pub(crate) fn with_memory(memory: Arc<GuestRam>, device: Box<dyn VirtioDevice>) -> Self {
        let reactor = Reactor::start("test-reactor").expect("a reactor");
        let line = EventFd::new(NON_BLOCKING).expect("an event");
        let twin = line.try_clone().expect("its twin");
        let mmio = VirtioMmio::new(&reactor, memory.clone(), device, twin).expect("a transport");
        Self { memory, mmio, line, reactor, queues: Vec::new(), heap: HEAP }
    }

    /// A guest whose driver runs with everything that the device offers.
    pub(crate) fn running(device: Box<dyn VirtioDevice>) -> Self {
        Self::running_with(device, u64::MAX)
    }

    /// A guest whose driver runs with those of the offered features that are in `wanted`.
    pub(crate) fn running_with(device: Box<dyn VirtioDevice>, wanted: u64) -> Self {
        let mut guest = Self::new(device);
        guest.start(wanted | FEATURE_VERSION_1);
        guest
    }

    /// Goes the whole way from reset to a running driver.
    pub(crate) fn start(&mut self, wanted: u64) {
        assert!(self.try_start(wanted), "features were refused");
    }

    /// The same, or nothing beyond the features when the device refuses these.
    pub(crate) fn try_start(&mut self, wanted: u64) -> bool {
        self.set(0x70, 0);
        self.set(0x70, 1);
        self.set(0x70, 3);
        let features = self.offered() & wanted;
        self.choose(features);
        self.set(0x70, 0xB);
        if self.get(0x70) != 0xB {
            return false;
        }
        self.queues.clear();
        for queue in 0.. {
            self.set(0x30, queue);
            let size = self.get(0x34) as u16;
            if size == 0 {
                break;
            }
            self.set_up_queue(queue, size);
        }
        self.set(0x70, 0xF);
        true
    }

    pub(crate) fn offered(&self) -> u64 {
        self.set(0x14, 0);
        let low = u64::from(self.get(0x10));
        self.set(0x14, 1);
        low | u64::from(self.get(0x10)) << 32
    }

    pub(crate) fn choose(&self, features: u64) {
        for half in 0..2 {
            self.set(0x24, half);
            self.set(0x20, (features >> (32 * half)) as u32);
        }
    }

    /// Gives a queue rings in memory and makes it ready.
    pub(crate) fn set_up_queue(&mut self, queue: u32, size: u16) {
        let base = 0x1000 + u64::from(queue) * QUEUE_BYTES;
        let (descriptors, available, used) = (base, base + 0x8000, base + 0xC000);
        // A driver clears its rings before it shows them.
        self.memory.write_slice(&vec![0; QUEUE_BYTES as usize], GuestAddress(base)).expect("rings");
        self.set(0x30, queue);
        self.set(0x38, u32::from(size));
        for (register, address) in [(0x80, descriptors), (0x90, available), (0xA0, used)] {
            self.set(register, address as u32);
            self.set(register + 4, (address >> 32) as u32);
        }
        self.set(0x44, 1);
        assert_eq!(self.get(0x44), 1, "the queue was refused");
        let queue =
            DriverQueue { size, descriptors, available, used, next_descriptor: 0, next_available: 0, next_used: 0 };
        self.queues.push(queue);
    }

    pub(crate) fn get(&self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.mmio.read(offset, &mut data);
        u32::from_le_bytes(data)
    }

    pub(crate) fn set(&self, offset: u64, value: u32) {
        self.mmio.write(offset, &value.to_le_bytes());
    }

    pub(crate) fn config<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        for (place, byte) in data.iter_mut().enumerate() {
            self.mmio.read(0x100 + offset + place as u64, std::slice::from_mut(byte));
        }
        data
    }

    pub(crate) fn status(&self) -> u32 {
        self.get(0x70)
    }

    /// Takes memory that nothing else uses, aligned to a page.
    pub(crate) fn allocate(&mut self, bytes: usize) -> u64 {
        let address = self.heap;
        self.heap += (bytes as u64).next_multiple_of(4096);
        assert!(self.heap <= MEMORY_BYTES as u64, "the test guest is out of memory");
        address
    }

    pub(crate) fn give(&mut self, data: &[u8]) -> Piece {
        let address = self.allocate(data.len());
        self.memory.write_slice(data, GuestAddress(address)).expect("in memory");
        Piece { address, bytes: data.len() as u32, writable: false }
    }

    pub(crate) fn room(&mut self, bytes: u32) -> Piece {
        Piece { address: self.allocate(bytes as usize), bytes, writable: true }
    }

    pub(crate) fn memory_fill(&self, piece: Piece, value: u8) {
        self.memory.write_slice(&vec![value; piece.bytes as usize], GuestAddress(piece.address)).expect("in memory");
    }

    /// Uses the memory of earlier buffers again; none of them may be with the device.
    pub(crate) fn rewind(&mut self) {
        self.heap = HEAP;
    }

    pub(crate) fn bytes(&self, piece: Piece) -> Vec<u8> {
        let mut data = vec![0; piece.bytes as usize];
        self.memory.read_slice(&mut data, GuestAddress(piece.address)).expect("in memory");
        data
    }

    /// Writes one descriptor as it is told.
    pub(crate) fn describe(&self, table: u64, index: u16, address: u64, bytes: u32, flags: u16, next: u16) {
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&address.to_le_bytes());
        entry[8..12].copy_from_slice(&bytes.to_le_bytes());
        entry[12..14].copy_from_slice(&flags.to_le_bytes());
        entry[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write_slice(&entry, GuestAddress(table + u64::from(index) * 16)).expect("a table in memory");
    }

    /// Makes a chain available and returns its head.
    pub(crate) fn push(&mut self, queue: usize, pieces: &[Piece]) -> u16 {
        let driver = &mut self.queues[queue];
        let (size, table) = (driver.size, driver.descriptors);
        let head = driver.next_descriptor;
        driver.next_descriptor = (head + pieces.len() as u16) % size;
        for (place, piece) in pieces.iter().enumerate() {
            let index = (head + place as u16) % size;
            let last = place + 1 == pieces.len();
            let flags = if piece.writable { WRITE } else { 0 } | if last { 0 } else { NEXT };
            self.describe(table, index, piece.address, piece.bytes, flags, (index + 1) % size);
        }
        self.offer(queue, head);
        head
    }

    /// Makes a chain available whose descriptors lie in a table of their own.
    pub(crate) fn push_indirect(&mut self, queue: usize, pieces: &[Piece]) -> u16 {
        let table = self.allocate(pieces.len() * 16);
        for (place, piece) in pieces.iter().enumerate() {
            let last = place + 1 == pieces.len();
            let flags = if piece.writable { WRITE } else { 0 } | if last { 0 } else { NEXT };
            self.describe(table, place as u16, piece.address, piece.bytes, flags, place as u16 + 1);
        }
        let driver = &mut self.queues[queue];
        let (head, descriptors) = (driver.next_descriptor, driver.descriptors);
        driver.next_descriptor = (head + 1) % driver.size;
        self.describe(descriptors, head, table, pieces.len() as u32 * 16, INDIRECT, 0);
        self.offer(queue, head);
        head
    }

    /// Puts a head into the available ring.
    pub(crate) fn offer(&mut self, queue: usize, head: u16) {
        let driver = &mut self.queues[queue];
        let slot = driver.available + 4 + u64::from(driver.next_available % driver.size) * 2;
        driver.next_available = driver.next_available.wrapping_add(1);
        self.memory.write_obj(head.to_le(), GuestAddress(slot)).expect("a ring in memory");
        let index = driver.next_available.to_le();
        self.memory
            .store(index, GuestAddress(driver.available + 2), std::sync::atomic::Ordering::Release)
            .expect("a ring");
    }

    pub(crate) fn kick(&self, queue: usize) {
        self.set(QUEUE_NOTIFY, queue as u32);
    }

    /// The next used chain, when there is one: its head and the bytes written.
    pub(crate) fn used(&mut self, queue: usize) -> Option<(u16, u32)> {
        let driver = &mut self.queues[queue];
        let index: u16 = self
            .memory
            .load(GuestAddress(driver.used + 2), std::sync::atomic::Ordering::Acquire)
            .expect("a ring in memory");
        if index == driver.next_used {
            return None;
        }
        let slot = driver.used + 4 + u64::from(driver.next_used % driver.size) * 8;
        driver.next_used = driver.next_used.wrapping_add(1);
        let entry: u64 = self.memory.read_obj(GuestAddress(slot)).expect("a ring in memory");
        // With the event index the driver says where it wants its next interrupt.
        let wish = driver.available + 4 + u64::from(driver.size) * 2;
        self.memory.write_obj(driver.next_used, GuestAddress(wish)).expect("a ring in memory");
        Some((entry as u16, (entry >> 32) as u32))
    }

    /// Waits for the next used chain.
    pub(crate) fn wait_used(&mut self, queue: usize) -> (u16, u32) {
        let mut found = None;
        self.until("a used buffer", |guest| {
            found = guest.used(queue);
            found.is_some()
        });
        found.expect("waited for it")
    }

    /// Makes a chain available, tells the device, and waits until it comes back: the bytes written.
    pub(crate) fn request(&mut self, queue: usize, pieces: &[Piece]) -> u32 {
        let head = self.push(queue, pieces);
        self.kick(queue);
        let (used, bytes) = self.wait_used(queue);
        assert_eq!(used, head, "another chain came back");
        bytes
    }

    /// Waits for something that another thread does.
    pub(crate) fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(Instant::now() < deadline, "waited in vain for {what}; fault: {:?}", self.mmio.fault());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until the device says that it broke down.
    pub(crate) fn wait_broken(&mut self) -> String {
        self.until("a broken device", |guest| guest.status() & 0x40 != 0);
        self.mmio.fault().expect("a reason")
    }

    /// Stands the reactor still, as before a snapshot.
    pub(crate) fn quiesce(&self) {
        self.reactor.quiesce(PATIENCE).expect("the devices come to rest");
    }

    /// How many interrupts came since this was last asked.
    pub(crate) fn interrupts(&self) -> u64 {
        self.line.read().unwrap_or(0)
    }

    /// A second guest with the same memory and a device that was made alike, in the state of this one.
    pub(crate) fn restored(self, device: Box<dyn VirtioDevice>) -> Self {
        self.quiesce();
        let state = self.mmio.save();
        let Self { memory, queues, heap, .. } = self;
        let mut next = Self::with_memory(memory, device);
        next.quiesce();
        next.mmio.load(&state).expect("a state of the same device");
        next.reactor.resume();
        next.queues = queues;
        next.heap = heap;
        next
    }
}

/// Everything off but what a device needs.
pub(crate) const PLAIN: u64 = FEATURE_VERSION_1;
/// The transport's features that change how rings work.
pub(crate) const EVENT_INDEX: u64 = FEATURE_VERSION_1 | FEATURE_EVENT_INDEX;
