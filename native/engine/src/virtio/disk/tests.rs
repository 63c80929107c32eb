//! Disks of layers, beside a model that is a plain array of bytes.

use super::layer::{CLUSTER_BYTES, DiskError, Durability};
use super::stack::{Disk, LAYERS_MAX, Source};
use crate::virtio::testing::{Dice, rounds};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Not a whole number of clusters, on purpose.
const DISK_BYTES: u64 = 64 * CLUSTER_BYTES + 1536;

pub(super) fn file_of(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().expect("a file");
    file.write_all_at(bytes, 0).expect("written");
    file
}

pub(super) fn empty() -> File {
    tempfile::tempfile().expect("a file")
}

pub(super) fn read(disk: &Disk, offset: u64, bytes: u64) -> Vec<u8> {
    let mut runs = Vec::new();
    disk.read_runs(offset, bytes, &mut runs);
    let mut data = Vec::new();
    for run in runs {
        assert_eq!(run.offset, offset + data.len() as u64, "runs are in order and leave no gap");
        let mut part = vec![0; run.bytes as usize];
        if let Source::File(file, offset) = run.source {
            file.read_exact_at(&mut part, offset).expect("read");
        }
        data.append(&mut part);
    }
    assert_eq!(data.len() as u64, bytes);
    data
}

pub(super) fn write(disk: &mut Disk, offset: u64, data: &[u8]) {
    let bytes = data.len() as u64;
    if disk.needs_copy_up(offset, bytes) {
        disk.copy_up(offset, bytes).expect("copied");
    }
    disk.write_target().write_all_at(data, offset).expect("written");
    disk.written(offset, bytes);
}

#[test]
fn files_that_cannot_be_a_disk_are_refused() {
    assert!(matches!(Disk::open(empty(), false), Err(DiskError::Size(0))));
    assert!(matches!(Disk::open(file_of(&[0; 513]), false), Err(DiskError::Size(513))));
    assert!(matches!(Disk::open(File::open("/dev/null").expect("a device"), false), Err(DiskError::Kind)));
    assert!(matches!(Disk::open(File::open("/").expect("a directory"), false), Err(DiskError::Kind)));
    assert_eq!(Disk::open(file_of(&[0; 1024]), true).expect("a disk").bytes(), 1024);
}

#[test]
fn writes_to_layers_read_as_writes_to_one_array() {
    for seed in 1..=3 {
        let mut dice = Dice::new(seed);
        let mut model = dice.bytes(DISK_BYTES as usize);
        let base = model.clone();
        let base_file = file_of(&base);
        let mut disk = Disk::open(base_file.try_clone().expect("its twin"), false).expect("a disk");
        // What the disk was when each layer was put on.
        let mut before = Vec::new();
        disk.push(empty(), Durability::Ephemeral).expect("a layer");
        before.push(model.clone());
        for _ in 0..rounds(400) {
            let offset = dice.below(DISK_BYTES / 512) * 512;
            let bytes = (1 + dice.below(40)) * 512;
            let bytes = bytes.min(DISK_BYTES - offset);
            match dice.below(12) {
                0 if disk.layers() < LAYERS_MAX => {
                    let durability = if dice.one_in(2) { Durability::Durable } else { Durability::Ephemeral };
                    disk.push(empty(), durability).expect("a layer");
                    before.push(model.clone());
                }
                1 if before.len() > 1 => {
                    disk.discard_top().expect("a layer above another");
                    model = before.pop().expect("as many as layers");
                }
                2 if before.len() > 1 => {
                    disk.merge_top().expect("merged");
                    before.pop();
                }
                3 | 4 => {
                    disk.zero(offset, bytes, dice.one_in(2)).expect("zeroed");
                    model[offset as usize..(offset + bytes) as usize].fill(0);
                }
                5 | 6 => assert!(read(&disk, offset, bytes) == model[offset as usize..(offset + bytes) as usize]),
                _ => {
                    let data = dice.bytes(bytes as usize);
                    write(&mut disk, offset, &data);
                    model[offset as usize..(offset + bytes) as usize].copy_from_slice(&data);
                }
            }
        }
        assert!(read(&disk, 0, DISK_BYTES) == model);
        let mut lowest = vec![0; DISK_BYTES as usize];
        base_file.read_exact_at(&mut lowest, 0).expect("read");
        assert!(lowest == base, "the lowest layer was written while another was above it");
    }
}

#[test]
fn a_durable_layer_comes_back_as_of_its_last_sync() {
    let base = vec![7; DISK_BYTES as usize];
    let layer = empty();
    let mut disk = Disk::open(file_of(&base), false).expect("a disk");
    disk.push(layer.try_clone().expect("its twin"), Durability::Durable).expect("a layer");
    write(&mut disk, 3 * CLUSTER_BYTES + 512, &[1; 512]);
    disk.zero(10 * CLUSTER_BYTES, 2 * CLUSTER_BYTES, true).expect("zeroed");
    disk.sync().expect("synced");
    let synced = read(&disk, 0, DISK_BYTES);
    write(&mut disk, 20 * CLUSTER_BYTES, &[2; 4096]);
    drop(disk);
    let mut disk = Disk::open(file_of(&base), false).expect("a disk");
    disk.push_existing(layer).expect("the layer");
    assert!(read(&disk, 0, DISK_BYTES) == synced, "what was not synced is as if never written");
    assert_eq!(disk.top_bytes(), 3 * CLUSTER_BYTES);
}

#[test]
fn only_layers_of_this_disk_are_put_on_it() {
    let mut disk = Disk::open(file_of(&[0; 8192]), false).expect("a disk");
    assert!(matches!(disk.push(file_of(&[1]), Durability::Durable), Err(DiskError::Layer(_))), "not empty");
    assert!(matches!(disk.push_existing(empty()), Err(DiskError::Layer(_))), "no layer at all");
    let other = empty();
    let mut larger = Disk::open(file_of(&[0; 16384]), false).expect("a disk");
    larger.push(other.try_clone().expect("its twin"), Durability::Durable).expect("a layer");
    larger.sync().expect("synced");
    assert!(matches!(disk.push_existing(other), Err(DiskError::Layer(_))), "a layer of another disk");
    let torn = empty();
    disk.push(torn.try_clone().expect("its twin"), Durability::Durable).expect("a layer");
    disk.sync().expect("synced");
    torn.write_all_at(&[0xFF], 8192 + 4096).expect("damaged");
    assert!(matches!(disk.push_existing(torn), Err(DiskError::Layer(_))), "a damaged map");
    for _ in disk.layers()..LAYERS_MAX {
        disk.push(empty(), Durability::Ephemeral).expect("a layer");
    }
    assert!(matches!(disk.push(empty(), Durability::Ephemeral), Err(DiskError::Layers(LAYERS_MAX))));
}

#[test]
fn the_lowest_layer_stays() {
    let mut disk = Disk::open(file_of(&[0; 4096]), false).expect("a disk");
    assert!(matches!(disk.discard_top(), Err(DiskError::NoLayer)));
    assert!(matches!(disk.merge_top(), Err(DiskError::NoLayer)));
    assert_eq!(disk.layers(), 1);
}

#[test]
fn a_dry_run_is_never_synced() {
    let mut disk = Disk::open(file_of(&[0; 4096]), false).expect("a disk");
    assert!(disk.sync_target().is_some());
    disk.push(empty(), Durability::Ephemeral).expect("a layer");
    assert!(disk.sync_target().is_none());
    disk.sync().expect("nothing to do");
}

#[test]
fn a_discard_gives_room_back() {
    use std::os::unix::fs::MetadataExt;
    let file = file_of(&vec![1; 1 << 20]);
    let twin = file.try_clone().expect("its twin");
    let mut disk = Disk::open(file, false).expect("a disk");
    twin.sync_all().expect("synced");
    let full = twin.metadata().expect("its size").blocks();
    disk.zero(0, 512 << 10, true).expect("zeroed");
    twin.sync_all().expect("synced");
    assert!(twin.metadata().expect("its size").blocks() <= full / 2 + 16);
    assert_eq!(read(&disk, 0, 512 << 10), vec![0; 512 << 10]);
}
