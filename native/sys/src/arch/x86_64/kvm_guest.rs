//! A guest of one page that counts down at ring 0 and halts: enough to tell how fast a virtual machine runs here.

use kvm_bindings::{kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
/// Where the page lies in the guest.
const PAGE_ADDRESS: u64 = 0x1000;
const INSTRUCTIONS_A_ROUND: u32 = 2;
/// `dec %ecx; jnz -3; hlt`
const CODE: [u8; 4] = [0x49, 0x75, 0xFD, 0xF4];
const PROTECTED_MODE: u64 = 1;
const FLAGS_RESERVED: u64 = 2;
/// A flat 32-bit code segment: accessed, readable, executable.
const CODE_SEGMENT_TYPE: u8 = 11;
/// A flat data segment: accessed, writable.
const DATA_SEGMENT_TYPE: u8 = 3;

/// One page of memory that the guest runs in.
struct Page(NonNull<c_void>);

impl Page {
    fn new() -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping wherever the kernel likes, so nothing of ours is replaced.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) }?;
        let page = Self(NonNull::new(address).ok_or(Errno::NOMEM)?);
        // SAFETY: the mapping is writable, longer than the code, and nobody else knows it.
        unsafe { std::ptr::copy_nonoverlapping(CODE.as_ptr(), page.0.as_ptr().cast(), CODE.len()) };
        Ok(page)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this is the mapping of `new`; the virtual machine that used it is gone by then.
        let _ = unsafe { munmap(self.0.as_ptr(), PAGE_BYTES) };
    }
}

/// The guest. Fields are dropped in this order, so the machine goes before its memory.
pub struct LoopGuest {
    vcpu: VcpuFd,
    _machine: VmFd,
    _page: Page,
}

impl LoopGuest {
    /// Makes the machine on an open `/dev/kvm`.
    pub fn new(device: OwnedFd) -> Result<Self> {
        // SAFETY: the descriptor is open and given up to the new owner.
        let kvm = unsafe { <Kvm as std::os::fd::FromRawFd>::from_raw_fd(device.into_raw_fd()) };
        let machine = kvm.create_vm().map_err(errno)?;
        let page = Page::new()?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: PAGE_ADDRESS,
            memory_size: PAGE_BYTES as u64,
            userspace_addr: page.0.as_ptr() as u64,
        };
        // SAFETY: the page stays mapped as long as the machine, see the order of the fields.
        unsafe { machine.set_user_memory_region(region) }.map_err(errno)?;
        let vcpu = machine.create_vcpu(0).map_err(errno)?;
        let mut registers = vcpu.get_sregs().map_err(errno)?;
        registers.cr0 |= PROTECTED_MODE;
        registers.cs = flat(CODE_SEGMENT_TYPE, 8);
        for segment in [&mut registers.ds, &mut registers.es, &mut registers.ss] {
            *segment = flat(DATA_SEGMENT_TYPE, 16);
        }
        vcpu.set_sregs(&registers).map_err(errno)?;
        Ok(Self { vcpu, _machine: machine, _page: page })
    }

    /// Runs about so many instructions and tells how long that took.
    pub fn run(&mut self, instructions: u32) -> Result<Duration> {
        let registers = kvm_regs {
            rip: PAGE_ADDRESS,
            rcx: u64::from((instructions / INSTRUCTIONS_A_ROUND).max(1)),
            rflags: FLAGS_RESERVED,
            ..kvm_regs::default()
        };
        self.vcpu.set_regs(&registers).map_err(errno)?;
        let began = Instant::now();
        loop {
            match self.vcpu.run() {
                Ok(VcpuExit::Hlt) => return Ok(began.elapsed()),
                Ok(_) => return Err(Errno::IO),
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => (),
                Err(error) => return Err(errno(error)),
            }
        }
    }
}

fn flat(kind: u8, selector: u16) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector,
        type_: kind,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..kvm_segment::default()
    }
}

fn errno(error: kvm_ioctls::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}
