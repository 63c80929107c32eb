//! Images by `qemu-img`, where the host has it, and images that nobody should have made.

use super::layer::{DiskError, Durability};
use super::stack::{Disk, DiskImage, ImageFormat};
use super::tests::{empty, file_of, read, write};
use crate::virtio::testing::{Dice, rounds};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

fn qcow2(file: File) -> DiskImage {
    DiskImage { file, format: ImageFormat::Qcow2 }
}

fn raw(file: File) -> DiskImage {
    DiskImage { file, format: ImageFormat::Raw }
}

/// Runs `qemu-img` or `qemu-io`; false when the host does not have it.
fn qemu(program: &str, arguments: &[&str]) -> bool {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(_) => {
            eprintln!("skipped: this host has no {program}");
            false
        }
    }
}

fn open(path: &Path) -> File {
    File::open(path).expect("an image")
}

/// An image by hand: clusters of 64 KiB, one table, entries as given.
fn image(bytes: u64, version: u32, entries: &[u64], clusters: u64) -> File {
    let mut header = vec![0_u8; 104];
    let mut put = |offset: usize, value: &[u8]| header[offset..offset + value.len()].copy_from_slice(value);
    put(0, b"QFI\xFB");
    put(4, &version.to_be_bytes());
    put(20, &16_u32.to_be_bytes());
    put(24, &bytes.to_be_bytes());
    put(36, &1_u32.to_be_bytes());
    put(40, &0x1_0000_u64.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    let file = file_of(&header);
    file.set_len((3 + clusters) << 16).expect("a size");
    file.write_all_at(&0x8000_0000_0002_0000_u64.to_be_bytes(), 0x1_0000).expect("written");
    let table: Vec<u8> = entries.iter().flat_map(|entry| entry.to_be_bytes()).collect();
    file.write_all_at(&table, 0x2_0000).expect("written");
    for cluster in 0..clusters {
        file.write_all_at(&vec![cluster as u8 + 1; 1 << 16], (3 + cluster) << 16).expect("written");
    }
    file
}

#[test]
fn clusters_are_found_wherever_they_are() {
    // Backwards in the file, with a hole and a cluster of zeros that has room.
    let file = image(5 << 16, 3, &[0x4_0000, 0x3_0000, 0, 0x5_0001], 3);
    let disk = Disk::open_images(vec![qcow2(file)]).expect("a disk");
    let content = read(&disk, 0, 5 << 16);
    let firsts: Vec<u8> = content.chunks(1 << 16).map(|cluster| cluster[0]).collect();
    assert_eq!(firsts, [2, 1, 0, 0, 0]);
    assert_eq!(read(&disk, (1 << 16) - 512, 1024), [vec![2; 512], vec![1; 512]].concat());
}

#[test]
fn the_guest_writes_to_a_layer_and_never_to_an_image() {
    let file = image(3 << 16, 3, &[0x3_0000, 0x4_0000], 2);
    let twin = file.try_clone().expect("its twin");
    let mut disk = Disk::open_images(vec![qcow2(file)]).expect("a disk");
    assert!(disk.is_read_only());
    disk.push(empty(), Durability::Durable).expect("a layer");
    assert!(!disk.is_read_only());
    write(&mut disk, 512, &[9; 512]);
    write(&mut disk, 2 << 16, &[8; 4096]);
    assert_eq!(read(&disk, 0, 1536), [vec![1; 512], vec![9; 512], vec![1; 512]].concat());
    assert!(matches!(disk.merge_top(), Err(DiskError::Sealed)));
    let mut first = vec![0; 1 << 16];
    twin.read_exact_at(&mut first, 3 << 16).expect("read");
    assert!(first.iter().all(|byte| *byte == 1));
}

#[test]
fn images_of_qemu_read_as_qemu_reads_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let text = |name: &str| path(name).to_str().expect("a name").to_owned();
    let base = Dice::new(3).bytes((3 << 20) + 4096);
    std::fs::write(path("base.raw"), &base).expect("written");
    for (cluster, compat) in [("65536", "1.1"), ("4096", "1.1"), ("65536", "0.10"), ("2097152", "1.1")] {
        let options = format!("cluster_size={cluster},compat={compat}");
        if !qemu("qemu-img", &["convert", "-O", "qcow2", "-o", &options, &text("base.raw"), &text("base.qcow2")]) {
            return;
        }
        // An image on the image, larger, with data and zeros of its own.
        let overlay = [
            "create",
            "-q",
            "-f",
            "qcow2",
            "-F",
            "qcow2",
            "-b",
            &text("base.qcow2"),
            "-o",
            &options,
            &text("top.qcow2"),
            "5M",
        ];
        qemu("qemu-img", &overlay);
        if !qemu(
            "qemu-io",
            &[
                "-f",
                "qcow2",
                "-c",
                "write -P 17 700k 100k",
                "-c",
                "write -z 1M 1M",
                "-c",
                "write -P 3 4M 4k",
                &text("top.qcow2"),
            ],
        ) {
            return;
        }
        qemu("qemu-img", &["convert", "-O", "raw", &text("top.qcow2"), &text("top.raw")]);
        let expected = std::fs::read(path("top.raw")).expect("converted");
        let images = vec![qcow2(open(&path("base.qcow2"))), qcow2(open(&path("top.qcow2")))];
        let disk = Disk::open_images(images).expect("a disk");
        assert!(read(&disk, 0, disk.bytes()) == expected, "{options}");
        // The same on the raw file.
        qemu("qemu-img", &["rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", &text("base.raw"), &text("top.qcow2")]);
        let disk =
            Disk::open_images(vec![raw(open(&path("base.raw"))), qcow2(open(&path("top.qcow2")))]).expect("a disk");
        assert!(read(&disk, 0, disk.bytes()) == expected, "{options} on raw");
    }
    qemu("qemu-img", &["convert", "-c", "-O", "qcow2", &text("base.raw"), &text("small.qcow2")]);
    // Random data does not shrink and is stored as it is; text is compressed.
    std::fs::write(path("text.raw"), vec![b'x'; 1 << 20]).expect("written");
    qemu("qemu-img", &["convert", "-c", "-O", "qcow2", &text("text.raw"), &text("small.qcow2")]);
    assert!(matches!(Disk::open_images(vec![qcow2(open(&path("small.qcow2")))]), Err(DiskError::Image(_))));
}

#[test]
fn images_that_do_not_fit_on_each_other_are_refused() {
    let complete = || image(1 << 16, 3, &[0x3_0000], 1);
    let refused = |images| matches!(Disk::open_images(images), Err(DiskError::Chain(_)));
    assert!(refused(vec![]));
    assert!(refused(vec![qcow2(complete()), qcow2(complete())]), "complete on another");
    assert!(refused(vec![qcow2(complete()), raw(file_of(&[0; 512]))]), "raw on another");
    let overlay = complete();
    overlay.write_all_at(&100_u64.to_be_bytes(), 8).expect("written");
    assert!(refused(vec![qcow2(overlay.try_clone().expect("its twin"))]), "nothing below");
    assert!(refused(vec![raw(file_of(&[0; 512])), qcow2(overlay.try_clone().expect("its twin"))]), "torn end");
    assert!(Disk::open_images(vec![raw(file_of(&[0; 4096])), qcow2(overlay)]).is_ok());
}

#[test]
fn images_that_cannot_be_read_are_refused() {
    type Spoil<'a> = &'a dyn Fn(&File);
    let at = |offset: u64, value: &[u8], file: &File| file.write_all_at(value, offset).expect("written");
    let cases: [(&str, Spoil<'_>); 12] = [
        ("no qcow2", &|file| at(0, b"QED\0", file)),
        ("version 4", &|file| at(4, &4_u32.to_be_bytes(), file)),
        ("encrypted", &|file| at(32, &1_u32.to_be_bytes(), file)),
        ("clusters of 512 bytes", &|file| at(20, &9_u32.to_be_bytes(), file)),
        ("clusters of 4 EiB", &|file| at(20, &62_u32.to_be_bytes(), file)),
        ("marked as corrupt", &|file| at(72, &2_u64.to_be_bytes(), file)),
        ("data elsewhere", &|file| at(72, &4_u64.to_be_bytes(), file)),
        ("larger than its tables", &|file| at(24, &(1_u64 << 40).to_be_bytes(), file)),
        ("too many tables", &|file| at(36, &u32::MAX.to_be_bytes(), file)),
        ("a table beyond the file", &|file| at(40, &(1_u64 << 50).to_be_bytes(), file)),
        ("a cluster beyond the file", &|file| at(0x2_0000, &0x4_0000_u64.to_be_bytes(), file)),
        ("a cluster between clusters", &|file| at(0x2_0000, &0x3_0200_u64.to_be_bytes(), file)),
    ];
    for (what, spoil) in cases {
        let file = image(1 << 16, 3, &[0x3_0000], 1);
        spoil(&file);
        assert!(matches!(Disk::open_images(vec![qcow2(file)]), Err(DiskError::Image(_))), "{what}");
    }
    assert!(Disk::open_images(vec![qcow2(file_of(&[0; 20]))]).is_err(), "short");
    assert!(matches!(Disk::open_images(vec![qcow2(image(1000, 3, &[], 0))]), Err(DiskError::Size(1000))));
}

#[test]
fn an_image_that_names_one_table_again_and_again_is_refused_at_once() {
    let file = image(1 << 46, 3, &[0x3_0000, 0x4_0000], 2);
    const TABLES: u32 = 1 << 17;
    file.write_all_at(&TABLES.to_be_bytes(), 36).expect("written");
    file.write_all_at(&0x10_0000_u64.to_be_bytes(), 40).expect("written");
    let entry = 0x8000_0000_0002_0000_u64.to_be_bytes();
    file.write_all_at(&entry.repeat(TABLES as usize), 0x10_0000).expect("written");
    let refused = Disk::open_images(vec![qcow2(file)]).err().expect("a refusal");
    assert!(refused.to_string().contains("more tables"), "{refused}");
}

#[test]
fn no_image_from_outside_does_harm() {
    let mut dice = Dice::new(51);
    for _ in 0..rounds(300) {
        let file = image(8 << 16, 2 + dice.below(2) as u32, &[0x3_0000, 0x4_0000, 0, 1], 2);
        for _ in 0..=dice.below(3) {
            let area = [0, 0x1_0000, 0x2_0000][dice.below(3) as usize];
            let count = 1 + dice.below(8) as usize;
            let value = dice.bytes(count);
            file.write_all_at(&value, area + dice.below(104)).expect("written");
        }
        if let Ok(disk) = Disk::open_images(vec![qcow2(file)]) {
            let bytes = disk.bytes().min(1 << 20);
            let offset = dice.below(disk.bytes() - bytes + 1) / 512 * 512;
            // It reads, or the file is too short: nothing else.
            let mut runs = Vec::new();
            disk.read_runs(offset, bytes, &mut runs);
            assert_eq!(runs.iter().map(|run| run.bytes).sum::<u64>(), bytes);
        }
    }
}
