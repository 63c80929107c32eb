//! A guest that does what its host tells it with the one device that it has, so that registers, notifications and interrupts go
//! the way of every guest.

use super::{Guest, guest_ram};
use fluxvm_engine::memory::GuestRam;
use fluxvm_engine::vcpu::End;
use fluxvm_engine::virtio::VirtioDevice;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};

pub const WINDOW: u32 = 0xFEB0_0000;
const LIST: u64 = 0x7_0000;
/// Rings of queue 0; those of the next follow.
const RINGS: u64 = 0x20_0000;
const RING_BYTES: u64 = 0x4000;
/// Where requests have their buffers.
pub const BUFFERS: u64 = 0x40_0000;
const QUEUE_SIZE: u16 = 16;
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const WRITE: u32 = 1;
pub const READ: u32 = 2;
pub const AWAIT: u32 = 3;
pub const OFF: u32 = 4;
const DONE: u32 = 0x8000_0000;

const VERSION_1: u64 = 1 << 32;

/// The position of a driver, which goes back with the memory of its guest.
#[derive(Clone, Default)]
pub struct Position {
    step: u64,
    available: Vec<u16>,
    used: Vec<u16>,
}

/// A guest and what its host tells it to do with its one device.
pub struct Driver {
    pub guest: Guest,
    pub position: Position,
}

impl Driver {
    /// A started guest whose device has so many queues and all features that it offers, without the event index when the
    /// features say so.
    pub fn new(device: Box<dyn VirtioDevice>, queues: usize, ram: File) -> Self {
        Self::in_memory(device, queues, guest_ram(ram))
    }

    /// The same with memory that is there already.
    pub fn in_memory(device: Box<dyn VirtioDevice>, queues: usize, ram: GuestRam) -> Self {
        let mut guest = Guest::in_memory('d', 1, vec![device], ram);
        guest.machine.start().unwrap();
        let position = Position { step: 0, available: vec![0; queues], used: vec![0; queues] };
        let mut driver = Self { guest, position };
        driver.bring_up(queues);
        driver
    }

    fn bring_up(&mut self, queues: usize) {
        for status in [0, 1, 3] {
            self.set(0x70, status);
        }
        self.set(0x14, 0);
        let low = self.get(0x10);
        self.set(0x24, 0);
        // Without the event index, so that every request is answered by an interrupt.
        self.set(0x20, low & !(1 << 29));
        self.set(0x24, 1);
        self.set(0x20, (VERSION_1 >> 32) as u32);
        self.set(0x70, 11);
        assert_eq!(self.get(0x70), 11);
        for queue in 0..queues as u64 {
            let rings = (RINGS + queue * RING_BYTES) as u32;
            self.set(0x30, queue as u32);
            for (register, value) in [
                (0x38, u32::from(QUEUE_SIZE)),
                (0x80, rings),
                (0x90, rings + 0x1000),
                (0xA0, rings + 0x2000),
                (0x44, 1),
            ] {
                self.set(register, value);
            }
        }
        self.set(0x70, 15);
        assert_eq!(self.get(0x70), 15);
    }

    pub fn begin(&mut self, what: u32, address: u32, value: u32) -> u64 {
        let entry = LIST + self.position.step * 16;
        self.position.step += 1;
        let memory = self.guest.machine.ram().memory();
        memory.write_obj(address, GuestAddress(entry + 4)).unwrap();
        memory.write_obj(value, GuestAddress(entry + 8)).unwrap();
        memory.store(what, GuestAddress(entry), Ordering::Release).unwrap();
        entry
    }

    pub fn run(&mut self, what: u32, address: u32, value: u32) -> u32 {
        let entry = self.begin(what, address, value);
        let began = Instant::now();
        let memory = self.guest.machine.ram().memory();
        while memory.load::<u32>(GuestAddress(entry), Ordering::Acquire).unwrap() != DONE {
            let fault = || self.guest.machine.devices()[0].fault();
            assert!(began.elapsed() < PATIENCE, "the guest hangs at {what} {address:#x}; fault: {:?}", fault());
            std::thread::sleep(Duration::from_micros(50));
        }
        memory.read_obj(GuestAddress(entry + 12)).unwrap()
    }

    pub fn set(&mut self, register: u32, value: u32) {
        self.run(WRITE, WINDOW + register, value);
    }

    pub fn get(&mut self, register: u32) -> u32 {
        self.run(READ, WINDOW + register, 0)
    }

    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.guest.machine.ram().memory().write_slice(bytes, GuestAddress(address)).unwrap();
    }

    pub fn bytes(&self, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.guest.machine.ram().memory().read_slice(&mut bytes, GuestAddress(address)).unwrap();
        bytes
    }

    /// Makes a chain of buffers available: address, bytes, whether the device writes.
    pub fn offer(&mut self, queue: usize, buffers: &[(u64, u32, bool)]) {
        let rings = RINGS + queue as u64 * RING_BYTES;
        for (place, (address, bytes, writable)) in buffers.iter().enumerate() {
            let next = place + 1 < buffers.len();
            let flags = u16::from(next) | u16::from(*writable) << 1;
            let mut entry = address.to_le_bytes().to_vec();
            entry.extend_from_slice(&bytes.to_le_bytes());
            entry.extend_from_slice(&flags.to_le_bytes());
            entry.extend_from_slice(&(place as u16 + 1).to_le_bytes());
            self.put(rings + place as u64 * 16, &entry);
        }
        let slot = self.position.available[queue] % QUEUE_SIZE;
        self.put(rings + 0x1004 + u64::from(slot) * 2, &0_u16.to_le_bytes());
        self.position.available[queue] = self.position.available[queue].wrapping_add(1);
        let index = self.position.available[queue];
        self.guest.machine.ram().memory().store(index, GuestAddress(rings + 0x1002), Ordering::Release).unwrap();
    }

    /// Lets the guest notify the device and sleep until its interrupt says that the chain came back: the bytes written.
    pub fn request(&mut self, queue: usize, buffers: &[(u64, u32, bool)]) -> u32 {
        self.offer(queue, buffers);
        self.set(0x50, queue as u32);
        self.run(AWAIT, 0, 0);
        self.take(queue)
    }

    /// Lets the guest sleep until a chain came back, if it has not yet: one interrupt may be for several.
    pub fn take(&mut self, queue: usize) -> u32 {
        let rings = RINGS + queue as u64 * RING_BYTES;
        let slot = self.position.used[queue] % QUEUE_SIZE;
        self.position.used[queue] = self.position.used[queue].wrapping_add(1);
        loop {
            let memory = self.guest.machine.ram().memory();
            let index: u16 = memory.load(GuestAddress(rings + 0x2002), Ordering::Acquire).unwrap();
            if index == self.position.used[queue] {
                return memory.read_obj(GuestAddress(rings + 0x2008 + u64::from(slot) * 8)).unwrap();
            }
            self.run(AWAIT, 0, 0);
        }
    }

    pub fn turn_off(mut self) {
        self.begin(OFF, 0, 0);
        assert_eq!(self.guest.end(), End::PowerOff);
    }
}
