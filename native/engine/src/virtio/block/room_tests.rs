//! A host without room for what a driver writes: requests wait, nothing else does, and nothing is lost.

use super::tests::{DISCARD, DISK_BYTES, FEATURE_FLUSH, FLUSH, OK, READ, Setup, WRITE, WRITE_ZEROES, device};
use super::{Block, BlockOptions, IoMode};
use crate::virtio::disk::{Disk, Durability};
use crate::virtio::limiter::Limits;
use crate::virtio::testing::{Piece, TestGuest, rounds, torment};
use crate::virtio::{StateError, StateReader, StateWriter, VirtioDevice};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const CLUSTER: usize = 4096;
const CLUSTER_SECTORS: u64 = 8;
const NOT_ANSWERED: u8 = 0xEE;
/// Longer than some of the pauses between tries.
const A_WHILE: Duration = Duration::from_millis(60);

/// A disk whose file, or whose layer over another file, lies where there is not much room.
struct Room {
    setup: Setup,
    /// What else takes room there.
    filler: File,
    /// What sectors are that nobody wrote.
    before: u8,
    mode: IoMode,
}

impl Room {
    /// Nothing where tests may not mount.
    fn new(mode: IoMode, is_layered: bool, features: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("missing capability: root");
            return None;
        }
        // Its files stay for as long as they are open.
        let folder = tempfile::tempdir().expect("a folder");
        mount("small", folder.path(), "tmpfs", MountFlags::empty(), Some(c"size=1536k")).expect("mounted");
        let open = |name| {
            File::options()
                .read(true)
                .append(name == "filler")
                .write(true)
                .create_new(true)
                .open(folder.path().join(name))
        };
        let (small, filler) = (open("small"), open("filler"));
        unmount(folder.path(), UnmountFlags::DETACH).expect("unmounted");
        let (small, filler) = (small.expect("a file"), filler.expect("a file"));
        let file =
            if is_layered { tempfile::tempfile().expect("a file") } else { small.try_clone().expect("its twin") };
        let before = if is_layered { 0xA5 } else { 0 };
        file.set_len(DISK_BYTES).expect("a size");
        if is_layered {
            file.write_all_at(&vec![before; DISK_BYTES as usize], 0).expect("written");
        }
        let mut disk = Disk::open(file.try_clone().expect("its twin"), false).expect("a disk");
        if is_layered {
            disk.push(small.try_clone().expect("its twin"), Durability::Durable).expect("a layer");
        }
        let disk = disk.shared();
        let device = device(&disk, mode, Limits::default());
        let control = device.control();
        let guest = TestGuest::running_with(device, features);
        // What the tests look into is what is written.
        Some(Self { setup: Setup { guest, disk, file: small, control }, filler, before, mode })
    }

    fn each(is_layered: &[bool], mut test: impl FnMut(Self)) {
        for mode in [IoMode::Ring, IoMode::Direct] {
            for is_layered in is_layered {
                Self::new(mode, *is_layered, u64::MAX).into_iter().for_each(&mut test);
            }
        }
    }

    fn fill(&self) {
        while (&self.filler).write(&[1; CLUSTER]).is_ok() {}
    }

    /// All but so many bytes.
    fn fill_but(&self, bytes: u64) {
        self.fill();
        self.filler.set_len(self.filler.metadata().expect("a size").len() - bytes).expect("smaller");
    }

    fn make_room(&self) {
        self.filler.set_len(0).expect("empty");
    }

    /// Offers to write, without waiting.
    fn offer(&mut self, sector: u64, data: &[u8]) -> Piece {
        let data = self.setup.guest.give(data);
        let status = self.setup.push(WRITE, sector, &[data]);
        self.setup.guest.kick(0);
        status
    }

    /// Reads without using memory again of which something waits.
    fn peek(&mut self, sector: u64, sectors: u64) -> Vec<u8> {
        let room = self.setup.guest.room((sectors * 512) as u32);
        assert_eq!(self.setup.request(READ, sector, &[room]).0, OK);
        self.setup.guest.bytes(room)
    }

    fn flush(&mut self) -> u8 {
        self.setup.request(FLUSH, 0, &[]).0
    }

    fn until_waiting(&mut self, count: u32) {
        let control = self.setup.control.clone();
        self.setup.guest.until("requests that wait", |_| control.waiting_for_room() == count);
    }

    fn status(&self, status: Piece) -> u8 {
        self.setup.guest.bytes(status)[0]
    }

    /// Waits until so many are answered, and that none waits then.
    fn until_answered(&mut self, count: usize) {
        for _ in 0..count {
            self.setup.guest.wait_used(0);
        }
        assert_eq!(self.setup.control.waiting_for_room(), 0);
    }
}

#[test]
fn writes_wait_for_room_while_others_go_on() {
    Room::each(&[false, true], |mut room| {
        room.setup.write(0, &[1; CLUSTER]);
        assert_eq!(room.flush(), OK);
        room.fill();
        let whole = room.offer(100 * CLUSTER_SECTORS, &[2; CLUSTER]);
        // In a layer the rest of the cluster has to be copied first.
        let part = room.offer(50 * CLUSTER_SECTORS + 1, &[3; 512]);
        room.until_waiting(2);
        assert_eq!(room.peek(100 * CLUSTER_SECTORS, 8), [room.before; CLUSTER]);
        let data = room.setup.guest.give(&[4; CLUSTER]);
        assert_eq!(room.setup.request(WRITE, 0, &[data]), (OK, 1), "it needs no room");
        assert_eq!((room.flush(), room.peek(0, 8)), (OK, vec![4; CLUSTER]));
        std::thread::sleep(A_WHILE);
        assert_eq!((room.status(whole), room.status(part)), (NOT_ANSWERED, NOT_ANSWERED));
        assert!(room.setup.guest.used(0).is_none() && room.setup.control.waiting_for_room() == 2);
        room.make_room();
        room.until_answered(2);
        assert_eq!((room.status(whole), room.status(part)), (OK, OK));
        assert_eq!(room.flush(), OK);
        let before = room.before;
        let around = [&[before; 512][..], &[3; 512], &[before; 512]].concat();
        let expected = (vec![2; CLUSTER], around);
        assert_eq!((room.peek(800, 8), room.peek(400, 3)), expected);
        if before != 0 {
            // As the next one finds the layer.
            let mut disk = Disk::open(tempfile::tempfile().map(sized).expect("a file"), false).expect("a disk");
            disk.push_existing(room.setup.file.try_clone().expect("its twin")).expect("the layer");
            assert_eq!(disk.top_bytes(), 3 * CLUSTER as u64);
        }
    });
}

fn sized(file: File) -> File {
    file.set_len(DISK_BYTES).expect("a size");
    file
}

#[test]
fn as_many_as_there_is_room_for_are_done_and_the_rest_wait_on() {
    Room::each(&[false], |mut room| {
        room.fill();
        let statuses: Vec<Piece> =
            (0..200).map(|cluster| room.offer(cluster * CLUSTER_SECTORS, &[7; CLUSTER])).collect();
        room.until_waiting(200);
        room.fill_but(10 * CLUSTER as u64);
        room.until_waiting(190);
        assert_eq!(statuses.iter().filter(|status| room.status(**status) == OK).count(), 10);
        room.make_room();
        room.until_answered(200);
        assert!(statuses.iter().all(|status| room.status(*status) == OK));
        assert!(room.peek(0, 1600).iter().all(|byte| *byte == 7));
    });
}

#[test]
fn what_waits_holds_up_no_pause_and_is_in_the_state() {
    Room::each(&[false, true], |mut room| {
        room.fill();
        let status = room.offer(90 * CLUSTER_SECTORS + 2, &[5; 512]);
        room.until_waiting(1);
        for _ in 0..3 {
            room.setup.guest.quiesce();
            assert_eq!(room.setup.control.waiting_for_room(), 1);
            std::thread::sleep(A_WHILE);
            assert!(room.setup.guest.used(0).is_none(), "something moved while everything stood still");
            room.setup.guest.reactor.resume();
        }
        let Room { setup, filler, before, mode } = room;
        let Setup { guest, disk, file, .. } = setup;
        let block = device(&disk, mode, Limits::default());
        let control = block.control();
        let guest = guest.restored(block);
        let mut room = Room { setup: Setup { guest, disk, file, control }, filler, before, mode };
        room.until_waiting(1);
        assert_eq!(room.status(status), NOT_ANSWERED);
        room.make_room();
        room.until_answered(1);
        assert_eq!((room.status(status), room.peek(722, 1)), (OK, vec![5; 512]));
    });
}

#[test]
fn zeros_wait_for_the_room_that_they_need() {
    Room::each(&[false, true], |mut room| {
        room.fill();
        // Without unmapping; and in a layer the rest of the cluster is copied first.
        let range = [&(60 * CLUSTER_SECTORS + 1).to_le_bytes()[..], &3_u32.to_le_bytes(), &[0; 4]].concat();
        let kinds = if room.before == 0 { vec![WRITE_ZEROES] } else { vec![WRITE_ZEROES, DISCARD] };
        for kind in kinds {
            room.fill();
            let list = room.setup.guest.give(&range);
            let status = room.setup.push(kind, 0, &[list]);
            room.setup.guest.kick(0);
            room.until_waiting(1);
            std::thread::sleep(A_WHILE);
            assert_eq!((room.status(status), room.peek(481, 1)), (NOT_ANSWERED, vec![room.before; 512]));
            room.make_room();
            room.until_answered(1);
            assert_eq!((room.status(status), room.peek(481, 3)), (OK, vec![0; 1536]));
            assert_eq!(room.peek(484, 1), [room.before; 512]);
            // For the next kind.
            room.setup.guest.quiesce();
            let mut disk = room.setup.disk.lock().expect("a disk");
            if room.before != 0 {
                disk.discard_top().expect("a layer");
                room.setup.file.set_len(0).expect("empty");
                disk.push(room.setup.file.try_clone().expect("its twin"), Durability::Durable).expect("a layer");
            }
            drop(disk);
            room.setup.guest.reactor.resume();
        }
    });
}

#[test]
fn a_flush_waits_for_the_room_of_the_map() {
    Room::each(&[true], |mut room| {
        room.setup.write(16, &[3; 2 * CLUSTER]);
        room.fill();
        let status = room.setup.push(FLUSH, 0, &[]);
        room.setup.guest.kick(0);
        room.until_waiting(1);
        std::thread::sleep(A_WHILE);
        assert_eq!((room.status(status), room.peek(16, 1)), (NOT_ANSWERED, vec![3; 512]));
        room.make_room();
        room.until_answered(1);
        assert_eq!(room.status(status), OK);
        let mut again = Disk::open(tempfile::tempfile().map(sized).expect("a file"), false).expect("a disk");
        again.push_existing(room.setup.file.try_clone().expect("its twin")).expect("the layer");
        assert_eq!(again.top_bytes(), 2 * CLUSTER as u64);
    });
}

#[test]
fn a_write_of_a_driver_that_cannot_flush_waits_for_its_map() {
    for mode in [IoMode::Ring, IoMode::Direct] {
        let Some(mut room) = Room::new(mode, true, !FEATURE_FLUSH) else { return };
        // The data has room, and the map has none.
        room.fill_but(CLUSTER as u64);
        let status = room.offer(16, &[3; CLUSTER]);
        room.until_waiting(1);
        std::thread::sleep(A_WHILE);
        assert_eq!(room.status(status), NOT_ANSWERED);
        room.make_room();
        room.until_answered(1);
        assert_eq!(room.status(status), OK);
        let mut again = Disk::open(tempfile::tempfile().map(sized).expect("a file"), false).expect("a disk");
        again.push_existing(room.setup.file.try_clone().expect("its twin")).expect("the layer");
        assert_eq!(again.top_bytes(), CLUSTER as u64);
    }
}

#[test]
fn a_reset_forgets_what_waits() {
    Room::each(&[false, true], |mut room| {
        room.fill();
        let status = room.offer(8, &[1; 512]);
        room.until_waiting(1);
        room.setup.guest.start(u64::MAX);
        assert_eq!(room.setup.control.waiting_for_room(), 0);
        room.make_room();
        std::thread::sleep(A_WHILE);
        assert_eq!(room.status(status), NOT_ANSWERED);
        assert_eq!(room.peek(8, 1), [room.before; 512]);
        room.setup.write(8, &[2; 512]);
        assert_eq!(room.peek(8, 1), [2; 512]);
    });
}

#[test]
fn no_more_wait_than_the_queue_has_however_often_one_is_offered() {
    Room::each(&[true], |mut room| {
        room.fill();
        let status = room.offer(8, &[1; 512]);
        room.until_waiting(1);
        for count in 2..=300 {
            // The same chain, which the device has.
            room.setup.guest.offer(0, 0);
            room.setup.guest.kick(0);
            room.until_waiting(count.min(256));
        }
        std::thread::sleep(A_WHILE);
        assert_eq!((room.setup.control.waiting_for_room(), room.setup.guest.mmio.fault()), (256, None));
        room.make_room();
        room.until_answered(300);
        assert_eq!((room.status(status), room.peek(8, 1)), (OK, vec![1; 512]));
    });
}

#[test]
fn a_hostile_driver_gets_nowhere_where_there_is_no_room() {
    Room::each(&[false, true], |mut room| {
        room.fill();
        torment(&mut room.setup.guest, 31, rounds(1000));
        room.make_room();
        room.setup.write(9, &[6; 512]);
        assert_eq!((room.flush(), room.setup.read(9, 1)), (OK, vec![6; 512]));
    });
}

#[test]
fn states_with_and_without_requests_that_wait_are_read_and_impossible_ones_refused() {
    let disk = Disk::open(sized(tempfile::tempfile().expect("a file")), false).expect("a disk").shared();
    let mut block = Block::new(disk, &BlockOptions::default()).expect("a device");
    let control = block.control();
    let mut load = |version: u32, numbers: &[u16]| {
        let mut state = StateWriter::new();
        state.u32(version);
        state.u64(DISK_BYTES);
        numbers.iter().for_each(|number| state.u16(*number));
        let bytes = state.finish();
        let mut reader = StateReader::new(&bytes);
        (block.load(&mut reader).and_then(|()| reader.end()), control.waiting_for_room())
    };
    assert_eq!(load(1, &[]), (Ok(()), 0));
    assert_eq!(load(2, &[2, 7, 255]), (Ok(()), 2));
    assert_eq!(load(2, &[3, 7, 255]), (Err(StateError::Short), 2), "unchanged");
    assert!(matches!(load(2, &[257; 258]), (Err(StateError::Value(_)), 2)));
    assert!(matches!(load(3, &[0]), (Err(StateError::Version { found: 3, wanted: 2 }), 2)));
    assert_eq!(load(2, &[0]), (Ok(()), 0));
}
