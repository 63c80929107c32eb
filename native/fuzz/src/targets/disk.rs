//! Disks of layers beside a plain model of what they hold, and images and layers that are damaged.

use super::memory_file;
use crate::script::Script;
use fluxvm_engine::virtio::disk::{CLUSTER_BYTES, Disk, DiskImage, Durability, ImageFormat, SECTOR_BYTES, Source};
use std::fs::File;
use std::os::unix::fs::FileExt;

const STEPS_MAX: u32 = 200;
/// Disks up to this size are compared with a model.
const MODEL_BYTES_MAX: u64 = 4 << 20;
/// A map of a larger disk would be most of the work.
const LAYER_BYTES_MAX: u64 = 1 << 34;

/// A disk, and what it should hold: one model for each layer above the lowest, and one for that.
struct Pair {
    disk: Disk,
    models: Vec<Vec<u8>>,
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let Some(disk) = open(&mut script) else { return };
    if disk.bytes() > MODEL_BYTES_MAX {
        return look_around(disk, &mut script);
    }
    let model = read(&disk, 0, disk.bytes());
    let mut pair = Pair { disk, models: vec![model] };
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        pair.take_step(step, &mut script);
    }
    pair.compare();
}

fn open(script: &mut Script<'_>) -> Option<Disk> {
    let sectors = 1 + script.below(160);
    let raw = || {
        let file = memory_file(sectors * SECTOR_BYTES);
        file.write_all_at(b"what the lowest layer holds", 100).expect("memory");
        file
    };
    let image =
        |script: &mut Script<'_>, backing| DiskImage { file: image(script, backing), format: ImageFormat::Qcow2 };
    match script.below(4) {
        0 => Some(Disk::open(raw(), false).expect("a disk")),
        1 => Disk::open_images(vec![image(script, 0)]).ok(),
        2 => {
            let below = DiskImage { file: raw(), format: ImageFormat::Raw };
            Disk::open_images(vec![below, image(script, 1)]).ok()
        }
        _ => Disk::open_images(vec![image(script, 0), image(script, 1)]).ok(),
    }
}

/// A qcow2 image of 80 KiB in clusters of 4 KiB, and then perhaps damaged.
fn image(script: &mut Script<'_>, layers_below: u64) -> File {
    const DATA: u64 = 0x3000;
    let mut image = vec![0; 0x8000];
    let mut put = |offset: usize, value: &[u8]| image[offset..offset + value.len()].copy_from_slice(value);
    put(0, b"QFI\xFB");
    put(4, &(2 + script.below(2) as u32).to_be_bytes());
    put(8, &(layers_below * 104).to_be_bytes());
    put(20, &12_u32.to_be_bytes());
    put(24, &0x1_4000_u64.to_be_bytes());
    put(36, &1_u32.to_be_bytes());
    put(40, &0x1000_u64.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    put(0x1000, &0x8000_0000_0000_2000_u64.to_be_bytes());
    for cluster in 0..5 {
        put(0x2000 + cluster as usize * 24, &((1 << 63) | (DATA + cluster * 0x1000)).to_be_bytes());
        put((DATA + cluster * 0x1000) as usize, &[cluster as u8 + 1; 600]);
    }
    put(0x2008, &1_u64.to_be_bytes());
    script.edit(&mut image, 6);
    let file = memory_file(0);
    file.write_all_at(&image, 0).expect("memory");
    file
}

/// What lies in a range, which must be readable wherever its parts are.
fn read(disk: &Disk, offset: u64, bytes: u64) -> Vec<u8> {
    let mut runs = Vec::new();
    disk.read_runs(offset, bytes, &mut runs);
    let (mut data, mut at) = (vec![0; bytes as usize], 0);
    for run in runs {
        assert_eq!(run.offset, offset + at, "the parts of a range do not follow each other");
        let part = &mut data[at as usize..(at + run.bytes) as usize];
        if let Source::File(file, place) = run.source {
            file.read_exact_at(part, place).expect("a part of the disk lies in its file");
        }
        at += run.bytes;
    }
    assert_eq!(at, bytes, "the parts of a range are not the whole");
    data
}

/// Reads and writes a disk that is too large for a model.
fn look_around(mut disk: Disk, script: &mut Script<'_>) {
    if disk.bytes() <= LAYER_BYTES_MAX {
        disk.push(memory_file(0), Durability::Ephemeral).expect("a layer");
    }
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        let bytes = (1 + script.below(32)) * SECTOR_BYTES;
        let offset = script.number().wrapping_mul(SECTOR_BYTES) % (disk.bytes() - bytes) / SECTOR_BYTES * SECTOR_BYTES;
        if step & 1 == 0 || disk.is_read_only() {
            read(&disk, offset, bytes);
        } else {
            write(&mut disk, offset, &vec![step; bytes as usize]);
            assert!(read(&disk, offset, bytes).iter().all(|byte| *byte == step), "a write was lost");
        }
    }
}

/// Writes as the device does.
fn write(disk: &mut Disk, offset: u64, data: &[u8]) {
    let bytes = data.len() as u64;
    if disk.needs_copy_up(offset, bytes) {
        disk.copy_up(offset, bytes).expect("room");
    }
    disk.write_target().write_all_at(data, offset).expect("room");
    disk.written(offset, bytes);
}

impl Pair {
    fn take_step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0..=3 => {
                let (offset, bytes) = self.range(script);
                if !self.disk.is_read_only() {
                    write(&mut self.disk, offset as u64, &vec![step; bytes]);
                    self.top()[offset..offset + bytes].fill(step);
                }
            }
            4 | 5 => {
                let (offset, bytes) = self.range(script);
                if !self.disk.is_read_only() {
                    self.disk.zero(offset as u64, bytes as u64, script.one_in(2)).expect("room");
                    self.top()[offset..offset + bytes].fill(0);
                }
            }
            6 | 7 => {
                let durability = if script.one_in(2) { Durability::Ephemeral } else { Durability::Durable };
                if self.disk.push(memory_file(0), durability).is_ok() {
                    let model = self.top().clone();
                    self.models.push(model);
                }
            }
            8 => {
                if self.models.len() > 1 {
                    self.disk.discard_top().expect("a layer above the lowest");
                    self.models.pop();
                }
            }
            9 | 10 => {
                if self.models.len() > 1 && self.disk.merge_top().is_ok() {
                    let top = self.models.pop().expect("more than one");
                    *self.top() = top;
                }
            }
            11 => self.disk.sync().expect("a disk that can be synced"),
            12 | 13 => self.reopen(script),
            _ => {
                let (offset, bytes) = self.range(script);
                let found = read(&self.disk, offset as u64, bytes as u64);
                assert!(found == self.top()[offset..offset + bytes], "a disk holds something else than was written");
            }
        }
    }

    /// Takes a durable layer off and puts it on again, perhaps damaged.
    fn reopen(&mut self, script: &mut Script<'_>) {
        let is_durable = self.disk.sync_target().is_some();
        if self.models.len() < 2 || !is_durable {
            return;
        }
        self.disk.sync().expect("a disk that can be synced");
        let file = self.disk.write_target().try_clone().expect("a descriptor");
        self.disk.discard_top().expect("a layer above the lowest");
        if script.one_in(2) {
            // Header and map lie behind the data.
            let data = self.disk.bytes().next_multiple_of(CLUSTER_BYTES);
            let mut end = vec![0; (file.metadata().expect("a file").len() - data) as usize];
            file.read_exact_at(&mut end, data).expect("header and map");
            script.edit(&mut end, 3);
            file.set_len(data).expect("memory");
            file.write_all_at(&end, data).expect("memory");
            self.models.pop();
            if self.disk.push_existing(file).is_ok() {
                let model = read(&self.disk, 0, self.disk.bytes());
                self.models.push(model);
            }
        } else {
            self.disk.push_existing(file).expect("a layer of this disk");
            self.compare();
        }
    }

    fn compare(&mut self) {
        let found = read(&self.disk, 0, self.disk.bytes());
        assert!(found == *self.top(), "a disk holds something else than was written");
    }

    fn top(&mut self) -> &mut Vec<u8> {
        self.models.last_mut().expect("the lowest is always there")
    }

    /// Some sectors of the disk.
    fn range(&self, script: &mut Script<'_>) -> (usize, usize) {
        let sectors = self.disk.bytes() / SECTOR_BYTES;
        let first = script.below(sectors);
        let count = 1 + script.below((sectors - first).min(40));
        ((first * SECTOR_BYTES) as usize, (count.min(sectors - first) * SECTOR_BYTES) as usize)
    }
}
