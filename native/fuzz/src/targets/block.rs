//! The block device on disks of one or two layers, with and without limits, through a ring or directly, and on a host that has
//! room for what is written or not.

use super::memory_file;
use crate::guest::Guest;
use crate::room::Room;
use crate::script::Script;
use crate::story::{self, Direction, Subject};
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::block::{Block, BlockControl, BlockOptions, IoMode};
use fluxvm_engine::virtio::disk::{Disk, Durability, SECTOR_BYTES};
use fluxvm_engine::virtio::limiter::{Limits, Rate};
use std::fs::File;

/// Sectors of the disk: not a whole number of clusters.
const SECTORS: u64 = 8 * 33 + 3;
const WRITE: u32 = 1;
/// Kinds of requests, and two that nobody knows.
const KINDS: [u32; 8] = [0, 1, 4, 8, 11, 13, 2, u32::MAX];

/// Longer than the first pauses between tries of what waits for room.
const A_WHILE_MS: u16 = 30;

struct Drive {
    kind: u8,
    /// Where the disk, or its layer, has little room.
    room: Option<Room>,
    control: Option<BlockControl>,
}

impl Drive {
    fn new(kind: u8) -> Self {
        let room = if kind & 7 == 6 { Room::new() } else { None };
        Self { kind, room, control: None }
    }

    fn read_only(&self) -> bool {
        self.kind & 7 == 7
    }

    fn file(&self, bytes: u64) -> File {
        self.room.as_ref().map_or_else(|| memory_file(bytes), |room| room.file(bytes))
    }

    fn waiting(&self) -> u32 {
        self.control.as_ref().map_or(0, BlockControl::waiting_for_room)
    }
}

impl Subject for Drive {
    fn device(&mut self) -> Box<dyn VirtioDevice> {
        let is_layered = self.kind & 8 != 0 && !self.read_only();
        let bytes = SECTORS * SECTOR_BYTES;
        let file = if is_layered { memory_file(bytes) } else { self.file(bytes) };
        let mut disk = Disk::open(file, self.read_only()).expect("a disk");
        if is_layered {
            let durability = if self.kind & 16 == 0 { Durability::Durable } else { Durability::Ephemeral };
            disk.push(self.file(0), durability).expect("a layer");
        }
        let rate = |per_second| Some(Rate { per_second, burst: per_second >> 12 });
        let limits = match self.kind & 0x60 {
            0x60 => Limits { bytes: rate(1 << 28), operations: rate(1 << 16) },
            _ => Limits::default(),
        };
        let mode = if self.kind & 0x80 == 0 { IoMode::Direct } else { IoMode::Ring };
        let options = BlockOptions { serial: "fuzz".to_owned(), limits, mode };
        let block = Block::new(disk.shared(), &options).expect("a device");
        self.control = Some(block.control());
        Box::new(block)
    }

    fn direction(&self, _: usize) -> Direction {
        Direction::Both
    }

    fn request(&mut self, _: usize, script: &mut Script<'_>) -> Vec<u8> {
        let kind = script.choose(&KINDS);
        let sector = if script.one_in(8) { script.number() } else { script.below(SECTORS) };
        let mut request = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        match kind {
            11 | 13 => {
                for _ in 0..script.below(4) {
                    let sector = if script.one_in(8) { script.number() } else { script.below(SECTORS) };
                    let count = if script.one_in(8) { script.number() as u32 } else { script.below(40) as u32 };
                    request.extend(sector.to_le_bytes());
                    request.extend(count.to_le_bytes());
                    request.extend((script.below(3) as u32).to_le_bytes());
                }
            }
            WRITE => request.resize(16 + script.below(10) as usize * SECTOR_BYTES as usize, script.u8()),
            _ => (),
        }
        if script.one_in(32) {
            request.truncate(script.below(17) as usize);
        }
        request
    }

    fn host(&mut self, script: &mut Script<'_>, guest: &mut Guest) {
        let Some(room) = &self.room else { return };
        match script.below(4) {
            0 => room.make(),
            1 => room.leave(0),
            2 => room.leave(script.below(8)),
            _ if self.waiting() > 0 => guest.wait(A_WHILE_MS),
            _ => (),
        }
    }

    fn check(&mut self, guest: &mut Guest) {
        assert_eq!(self.waiting(), 0, "something waits that a reset has forgotten");
        let status = guest.room(1);
        let request = |kind: u32| [&kind.to_le_bytes()[..], &[0; 4], &5_u64.to_le_bytes()].concat();
        if !self.read_only() {
            let header = guest.give(&request(WRITE));
            let data = guest.give(&[0x5A; 3 * SECTOR_BYTES as usize]);
            if let Some(room) = &self.room {
                room.leave(0);
                let head = guest.push(0, &[header, data, status], false);
                guest.kick(0);
                guest.settle();
                room.make();
                assert_eq!(guest.until("a write for which there is room", |guest| guest.used(0)), (head, 1));
                assert_eq!(self.waiting(), 0, "something waits although there is room");
            } else {
                assert_eq!(guest.request(0, &[header, data, status]), 1);
            }
            assert_eq!(guest.bytes(status), [0], "a write was refused");
            let header = guest.give(&request(4));
            assert_eq!(guest.request(0, &[header, status]), 1);
            assert_eq!(guest.bytes(status), [0], "a flush was refused");
        }
        let header = guest.give(&request(0));
        let room = guest.room(3 * SECTOR_BYTES as u32);
        assert_eq!(guest.request(0, &[header, room, status]), 3 * SECTOR_BYTES as u32 + 1);
        let wanted = if self.read_only() { 0 } else { 0x5A };
        assert!(guest.bytes(room).iter().all(|byte| *byte == wanted), "a disk lost what was written");
    }
}

/// Runs one input: its first byte says what the disk is made of.
pub fn run(input: &[u8]) {
    let Some((kind, story)) = input.split_first() else { return };
    story::tell(story, &mut Drive::new(*kind));
}
