//! Devices on this host's KVM: a guest of our own does what its host tells it, so that registers, notifications and interrupts
//! go the way of every guest, and snapshots meet disks.

#[allow(dead_code, reason = "each test uses a part of the harness")]
mod guest;

use fluxvm_engine::machine::Lifecycle;
use fluxvm_engine::memory::Mapping;
use fluxvm_engine::virtio::balloon::Balloon;
use fluxvm_engine::virtio::block::{Block, BlockOptions, IoMode};
use fluxvm_engine::virtio::console::{Console, ConsoleOptions};
use fluxvm_engine::virtio::disk::{Disk, Durability, SharedDisk};
use fluxvm_engine::virtio::limiter::{Limits, Rate};
use guest::driver::{AWAIT, BUFFERS, Driver, PATIENCE, WINDOW, WRITE};
use guest::{RAM_BYTES, can_run, ram_file};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

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

/// Pages of a file that are not on the disk of the host yet; nothing where the kernel does not tell.
fn pages_to_be_written(file: &File) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let whole = [0_u64; 2];
    // Cached, dirty, being written, and two of what was dropped.
    let mut found = [0_u64; 5];
    // SAFETY: the kernel reads two numbers and writes five.
    let status = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), whole.as_ptr(), found.as_mut_ptr(), 0) };
    (status == 0).then_some(found[1] + found[2])
}

#[test]
fn a_flush_brings_what_was_written_to_the_disk_of_the_host() {
    if !can_run() {
        return;
    }
    for mode in [IoMode::Ring, IoMode::Direct] {
        let (disk, file) = disk_of(1 << 20);
        file.sync_all().unwrap();
        if pages_to_be_written(&file) != Some(0) {
            return eprintln!("missing host capability: a kernel that tells what a file has beside the disk (6.5)");
        }
        let mut driver = Driver::new(block(&disk, mode), 1, ram_file());
        driver.write_disk(8, &[2; 4096]);
        assert_ne!(pages_to_be_written(&file), Some(0), "a write alone waits for no disk");
        assert_eq!(driver.disk(4, 0, 0), 0);
        assert_eq!(pages_to_be_written(&file), Some(0));

        let layer = tempfile::tempfile().unwrap();
        driver.guest.machine.pause().unwrap();
        disk.lock().unwrap().push(layer.try_clone().unwrap(), Durability::Durable).unwrap();
        driver.guest.machine.resume().unwrap();
        driver.write_disk(16, &[3; 8192]);
        assert_ne!(pages_to_be_written(&layer), Some(0));
        assert_eq!(driver.disk(4, 0, 0), 0);
        assert_eq!(pages_to_be_written(&layer), Some(0), "data and map");
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
fn what_a_limit_holds_back_waits_for_the_end_of_a_pause_too() {
    if !can_run() {
        return;
    }
    let (disk, file) = disk_of(1 << 20);
    let operations = Some(Rate { per_second: 1, burst: 1 });
    let options = BlockOptions { limits: Limits { bytes: None, operations }, ..BlockOptions::default() };
    let mut driver = Driver::new(Box::new(Block::new(disk, &options).unwrap()), 1, ram_file());
    driver.write_disk(0, &[2; 512]);
    driver.put(HEADER, &[1_u64.to_le_bytes(), 1_u64.to_le_bytes()].concat());
    driver.put(DATA, &[3; 512]);
    driver.put(STATUS, &[0xEE]);
    driver.offer(0, &[(HEADER, 16, false), (DATA, 512, false), (STATUS, 1, true)]);
    driver.begin(WRITE, WINDOW + 0x50, 0);
    std::thread::sleep(Duration::from_millis(50));
    driver.guest.machine.pause().unwrap();
    let look = |driver: &Driver| {
        let mut stored = [0; 512];
        file.read_exact_at(&mut stored, 512).unwrap();
        (driver.bytes(STATUS, 1), stored)
    };
    let before = look(&driver);
    std::thread::sleep(Duration::from_millis(1300));
    assert!(look(&driver) == before, "memory or disk changed while everything stood still");
    driver.guest.machine.resume().unwrap();
    driver.take(0);
    assert!(look(&driver) == (vec![0], [3; 512]));
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
