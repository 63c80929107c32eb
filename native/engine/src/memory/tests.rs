//! What of guest RAM reaches the file, with small sparse files.

use super::*;
use vm_memory::{Bytes, GuestAddress};

const MIB: u64 = 1 << 20;

fn file(bytes: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    file
}

fn read(ram: &GuestRam, address: u64) -> u8 {
    ram.memory().read_obj(GuestAddress(address)).unwrap()
}

#[test]
fn ram_beyond_the_hole_starts_at_four_gib_and_lies_behind_the_rest_in_the_file() {
    let file = file(5 << 30);
    let ram = GuestRam::new(file.try_clone().unwrap(), 5 << 30, Mapping::Shared).unwrap();
    assert_eq!(ram.bytes(), 5 << 30);
    ram.memory().write_obj(7u8, GuestAddress((3 << 30) - 1)).unwrap();
    ram.memory().write_obj(8u8, GuestAddress(4 << 30)).unwrap();
    assert!(ram.memory().write_obj(9u8, GuestAddress(3 << 30)).is_err());
    let mut bytes = [0u8; 2];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, (3 << 30) - 1).unwrap();
    assert_eq!(bytes, [7, 8]);
}

#[test]
fn a_private_mapping_keeps_its_writes_from_the_file_and_a_replacement_shows_the_other_file() {
    let (first, second) = (file(64 * MIB), file(64 * MIB));
    std::os::unix::fs::FileExt::write_all_at(&second, &[5], 4096).unwrap();
    let ram = GuestRam::new(first.try_clone().unwrap(), 64 * MIB, Mapping::Shared).unwrap();
    ram.memory().write_obj(1u8, GuestAddress(4096)).unwrap();
    ram.replace(&first, Mapping::Private).unwrap();
    assert_eq!(read(&ram, 4096), 1);
    ram.memory().write_obj(2u8, GuestAddress(4096)).unwrap();
    ram.replace(&first, Mapping::Shared).unwrap();
    assert_eq!(read(&ram, 4096), 1, "the private page is gone");
    ram.replace(&second, Mapping::Private).unwrap();
    assert_eq!(read(&ram, 4096), 5);
}

#[test]
fn sizes_that_are_no_ram_are_refused() {
    for (bytes, in_file) in [(64 * MIB, 32 * MIB), (64 * MIB + 1, 64 * MIB + 1), (MIB, MIB)] {
        assert!(matches!(GuestRam::new(file(in_file), bytes, Mapping::Shared), Err(Error::MemorySize(..))), "{bytes}");
    }
    let ram = GuestRam::new(file(64 * MIB), 64 * MIB, Mapping::Shared).unwrap();
    assert!(matches!(ram.replace(&file(32 * MIB), Mapping::Shared), Err(Error::MemorySize(..))));
}
