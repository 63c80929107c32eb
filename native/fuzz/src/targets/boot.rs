//! The boot loader: kernels and RAM disks that are damaged, and command lines.

use super::memory_file;
use crate::script::Script;
use fluxvm_engine::arch::boot::{self, BootSource, Entry};
use std::fs::File;
use std::os::unix::fs::FileExt;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

const MIB: u64 = 1 << 20;
const LOW_BYTES: u64 = 24 * MIB;
const HIGH: u64 = 4 << 30;
const HIGH_BYTES: u64 = MIB;
const LOAD: u64 = MIB;

thread_local! {
    /// One memory for all inputs: clearing it would be most of the work.
    static MEMORY: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[
        (GuestAddress(0), LOW_BYTES as usize),
        (GuestAddress(HIGH), HIGH_BYTES as usize),
    ])
    .expect("memory");
}

fn file(bytes: &[u8]) -> File {
    let file = memory_file(0);
    file.write_all_at(bytes, 0).expect("memory");
    file
}

/// An ELF image with one segment and one note, the entry of PVH.
fn elf() -> Vec<u8> {
    let mut image = b"\x7fELF\x02\x01\x01".to_vec();
    image.resize(16, 0);
    image.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [LOAD, 64, 0] {
        image.extend(word.to_le_bytes());
    }
    image.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
    let code = 64 + 2 * 56;
    for (kind, offset, address, bytes) in [(1_u32, code, LOAD, 64_u64), (4, code + 32, 0, 32)] {
        image.extend(kind.to_le_bytes());
        image.extend(7_u32.to_le_bytes());
        for word in [offset, address, address, bytes, bytes, 4] {
            image.extend(word.to_le_bytes());
        }
    }
    image.extend([0x90; 32]);
    for word in [4_u32, 8, 18] {
        image.extend(word.to_le_bytes());
    }
    image.extend(b"Xen\0");
    image.extend((LOAD + 16).to_le_bytes());
    image.extend([0; 8]);
    image
}

/// A bzImage with one sector of set-up.
fn bz_image() -> Vec<u8> {
    let mut image = vec![0; 2 * 512 + 2048];
    image[0x1F1] = 1;
    image[0x202..0x208].copy_from_slice(b"HdrS\x0F\x02");
    image[0x211] = 1;
    image[0x214..0x218].copy_from_slice(&(LOAD as u32).to_le_bytes());
    image[0x22C..0x230].copy_from_slice(&0x7FFF_FFFF_u32.to_le_bytes());
    image[0x236] = 1;
    image[0x258..0x260].copy_from_slice(&(2 * MIB).to_le_bytes());
    image[0x260..0x264].copy_from_slice(&(4_u32 << 20).to_le_bytes());
    image
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let kind = script.u8();
    let line = match kind >> 6 {
        0 => String::new(),
        1 => "console=ttyS0 reboot=k".to_owned(),
        2 => "x".repeat(script.below(0x900) as usize),
        _ => String::from_utf8_lossy(&script.bytes(255)).into_owned(),
    };
    let initrd = match kind >> 4 & 3 {
        0 | 1 => None,
        2 => Some(memory_file(script.below(0x2_0000))),
        _ => Some(memory_file(script.number() & 0xFFFF_FFFF)),
    };
    let image = match kind & 3 {
        0 | 1 => {
            let mut image = if kind & 1 == 0 { elf() } else { bz_image() };
            script.edit(&mut image, 8);
            image
        }
        2 => [b"\x7fELF", script.remaining()].concat(),
        _ => script.remaining().to_vec(),
    };
    let (mut kernel, mut initrd) = (file(&image), initrd);
    MEMORY.with(|memory| {
        let source = BootSource { kernel: &mut kernel, initrd: initrd.as_mut(), command_line: &line };
        if let Ok(Entry::Linux { address } | Entry::Pvh { address }) = boot::load(memory, source) {
            assert!(memory.address_in_range(GuestAddress(address)), "the entry at {address:#x} is not in memory");
        }
    });
}
