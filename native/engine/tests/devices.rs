//! Devices on this host's KVM: a guest of our own does what its host tells it, so that registers, notifications and interrupts
//! go the way of every guest, and snapshots meet disks.

#[allow(dead_code, reason = "each test uses a part of the harness")]
mod guest;

use fluxvm_engine::machine::Lifecycle;
use fluxvm_engine::memory::Mapping;
use fluxvm_engine::vcpu::End;
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::balloon::Balloon;
use fluxvm_engine::virtio::block::{Block, BlockOptions, IoMode};
use fluxvm_engine::virtio::console::{Console, ConsoleOptions};
use fluxvm_engine::virtio::disk::{Disk, Durability, SharedDisk};
use guest::{Guest, RAM_BYTES, can_run, ram_file};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};

const WINDOW: u32 = 0xFEB0_0000;
const LIST: u64 = 0x7_0000;
/// Rings of queue 0; those of the next follow.
const RINGS: u64 = 0x20_0000;
const RING_BYTES: u64 = 0x4000;
/// Where requests have their buffers.
const BUFFERS: u64 = 0x40_0000;
const QUEUE_SIZE: u16 = 16;
const PATIENCE: Duration = Duration::from_secs(60);

const WRITE: u32 = 1;
const READ: u32 = 2;
const AWAIT: u32 = 3;
const OFF: u32 = 4;
const DONE: u32 = 0x8000_0000;

const VERSION_1: u64 = 1 << 32;

/// The position of a driver, which goes back with the memory of its guest.
#[derive(Clone, Default)]
struct Position {
    step: u64,
    available: Vec<u16>,
    used: Vec<u16>,
}

/// A guest and what its host tells it to do with its one device.
struct Driver {
    guest: Guest,
    position: Position,
}

impl Driver {
    /// A started guest whose device has so many queues and all features that it offers, without the event index when the
    /// features say so.
    fn new(device: Box<dyn VirtioDevice>, queues: usize, ram: File) -> Self {
        let mut guest = Guest::with_ram('d', 1, vec![device], ram);
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

    fn begin(&mut self, what: u32, address: u32, value: u32) -> u64 {
        let entry = LIST + self.position.step * 16;
        self.position.step += 1;
        let memory = self.guest.machine.ram().memory();
        memory.write_obj(address, GuestAddress(entry + 4)).unwrap();
        memory.write_obj(value, GuestAddress(entry + 8)).unwrap();
        memory.store(what, GuestAddress(entry), Ordering::Release).unwrap();
        entry
    }

    fn run(&mut self, what: u32, address: u32, value: u32) -> u32 {
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

    fn set(&mut self, register: u32, value: u32) {
        self.run(WRITE, WINDOW + register, value);
    }

    fn get(&mut self, register: u32) -> u32 {
        self.run(READ, WINDOW + register, 0)
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        self.guest.machine.ram().memory().write_slice(bytes, GuestAddress(address)).unwrap();
    }

    fn bytes(&self, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.guest.machine.ram().memory().read_slice(&mut bytes, GuestAddress(address)).unwrap();
        bytes
    }

    /// Makes a chain of buffers available: address, bytes, whether the device writes.
    fn offer(&mut self, queue: usize, buffers: &[(u64, u32, bool)]) {
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
    fn request(&mut self, queue: usize, buffers: &[(u64, u32, bool)]) -> u32 {
        self.offer(queue, buffers);
        self.set(0x50, queue as u32);
        self.take(queue)
    }

    /// Lets the guest sleep until a chain came back.
    fn take(&mut self, queue: usize) -> u32 {
        let rings = RINGS + queue as u64 * RING_BYTES;
        let slot = self.position.used[queue] % QUEUE_SIZE;
        self.position.used[queue] = self.position.used[queue].wrapping_add(1);
        loop {
            self.run(AWAIT, 0, 0);
            let memory = self.guest.machine.ram().memory();
            let index: u16 = memory.load(GuestAddress(rings + 0x2002), Ordering::Acquire).unwrap();
            if index == self.position.used[queue] {
                return memory.read_obj(GuestAddress(rings + 0x2008 + u64::from(slot) * 8)).unwrap();
            }
        }
    }

    fn turn_off(mut self) {
        self.begin(OFF, 0, 0);
        assert_eq!(self.guest.end(), End::PowerOff);
    }
}

fn disk_of(bytes: usize) -> (SharedDisk, File) {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&vec![1; bytes], 0).unwrap();
    (Disk::open(file.try_clone().unwrap(), false).unwrap().shared(), file)
}

fn block(disk: &SharedDisk, mode: IoMode) -> Box<Block> {
    Box::new(
        Block::new(disk.clone(), &BlockOptions { serial: "own".to_owned(), mode, ..BlockOptions::default() }).unwrap(),
    )
}

const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 0x100;
const DATA: u64 = BUFFERS + 0x1000;

impl Driver {
    fn disk(&mut self, kind: u32, sector: u64, bytes: u32) -> u8 {
        let mut header = u64::from(kind).to_le_bytes().to_vec();
        header.extend_from_slice(&sector.to_le_bytes());
        self.put(HEADER, &header);
        self.put(STATUS, &[0xEE]);
        let mut buffers = vec![(HEADER, 16, false)];
        if bytes > 0 {
            buffers.push((DATA, bytes, kind == 0));
        }
        buffers.push((STATUS, 1, true));
        self.request(0, &buffers);
        self.bytes(STATUS, 1)[0]
    }

    fn write_disk(&mut self, sector: u64, data: &[u8]) {
        self.put(DATA, data);
        assert_eq!(self.disk(1, sector, data.len() as u32), 0);
    }

    fn read_disk(&mut self, sector: u64, bytes: u32) -> Vec<u8> {
        self.put(DATA, &vec![0xEE; bytes as usize]);
        assert_eq!(self.disk(0, sector, bytes), 0);
        self.bytes(DATA, bytes as usize)
    }
}

#[test]
fn a_disk_is_written_flushed_and_read() {
    if !can_run() {
        return;
    }
    for mode in [IoMode::Ring, IoMode::Direct] {
        let (disk, file) = disk_of(1 << 20);
        let mut driver = Driver::new(block(&disk, mode), 1, ram_file());
        assert_eq!(driver.get(0x100), (1 << 20) / 512, "sectors");
        for round in 0..20_u64 {
            let data: Vec<u8> = (0..8192_u64).map(|place| (place * 7 + round) as u8).collect();
            driver.write_disk(round * 16, &data);
            assert_eq!(driver.read_disk(round * 16, 8192), data);
            let mut stored = vec![0; 8192];
            file.read_exact_at(&mut stored, round * 8192).unwrap();
            assert_eq!(stored, data);
        }
        assert_eq!(driver.disk(4, 0, 0), 0, "flushed");
        assert_eq!(driver.disk(0, 2048, 512), 1, "beyond the end");
        driver.turn_off();
    }
}

#[test]
fn a_dry_run_is_taken_back_with_memory_and_disk_and_repeated() {
    if !can_run() {
        return;
    }
    let (disk, file) = disk_of(1 << 20);
    let ram = ram_file();
    let mut driver = Driver::new(block(&disk, IoMode::Ring), 1, ram.try_clone().unwrap());
    driver.write_disk(8, &[2; 4096]);
    driver.guest.machine.pause().unwrap();
    let state = driver.guest.machine.save().unwrap();
    let position = driver.position.clone();
    for round in 0..3_u8 {
        disk.lock().unwrap().push(tempfile::tempfile().unwrap(), Durability::Ephemeral).unwrap();
        driver.guest.machine.ram().replace(&ram, Mapping::Private).unwrap();
        driver.guest.machine.resume().unwrap();
        // A whole cluster, a part of one, and one that was never written.
        driver.write_disk(8, &[10 + round; 4096]);
        driver.write_disk(17, &[20 + round; 512]);
        assert_eq!(driver.disk(4, 0, 0), 0);
        assert_eq!(driver.read_disk(8, 4096), vec![10 + round; 4096]);
        assert_eq!(driver.read_disk(16, 1536), [vec![1; 512], vec![20 + round; 512], vec![1; 512]].concat());
        driver.guest.machine.pause().unwrap();
        disk.lock().unwrap().discard_top().unwrap();
        driver.guest.machine.ram().replace(&ram, Mapping::Private).unwrap();
        driver.guest.machine.load(&state).unwrap();
        driver.position = position.clone();
        assert_eq!(driver.guest.machine.lifecycle(), Lifecycle::Paused);
    }
    driver.guest.machine.resume().unwrap();
    assert_eq!(driver.read_disk(8, 4096), vec![2; 4096]);
    assert_eq!(driver.read_disk(16, 1536), vec![1; 1536]);
    driver.write_disk(17, &[3; 512]);
    let mut stored = vec![0; 512];
    file.read_exact_at(&mut stored, 17 * 512).unwrap();
    assert_eq!(stored, [3; 512]);
    driver.turn_off();
}

#[test]
fn pauses_in_the_middle_of_requests_lose_none() {
    if !can_run() {
        return;
    }
    let (disk, _file) = disk_of(1 << 20);
    let mut driver = Driver::new(block(&disk, IoMode::Ring), 1, ram_file());
    for round in 0..30_u8 {
        let mut header = 1_u64.to_le_bytes().to_vec();
        header.extend_from_slice(&u64::from(round).to_le_bytes());
        driver.put(HEADER, &header);
        driver.put(DATA, &[round; 512]);
        driver.offer(0, &[(HEADER, 16, false), (DATA, 512, false), (STATUS, 1, true)]);
        driver.begin(WRITE, WINDOW + 0x50, 0);
        // The pause comes before, while or after the guest notifies.
        std::thread::sleep(Duration::from_micros(u64::from(round) * 20));
        driver.guest.machine.pause().unwrap();
        driver.guest.machine.resume().unwrap();
        driver.take(0);
        assert_eq!(driver.read_disk(u64::from(round), 512), vec![round; 512]);
    }
    driver.turn_off();
}

#[test]
fn memory_goes_back_to_the_host() {
    if !can_run() {
        return;
    }
    // A file in memory: blocks of it are pages of the host.
    let ram = File::from(rustix::fs::memfd_create("guest-ram", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    ram.set_len(RAM_BYTES).unwrap();
    let device = Balloon::new(256 << 20, Mapping::Shared).unwrap();
    let control = device.control();
    let mut driver = Driver::new(Box::new(device), 4, ram.try_clone().unwrap());
    control.set_target(2 << 20).unwrap();
    driver.run(AWAIT, 0, 0);
    assert_eq!(driver.get(0x100), 512, "pages that the host asks for");
    driver.put(8 << 20, &vec![7; 2 << 20]);
    let before = ram.metadata().unwrap().blocks();
    let pages: Vec<u8> = (2048..2560_u32).flat_map(u32::to_le_bytes).collect();
    driver.put(DATA, &pages);
    driver.request(0, &[(DATA, 2048, false)]);
    driver.set(0x104, 512);
    assert_eq!(control.actual_bytes(), 2 << 20);
    // Requests took a few pages of their own meanwhile.
    let given = (before - ram.metadata().unwrap().blocks()) * 512;
    assert!(((2 << 20) - (64 << 10)..=2 << 20).contains(&given), "{given}");
    assert_eq!(driver.bytes(8 << 20, 16), [0; 16]);
    driver.turn_off();
}

#[test]
fn a_console_is_written_and_typed_at() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("console.sock");
    let options = ConsoleOptions { listener: Some(UnixListener::bind(&path).unwrap()), ..ConsoleOptions::default() };
    let mut driver = Driver::new(Box::new(Console::new(options).unwrap()), 2, ram_file());
    let mut client = UnixStream::connect(&path).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    driver.put(DATA, b"login: ");
    driver.request(1, &[(DATA, 7, false)]);
    let mut text = [0; 7];
    client.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"login: ");
    driver.offer(0, &[(DATA + 4096, 64, true)]);
    driver.set(0x50, 0);
    client.write_all(b"root\n").unwrap();
    assert_eq!(driver.take(0), 5);
    assert_eq!(driver.bytes(DATA + 4096, 5), b"root\n");
    driver.turn_off();
}
