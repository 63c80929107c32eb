//! A guest of our own: ring 0, integers only, entered by PVH in 32-bit mode. The first letter of its command line says what
//! it does; see the labels. Needs nothing but the standard library, so that it can be compiled alone.

#![expect(bad_asm_style, reason = "an address as an immediate can be written only in the other syntax")]

use std::arch::global_asm;
use std::fs::{File, remove_file};
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

const LOAD_ADDRESS: u64 = 0x10_0000;

global_asm!(
    r#"
.pushsection .rodata.guest, "a"
.code32
.macro address register, label
.att_syntax prefix
    movl $(0x100000 + \label - fluxvm_guest_start), %\register
.intel_syntax noprefix
.endm
.globl fluxvm_guest_start
.globl fluxvm_guest_end
# An iret of 32-bit code, which not every KVM can emulate.
.macro return_from_interrupt
    pop ecx
    pop edx
    xchg [esp], ecx
    push ecx
    popfd
    ret
.endm
fluxvm_guest_start:
    mov esp, 0x80000
    mov esi, [ebx + 24]
    mov al, [esi]
    cmp al, 'h'
    je hello
    cmp al, 'r'
    je reset
    cmp al, 'f'
    je fault
    cmp al, 'c'
    je count
    cmp al, 'i'
    je idle
    cmp al, 'e'
    je echo
    cmp al, 'v'
    je virtio
    cmp al, 's'
    je smp
    cmp al, 'p'
    je power_button
    cmp al, 'm'
    je memory
    cmp al, 'd'
    je driver
    cmp al, 'g'
    je generation
    cmp al, 'a'
    je accesses
    cmp al, 'k'
    je clock

hello:
    mov edx, 0x3f8
    mov al, 'h'
    out dx, al
    mov al, 'i'
    out dx, al
off:
    mov edx, 0x604
    mov ax, 0x3400
    out dx, ax
idle:
    cli
1:  hlt
    jmp 1b

reset:
    mov al, 0xfe
    out 0x64, al
    jmp idle

fault:
    address ecx, no_table
    lidt [ecx]
    ud2

count:
    xor eax, eax
1:  inc eax
    mov [0x50000], eax
    jmp 1b

# Reads numbers from the configuration of the device in the first window, by turns one and eight by one instruction. Counts
# them for as long as each is one more than the one before, else notes what came and what should have.
accesses:
    xor ebx, ebx
1:  inc ebx
    mov eax, [0xfeb00100]
    cmp eax, ebx
    jne 3f
    mov esi, 0xfeb00100
    mov edi, 0x63000
    mov ecx, 8
    rep movsd
    mov esi, 0x63000
    mov ecx, 8
2:  inc ebx
    lodsd
    cmp eax, ebx
    jne 3f
    dec ecx
    jne 2b
    mov [0x50000], ebx
    jmp 1b
3:  mov [0x50024], eax
    mov [0x50028], ebx
    jmp idle

# Has a clock of KVM's at 0x50040, and counts.
clock:
    mov ecx, 0x4b564d01
    mov eax, 0x50041
    xor edx, edx
    wrmsr
    jmp count

# Prints the letter at 0x50020 whenever it changes.
memory:
    xor ebx, ebx
    mov edx, 0x3f8
1:  mov al, [0x50020]
    cmp al, bl
    je 1b
    mov bl, al
    out dx, al
    jmp 1b

echo:
    address eax, echo_interrupt
    mov ebx, 4
    call take_interrupts
    mov edx, 0x3f9
    mov al, 1
    out dx, al
1:  sti
    hlt
    jmp 1b
echo_interrupt:
    mov edx, 0x3f8
    in al, dx
    out dx, al
    mov dword ptr [0xfee000b0], 0
    cmp al, 'q'
    je off
    return_from_interrupt

# Waits for the power button, acknowledges it and turns itself off.
power_button:
    address eax, power_interrupt
    mov ebx, 9
    call take_interrupts
    mov dword ptr [0xfec00000], 0x22
    mov dword ptr [0xfec00010], 0x8029
    mov edx, 0x602
    mov ax, 0x100
    out dx, ax
    mov edx, 0x3f8
    mov al, 'w'
    out dx, al
1:  sti
    hlt
    jmp 1b
power_interrupt:
    mov edx, 0x600
    in ax, dx
    out dx, ax
    mov edx, 0x3f8
    mov al, 'p'
    out dx, al
    jmp off

# Prints a letter for each interrupt of general events.
generation:
    address eax, generation_interrupt
    mov ebx, 3
    call take_interrupts
    mov edx, 0x3f8
    mov al, 'w'
    out dx, al
1:  sti
    hlt
    jmp 1b
generation_interrupt:
    mov edx, 0x3f8
    mov al, 'g'
    out dx, al
    mov dword ptr [0xfee000b0], 0
    return_from_interrupt

# Draws 64 bytes from the source of randomness in the first window.
virtio:
    address eax, virtio_interrupt
    mov ebx, 5
    call take_interrupts
    mov edi, 0xfeb00000
    mov dword ptr [edi + 0x70], 0
    mov dword ptr [edi + 0x70], 1
    mov dword ptr [edi + 0x70], 3
    mov dword ptr [edi + 0x24], 1
    mov dword ptr [edi + 0x20], 1
    mov dword ptr [edi + 0x24], 0
    mov dword ptr [edi + 0x20], 0
    mov dword ptr [edi + 0x70], 11
    mov dword ptr [edi + 0x30], 0
    mov dword ptr [edi + 0x38], 8
    mov dword ptr [edi + 0x80], 0x60000
    mov dword ptr [edi + 0x84], 0
    mov dword ptr [edi + 0x90], 0x61000
    mov dword ptr [edi + 0x94], 0
    mov dword ptr [edi + 0xa0], 0x62000
    mov dword ptr [edi + 0xa4], 0
    mov dword ptr [edi + 0x44], 1
    mov dword ptr [edi + 0x70], 15
    mov dword ptr [0x60000], 0x63000
    mov dword ptr [0x60008], 64
    mov word ptr [0x6000c], 2
    mov word ptr [0x61002], 1
    mov dword ptr [edi + 0x50], 0
1:  cli
    cmp dword ptr [0x50010], 1
    je 2f
    sti
    hlt
    jmp 1b
2:  cmp word ptr [0x62002], 1
    jne off
    cmp dword ptr [0x62008], 64
    jne off
    mov edx, 0x3f8
    mov al, 'K'
    out dx, al
    jmp off
virtio_interrupt:
    mov eax, [0xfeb00060]
    mov [0xfeb00064], eax
    mov dword ptr [0x50010], 1
    mov dword ptr [0xfee000b0], 0
    return_from_interrupt

# Does what the host puts into the list at 0x70000, 16 bytes each: what to do, address, value, answer.
driver:
    address eax, virtio_interrupt
    mov ebx, 5
    call take_interrupts
    mov esi, 0x70000
1:  mov eax, [esi]
    cmp eax, 0
    je 1b
    mov edi, [esi + 4]
    cmp eax, 1
    je 2f
    cmp eax, 2
    je 3f
    cmp eax, 3
    je 4f
    jmp off
2:  mov ebx, [esi + 8]
    mov [edi], ebx
    jmp 6f
3:  mov ebx, [edi]
    mov [esi + 12], ebx
    jmp 6f
4:  cli
    cmp dword ptr [0x50010], 0
    jne 5f
    sti
    hlt
    jmp 4b
5:  mov dword ptr [0x50010], 0
6:  mov dword ptr [esi], 0x80000000
    add esi, 16
    jmp 1b

# Starts the second vCPU, prints when it lives, and counts.
smp:
    address esi, second
    mov edi, 0x8000
    mov ecx, 32
    rep movsb
    mov dword ptr [0xfee000f0], 0x1ff
    mov dword ptr [0xfee00310], 0x1000000
    mov dword ptr [0xfee00300], 0x4500
    mov dword ptr [0xfee00310], 0x1000000
    mov dword ptr [0xfee00300], 0x4608
1:  cmp dword ptr [0x5010], 0
    je 1b
    mov edx, 0x3f8
    mov al, '2'
    out dx, al
    jmp count

# Interrupt line ebx calls eax as vector 0x20 + ebx; the old controllers are silent.
take_interrupts:
    mov ecx, eax
    and ecx, 0xffff
    or ecx, 0x100000
    mov [0x40100 + ebx * 8], ecx
    and eax, 0xffff0000
    or eax, 0x8e00
    mov [0x40104 + ebx * 8], eax
    address ecx, table
    lidt [ecx]
    mov al, 0xff
    out 0x21, al
    out 0xa1, al
    mov dword ptr [0xfee000f0], 0x1ff
    lea eax, [ebx * 2 + 0x11]
    mov [0xfec00000], eax
    mov dword ptr [0xfec00010], 0
    dec eax
    mov [0xfec00000], eax
    lea eax, [ebx + 0x20]
    mov [0xfec00010], eax
    ret

.balign 8
table:
    .word 0x3ff
    .long 0x40000
no_table:
    .word 0
    .long 0

.code16
second:
    xor ax, ax
    mov ds, ax
1:  inc dword ptr [0x5010]
    jmp 1b
.balign 32
.code64
fluxvm_guest_end:
.popsection
"#
);

unsafe extern "C" {
    static fluxvm_guest_start: u8;
    static fluxvm_guest_end: u8;
}

fn code() -> &'static [u8] {
    let (start, end) = (&raw const fluxvm_guest_start, &raw const fluxvm_guest_end);
    // SAFETY: both symbols bound one block of read-only data, which is never written.
    unsafe { std::slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

/// The guest as an ELF image with a PVH note.
pub fn kernel() -> File {
    const HEADER: u64 = 64;
    const PROGRAM_HEADER: u64 = 56;
    let code = code();
    let bytes = code.len() as u64;
    let offset = HEADER + 2 * PROGRAM_HEADER;
    let mut image = Vec::new();
    image.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0");
    for word in [LOAD_ADDRESS, HEADER, 0] {
        image.extend_from_slice(&word.to_le_bytes());
    }
    for half in [0, 0, HEADER as u16, PROGRAM_HEADER as u16, 2, 0, 0, 0] {
        image.extend_from_slice(&half.to_le_bytes());
    }
    const LOAD: u32 = 1;
    const NOTE: u32 = 4;
    for (kind, offset, address, bytes) in [(LOAD, offset, LOAD_ADDRESS, bytes), (NOTE, offset + bytes, 0, 24)] {
        image.extend_from_slice(&kind.to_le_bytes());
        image.extend_from_slice(&7u32.to_le_bytes());
        for word in [offset, address, address, bytes, bytes, 4] {
            image.extend_from_slice(&word.to_le_bytes());
        }
    }
    image.extend_from_slice(code);
    const PVH_ENTRY: u32 = 18;
    for word in [4, 8, PVH_ENTRY] {
        image.extend_from_slice(&word.to_le_bytes());
    }
    image.extend_from_slice(b"Xen\0");
    image.extend_from_slice(&LOAD_ADDRESS.to_le_bytes());
    file_of(&image)
}

/// A kernel of another kind: a bzImage whose 64-bit entry prints "6" and turns the machine off.
pub fn bz_image() -> File {
    const SECTOR_BYTES: usize = 512;
    const ENTRY_OFFSET: usize = 0x200;
    // The letter is the upper half of a register that only 64-bit mode has.
    const CODE: [u8; 29] = [
        0x48, 0xB8, 0, 0, 0, 0, b'6', 0, 0, 0, // mov rax, '6' << 32
        0x48, 0xC1, 0xE8, 0x20, // shr rax, 32
        0x66, 0xBA, 0xF8, 0x03, 0xEE, // mov dx, 0x3f8; out dx, al
        0x66, 0xBA, 0x04, 0x06, // mov dx, 0x604
        0x66, 0xB8, 0x00, 0x34, 0x66, 0xEF, // mov ax, 0x3400; out dx, ax
    ];
    let mut image = vec![0; 2 * SECTOR_BYTES];
    let mut set = |offset: usize, bytes: &[u8]| image[offset..offset + bytes.len()].copy_from_slice(bytes);
    set(0x1F1, &[1]); // one sector of set-up after the first
    set(0x202, b"HdrS");
    set(0x206, &0x020Fu16.to_le_bytes()); // protocol 2.15
    set(0x211, &[1]); // loaded high
    set(0x214, &(LOAD_ADDRESS as u32).to_le_bytes());
    set(0x236, &[1]); // has a 64-bit entry
    image.resize(image.len() + ENTRY_OFFSET, 0);
    image.extend_from_slice(&CODE);
    image.resize(image.len().next_multiple_of(SECTOR_BYTES), 0xF4);
    file_of(&image)
}

/// A file without a name.
fn file_of(image: &[u8]) -> File {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("bare-guest-{}-{number}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    remove_file(&path).unwrap();
    file.write_all(image).unwrap();
    file
}
