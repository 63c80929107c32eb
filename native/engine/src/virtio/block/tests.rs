//! The block device as its driver sees it, with a file behind that the tests look into.

use super::{Block, BlockControl, BlockOptions, IoMode};
use crate::virtio::disk::{Disk, Durability, SharedDisk};
use crate::virtio::limiter::{Limits, Rate};
use crate::virtio::testing::{Dice, Piece, TestGuest, rounds, torment};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

pub(super) const DISK_BYTES: u64 = (1 << 20) + 1536;
pub(super) const OK: u8 = 0;
pub(super) const FAILED: u8 = 1;
pub(super) const UNSUPPORTED: u8 = 2;

pub(super) const READ: u32 = 0;
pub(super) const WRITE: u32 = 1;
pub(super) const FLUSH: u32 = 4;
pub(super) const IDENTIFY: u32 = 8;
pub(super) const DISCARD: u32 = 11;
pub(super) const WRITE_ZEROES: u32 = 13;

pub(super) const FEATURE_FLUSH: u64 = 1 << 9;

pub(super) struct Setup {
    pub(super) guest: TestGuest,
    pub(super) disk: SharedDisk,
    pub(super) file: File,
    pub(super) control: BlockControl,
}

fn setup_with(read_only: bool, mode: IoMode, limits: Limits, features: u64) -> Setup {
    let file = tempfile::tempfile().expect("a file");
    file.write_all_at(&vec![0xA5; DISK_BYTES as usize], 0).expect("written");
    let disk = Disk::open(file.try_clone().expect("its twin"), read_only).expect("a disk").shared();
    let device = device(&disk, mode, limits);
    let control = device.control();
    let guest = TestGuest::running_with(device, features);
    Setup { guest, disk, file, control }
}

pub(super) fn device(disk: &SharedDisk, mode: IoMode, limits: Limits) -> Box<Block> {
    let options = BlockOptions { serial: "disk-of-a-test".to_owned(), limits, mode };
    Box::new(Block::new(disk.clone(), &options).expect("a device"))
}

pub(super) fn setup(mode: IoMode) -> Setup {
    setup_with(false, mode, Limits::default(), u64::MAX)
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

impl Setup {
    /// Offers a request and tells where its status will be.
    pub(super) fn push(&mut self, kind: u32, sector: u64, data: &[Piece]) -> Piece {
        let head = self.guest.give(&header(kind, sector));
        let status = self.guest.room(1);
        self.guest.memory_fill(status, 0xEE);
        let pieces = [&[head], data, &[status]].concat();
        self.guest.push_indirect(0, &pieces);
        status
    }

    pub(super) fn request(&mut self, kind: u32, sector: u64, data: &[Piece]) -> (u8, u32) {
        let status = self.push(kind, sector, data);
        self.guest.kick(0);
        let (_, bytes) = self.guest.wait_used(0);
        (self.guest.bytes(status)[0], bytes)
    }

    pub(super) fn read(&mut self, sector: u64, sectors: u64) -> Vec<u8> {
        self.guest.rewind();
        let room = self.guest.room((sectors * 512) as u32);
        assert_eq!(self.request(READ, sector, &[room]), (OK, (sectors * 512) as u32 + 1));
        self.guest.bytes(room)
    }

    pub(super) fn write(&mut self, sector: u64, data: &[u8]) {
        self.guest.rewind();
        let data = self.guest.give(data);
        assert_eq!(self.request(WRITE, sector, &[data]), (OK, 1));
    }

    pub(super) fn zero(&mut self, kind: u32, ranges: &[(u64, u32, u32)]) -> u8 {
        let list: Vec<u8> = ranges
            .iter()
            .flat_map(|(sector, count, flags)| {
                [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
            })
            .collect();
        let list = self.guest.give(&list);
        self.request(kind, 0, &[list]).0
    }

    fn on_disk(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.file.read_exact_at(&mut data, offset).expect("read");
        data
    }
}

#[test]
fn the_driver_learns_what_disk_it_is() {
    let setup = setup(IoMode::Ring);
    assert_eq!(u64::from_le_bytes(setup.guest.config(0)), DISK_BYTES / 512);
    assert_eq!(u32::from_le_bytes(setup.guest.config(12)), 254, "segments");
    assert_eq!(u32::from_le_bytes(setup.guest.config(20)), 512, "bytes of a block");
    assert_eq!(setup.guest.config::<4>(60), [0; 4], "nothing behind the end");
}

#[test]
fn what_is_written_is_in_the_file_and_read_back() {
    for mode in [IoMode::Ring, IoMode::Direct] {
        let mut setup = setup(mode);
        let data = Dice::new(5).bytes(8192);
        setup.write(3, &data);
        assert_eq!(setup.on_disk(3 * 512, 8192), data);
        assert_eq!(setup.on_disk(2 * 512, 512), [0xA5; 512]);
        assert_eq!(setup.read(3, 16), data);
        assert_eq!(setup.read(DISK_BYTES / 512 - 1, 1), [0xA5; 512]);
    }
}

#[test]
fn data_is_gathered_from_and_scattered_into_many_buffers() {
    for mode in [IoMode::Ring, IoMode::Direct] {
        let mut setup = setup(mode);
        let data = Dice::new(6).bytes(4096);
        let pieces: Vec<Piece> = data.chunks(100).map(|chunk| setup.guest.give(chunk)).collect();
        assert_eq!(setup.request(WRITE, 8, &pieces), (OK, 1));
        assert_eq!(setup.on_disk(4096, 4096), data);
        let rooms: Vec<Piece> = [1, 3000, 1095].map(|bytes| setup.guest.room(bytes)).to_vec();
        assert_eq!(setup.request(READ, 8, &rooms), (OK, 4097));
        let back: Vec<u8> = rooms.iter().flat_map(|room| setup.guest.bytes(*room)).collect();
        assert_eq!(back, data);
    }
}

#[test]
fn header_and_status_may_share_buffers_with_data() {
    let mut setup = setup(IoMode::Ring);
    let data = [7; 512];
    let both = setup.guest.give(&[&header(WRITE, 4)[..], &data].concat());
    let status = setup.guest.room(1);
    assert_eq!(setup.guest.request(0, &[both, status]), 1);
    assert_eq!(setup.on_disk(4 * 512, 512), data);
    let ask = setup.guest.give(&header(READ, 4));
    let room = setup.guest.room(513);
    assert_eq!(setup.guest.request(0, &[ask, room]), 513);
    assert_eq!(setup.guest.bytes(room), [&data[..], &[OK]].concat());
}

#[test]
fn requests_beyond_the_disk_or_of_odd_sizes_fail_and_change_nothing() {
    let mut setup = setup(IoMode::Ring);
    let sectors = DISK_BYTES / 512;
    for (kind, sector, bytes) in [
        (WRITE, sectors, 512),
        (WRITE, sectors - 1, 1024),
        (WRITE, u64::MAX, 512),
        (WRITE, u64::MAX / 512, 512),
        (WRITE, 0, 511),
        (WRITE, 0, 0),
        (READ, sectors, 512),
        (READ, 0, 513),
        (READ, u64::MAX - 1, 1024),
    ] {
        let data = setup.guest.give(&vec![1; bytes]);
        let data = Piece { writable: kind == READ, bytes: bytes as u32, ..data };
        assert_eq!(setup.request(kind, sector, &[data]), (FAILED, 1), "{kind} {sector} {bytes}");
    }
    assert!(setup.on_disk(0, DISK_BYTES as usize).iter().all(|byte| *byte == 0xA5));
}

#[test]
fn a_request_that_nobody_knows_is_not_supported() {
    let mut setup = setup(IoMode::Ring);
    assert_eq!(setup.request(99, 0, &[]), (UNSUPPORTED, 1));
    assert_eq!(setup.zero(DISCARD, &[(0, 8, 1)]), UNSUPPORTED, "a flag of a discard");
    assert_eq!(setup.zero(WRITE_ZEROES, &[(0, 8, 2)]), UNSUPPORTED, "an unknown flag");
}

#[test]
fn a_chain_without_room_for_an_answer_stops_the_device() {
    let mut setup = setup(IoMode::Ring);
    for pieces in [vec![header(READ, 0)], vec![vec![0; 15]]] {
        let pieces: Vec<Piece> = pieces.iter().map(|bytes| setup.guest.give(bytes)).collect();
        setup.guest.push(0, &pieces);
        setup.guest.kick(0);
        setup.guest.wait_broken();
        setup.guest.start(u64::MAX);
    }
    assert_eq!(setup.read(0, 1), [0xA5; 512]);
}

#[test]
fn the_serial_number_is_told() {
    let mut setup = setup(IoMode::Ring);
    let room = setup.guest.room(20);
    assert_eq!(setup.request(IDENTIFY, 0, &[room]), (OK, 21));
    assert_eq!(&setup.guest.bytes(room), b"disk-of-a-test\0\0\0\0\0\0");
}

#[test]
fn a_read_only_disk_is_not_written() {
    let mut setup = setup_with(true, IoMode::Ring, Limits::default(), u64::MAX);
    assert_eq!(setup.guest.offered() & 1 << 5, 1 << 5);
    assert_eq!(setup.guest.offered() & (1 << 13 | 1 << 14), 0);
    let data = setup.guest.give(&[1; 512]);
    assert_eq!(setup.request(WRITE, 0, &[data]), (FAILED, 1));
    assert_eq!(setup.zero(DISCARD, &[(0, 8, 0)]), FAILED);
    assert_eq!(setup.request(FLUSH, 0, &[]), (OK, 1));
    assert_eq!(setup.read(0, 1), [0xA5; 512]);
}

#[test]
fn ranges_are_discarded_and_zeroed() {
    for mode in [IoMode::Ring, IoMode::Direct] {
        let mut setup = setup(mode);
        assert_eq!(setup.zero(DISCARD, &[(8, 8, 0), (32, 1, 0)]), OK);
        assert_eq!(setup.zero(WRITE_ZEROES, &[(50, 3, 0), (64, 16, 1)]), OK);
        for (sector, sectors) in [(8, 8), (32, 1), (50, 3), (64, 16)] {
            assert_eq!(setup.read(sector, sectors), vec![0; sectors as usize * 512]);
            assert_eq!(setup.read(sector - 1, 1), [0xA5; 512]);
            assert_eq!(setup.read(sector + sectors, 1), [0xA5; 512]);
        }
        let end = DISK_BYTES / 512;
        for wrong in [&[(end, 1, 0)][..], &[(0, 0, 0)], &[(0, u32::MAX, 0)], &[(u64::MAX, 8, 0)], &[(0, 1, 0); 17], &[]]
        {
            assert_eq!(setup.zero(WRITE_ZEROES, wrong), FAILED, "{wrong:?}");
        }
    }
}

#[test]
fn requests_reach_the_right_layers() {
    for mode in [IoMode::Ring, IoMode::Direct] {
        let mut setup = setup(mode);
        let mut dice = Dice::new(8);
        let mut model = vec![0xA5; DISK_BYTES as usize];
        let mut before = Vec::new();
        for round in 0..400 {
            if round % 100 == 50 {
                setup.guest.quiesce();
                let durability = if round % 200 == 50 { Durability::Durable } else { Durability::Ephemeral };
                setup
                    .disk
                    .lock()
                    .expect("a disk")
                    .push(tempfile::tempfile().expect("a file"), durability)
                    .expect("a layer");
                before.push(model.clone());
                setup.guest.reactor.resume();
            }
            let sector = dice.below(DISK_BYTES / 512);
            let sectors = (1 + dice.below(64)).min(DISK_BYTES / 512 - sector);
            let range = (sector * 512) as usize..((sector + sectors) * 512) as usize;
            match dice.below(8) {
                0 => {
                    setup.guest.rewind();
                    assert_eq!(setup.zero(WRITE_ZEROES, &[(sector, sectors as u32, dice.below(2) as u32)]), OK);
                    model[range].fill(0);
                }
                1 => assert_eq!(setup.request(FLUSH, 0, &[]), (OK, 1)),
                2..5 => {
                    let data = dice.bytes(range.len());
                    setup.write(sector, &data);
                    model[range].copy_from_slice(&data);
                }
                _ => assert!(setup.read(sector, sectors) == model[range], "round {round}"),
            }
        }
        while let Some(earlier) = before.pop() {
            setup.guest.quiesce();
            setup.disk.lock().expect("a disk").discard_top().expect("a layer");
            setup.guest.reactor.resume();
            let sectors = DISK_BYTES / 512;
            for sector in (0..sectors).step_by(512) {
                let count = 512.min(sectors - sector);
                let range = (sector * 512) as usize..((sector + count) * 512) as usize;
                assert!(setup.read(sector, count) == earlier[range]);
            }
        }
    }
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let mut setup = setup(IoMode::Ring);
    let mut expected = Vec::new();
    for number in 0..200_u64 {
        let data = setup.guest.give(&[number as u8; 512]);
        expected.push(setup.push(WRITE, number * 3, &[data]));
    }
    setup.guest.kick(0);
    for _ in 0..200 {
        setup.guest.wait_used(0);
    }
    for (number, status) in expected.into_iter().enumerate() {
        assert_eq!(setup.guest.bytes(status), [OK]);
        assert_eq!(setup.on_disk(number as u64 * 3 * 512, 512), [number as u8; 512]);
    }
}

#[test]
fn partial_writes_beside_whole_ones_in_flight_lose_nothing() {
    let mut setup = setup(IoMode::Ring);
    setup
        .disk
        .lock()
        .expect("a disk")
        .push(tempfile::tempfile().expect("a file"), Durability::Ephemeral)
        .expect("a layer");
    // Whole clusters in flight, then sectors inside of them, without waiting in between.
    for cluster in 0..20_u64 {
        let whole = setup.guest.give(&[1; 4096]);
        setup.push(WRITE, cluster * 8, &[whole]);
        let part = setup.guest.give(&[2; 512]);
        setup.push(WRITE, cluster * 8 + 3, &[part]);
    }
    setup.guest.kick(0);
    for _ in 0..40 {
        setup.guest.wait_used(0);
    }
    for cluster in 0..20_u64 {
        let expected = [&[1; 3 * 512][..], &[2; 512], &[1; 4 * 512]].concat();
        assert!(setup.read(cluster * 8, 8) == expected, "cluster {cluster}");
    }
}

#[test]
fn a_driver_that_cannot_flush_finds_its_writes_in_a_durable_layer() {
    let layer = tempfile::tempfile().expect("a file");
    let mut setup = setup_with(false, IoMode::Ring, Limits::default(), !FEATURE_FLUSH);
    let twin = layer.try_clone().expect("its twin");
    setup.guest.quiesce();
    setup.disk.lock().expect("a disk").push(twin, Durability::Durable).expect("a layer");
    setup.guest.reactor.resume();
    setup.write(16, &[3; 4096]);
    let mut again = Disk::open(setup.file.try_clone().expect("its twin"), false).expect("a disk");
    again.push_existing(layer).expect("a layer whose map is there without a flush");
    assert_eq!(again.top_bytes(), 4096);
}

#[test]
fn a_flush_makes_a_durable_layer_complete() {
    let layer = tempfile::tempfile().expect("a file");
    let mut setup = setup(IoMode::Ring);
    let twin = layer.try_clone().expect("its twin");
    setup.guest.quiesce();
    setup.disk.lock().expect("a disk").push(twin, Durability::Durable).expect("a layer");
    setup.guest.reactor.resume();
    setup.write(16, &[3; 8192]);
    assert_eq!(setup.request(FLUSH, 0, &[]), (OK, 1));
    let mut again = Disk::open(setup.file.try_clone().expect("its twin"), false).expect("a disk");
    again.push_existing(layer).expect("the layer");
    assert_eq!(again.top_bytes(), 8192);
}

#[test]
fn bandwidth_is_limited_and_everything_is_served() {
    let limits = Limits { bytes: Some(Rate { per_second: 400 << 10, burst: 16 << 10 }), operations: None };
    let mut setup = setup_with(false, IoMode::Ring, limits, u64::MAX);
    let began = Instant::now();
    for round in 0..8 {
        setup.write(round * 16, &[round as u8; 8192]);
    }
    assert!(began.elapsed() > Duration::from_millis(110), "six of eight had to wait 20 ms each");
}

#[test]
fn operations_are_limited_and_everything_is_served() {
    let limits = Limits { bytes: None, operations: Some(Rate { per_second: 50, burst: 2 }) };
    let mut setup = setup_with(false, IoMode::Ring, limits, u64::MAX);
    let began = Instant::now();
    for round in 0..8 {
        setup.write(round, &[round as u8; 512]);
    }
    assert!(began.elapsed() > Duration::from_millis(110), "six of eight had to wait 20 ms each");
}

#[test]
fn other_limits_hold_for_a_request_that_waits_under_the_old_ones() {
    let limits = Limits { bytes: Some(Rate { per_second: 1, burst: 512 }), operations: None };
    let mut setup = setup_with(false, IoMode::Ring, limits, u64::MAX);
    assert_eq!(setup.read(0, 1), [0xA5; 512]);
    let room = setup.guest.room(512);
    let status = setup.push(READ, 1, &[room]);
    setup.guest.kick(0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(setup.guest.bytes(status), [0xEE], "it has minutes to wait");
    setup.control.set_limits(Limits::default());
    setup.guest.wait_used(0);
    assert_eq!(setup.guest.bytes(status), [0]);
    setup.control.set_limits(limits);
    assert_eq!(setup.control.limits(), limits);
}

#[test]
fn an_error_of_the_host_is_an_error_of_one_request() {
    let mut setup = setup(IoMode::Ring);
    setup.file.set_len(4096).expect("cut");
    let room = setup.guest.room(512);
    assert_eq!(setup.request(READ, 100, &[room]).0, FAILED);
    assert_eq!(setup.read(0, 1), [0xA5; 512]);
}

#[test]
fn what_was_in_flight_is_done_before_everything_stands_still() {
    let mut setup = setup(IoMode::Ring);
    for number in 0..100_u64 {
        let data = setup.guest.give(&[9; 4096]);
        setup.push(WRITE, number * 8, &[data]);
    }
    setup.guest.kick(0);
    setup.guest.quiesce();
    let done = (0..100).filter(|_| setup.guest.used(0).is_some()).count();
    let written = (0..100).filter(|number| setup.on_disk(number * 4096, 4096) == [9; 4096]).count();
    assert_eq!(done, written, "each request is either done and answered, or not begun");
    std::thread::sleep(Duration::from_millis(20));
    assert!(setup.guest.used(0).is_none(), "memory changed while everything stood still");
    setup.guest.reactor.resume();
    for _ in done..100 {
        setup.guest.wait_used(0);
    }
}

#[test]
fn it_goes_on_after_a_restore_and_only_with_the_same_disk() {
    let mut setup = setup(IoMode::Ring);
    setup.write(5, &[4; 512]);
    let (disk, file) = (setup.disk.clone(), setup.file.try_clone().expect("its twin"));
    let block = device(&disk, IoMode::Direct, Limits::default());
    let control = block.control();
    let guest = setup.guest.restored(block);
    let mut setup = Setup { guest, disk, file, control };
    assert_eq!(setup.read(5, 1), [4; 512]);
    setup.guest.quiesce();
    let state = setup.guest.mmio.save();
    let smaller = tempfile::tempfile().expect("a file");
    smaller.set_len(4096).expect("a size");
    let smaller = Disk::open(smaller, false).expect("a disk").shared();
    let other = TestGuest::new(device(&smaller, IoMode::Direct, Limits::default()));
    other.quiesce();
    assert!(other.mmio.load(&state).is_err());
}

#[test]
fn a_hostile_driver_gets_nowhere() {
    for (seed, mode) in [(21, IoMode::Ring), (22, IoMode::Direct), (23, IoMode::Ring)] {
        let mut setup = setup(mode);
        if seed == 23 {
            let layer = tempfile::tempfile().expect("a file");
            setup.disk.lock().expect("a disk").push(layer, Durability::Ephemeral).expect("a layer");
        }
        torment(&mut setup.guest, seed, rounds(1500));
        setup.write(9, &[6; 512]);
        assert_eq!(setup.read(9, 1), [6; 512]);
        let size = setup.file.metadata().expect("its size").len();
        assert_eq!(size, DISK_BYTES, "the file of the disk grew");
    }
}
