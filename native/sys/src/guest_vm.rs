//! A KVM machine together with the memory that it runs in: the mappings outlive the machine and its vCPUs. Also the run
//! call that another thread can end without a race, and the replacement of a mapping in place.

use crate::{Errno, Result};
use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use std::cell::Cell;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

/// A machine whose memory slots are the regions of its guest memory. Fields are dropped in this order.
pub struct GuestVm {
    vm: VmFd,
    memory: GuestMemoryMmap,
}

impl GuestVm {
    /// Gives the machine its memory: slot N is region N. The guest may write to the first `writable` regions only.
    ///
    /// # Errors
    /// What the kernel says to a slot, which is `EINVAL` or `EEXIST` for regions that overlap or are not whole pages.
    pub fn new(vm: VmFd, memory: GuestMemoryMmap, writable: usize) -> Result<Self> {
        for (slot, region) in (0..).zip(memory.iter()) {
            let region = kvm_userspace_memory_region {
                slot,
                flags: if (slot as usize) < writable { 0 } else { KVM_MEM_READONLY },
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: region.get_mmap().as_ptr() as u64,
            };
            // SAFETY: the region is mapped until `memory` is dropped, which is after the machine and all its vCPUs.
            unsafe { vm.set_user_memory_region(region) }.map_err(errno)?;
        }
        Ok(Self { vm, memory })
    }

    /// The machine's descriptor, for everything that does not touch memory slots.
    #[must_use]
    pub fn fd(&self) -> &VmFd {
        &self.vm
    }

    /// The guest's memory.
    #[must_use]
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Makes a vCPU, which keeps the machine and its memory alive.
    ///
    /// # Errors
    /// What the kernel says, such as `EINVAL` for a number beyond its limit.
    pub fn create_vcpu(self: &Arc<Self>, id: u8) -> Result<GuestVcpu> {
        let vcpu = self.vm.create_vcpu(u64::from(id)).map_err(errno)?;
        Ok(GuestVcpu { vcpu, vm: Arc::clone(self) })
    }
}

/// A vCPU. Fields are dropped in this order.
pub struct GuestVcpu {
    vcpu: VcpuFd,
    vm: Arc<GuestVm>,
}

impl GuestVcpu {
    /// The vCPU's descriptor, for its state.
    #[must_use]
    pub fn fd(&self) -> &VcpuFd {
        &self.vcpu
    }

    /// The machine that the vCPU belongs to.
    pub(crate) fn machine(&self) -> &VmFd {
        &self.vm.vm
    }

    /// Runs the guest until it needs something, unless `interrupted` says that somebody wants this thread. That is asked
    /// after the thread became ready to be kicked, so a kick is never lost: whoever wants the thread first makes
    /// `interrupted` true and then sends [`kick_signal`] to it. Returns nothing when the guest did not run or was kicked out.
    ///
    /// # Errors
    /// What KVM says; a kick is no error.
    pub fn run_unless(&mut self, interrupted: impl FnOnce() -> bool) -> Result<Option<VcpuExit<'_>>> {
        self.vcpu.set_kvm_immediate_exit(0);
        let _kickable = Kickable::new(&raw mut self.vcpu.get_kvm_run().immediate_exit);
        if interrupted() {
            return Ok(None);
        }
        absorb_kick(self.vcpu.run())
    }

    /// Completes the access that the last exit was about, without running the guest any further. Needed before the state of
    /// the vCPU is read: until then its registers are those before the access. An instruction that makes several accesses
    /// comes to the next, which must be answered and completed likewise; nothing is returned after the last.
    ///
    /// # Errors
    /// What KVM says.
    pub fn complete_exit(&mut self) -> Result<Option<VcpuExit<'_>>> {
        self.vcpu.set_kvm_immediate_exit(1);
        absorb_kick(self.vcpu.run())
    }
}

/// A vCPU that waits for its start-up gives `EAGAIN` where another gives `EINTR`.
fn absorb_kick(exit: std::result::Result<VcpuExit<'_>, kvm_ioctls::Error>) -> Result<Option<VcpuExit<'_>>> {
    match exit {
        Ok(exit) => Ok(Some(exit)),
        Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => Ok(None),
        Err(error) => Err(errno(error)),
    }
}

thread_local! {
    /// Where a kick tells KVM not to enter the guest, while this thread is about to.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(std::ptr::null_mut()) };
}

struct Kickable;

impl Kickable {
    fn new(immediate_exit: *mut u8) -> Self {
        IMMEDIATE_EXIT.with(|cell| cell.set(immediate_exit));
        Self
    }
}

impl Drop for Kickable {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.with(|cell| cell.set(std::ptr::null_mut()));
    }
}

extern "C" fn on_kick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let immediate_exit = IMMEDIATE_EXIT.with(Cell::get);
    if !immediate_exit.is_null() {
        // SAFETY: the pointer is set only by this very thread, and only while the vCPU it belongs to is borrowed for a run.
        unsafe { immediate_exit.write_volatile(1) };
    }
}

/// Beyond those real-time signals that a program around us is likely to have taken for itself.
const KICK_SIGNAL_FROM_FIRST: i32 = 6;

/// The signal that ends the run of the thread that it is sent to.
#[must_use]
pub fn kick_signal() -> i32 {
    SIGRTMIN() + KICK_SIGNAL_FROM_FIRST
}

/// Makes [`kick_signal`] end a run instead of the process. Once in a process is enough; again does no harm. Threads that
/// run guests let it in by [`crate::threads::admit_only`].
///
/// # Errors
/// What `sigaction` says.
pub fn handle_kicks() -> Result<()> {
    register_signal_handler(kick_signal(), on_kick).map_err(|error| Errno::from_raw_os_error(error.errno()))
}

/// How a mapping sees writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// They reach the file.
    Shared,
    /// They stay with this process; the file is only a base.
    Private,
}

/// Maps another file, or the same one differently, where the region lies: same addresses, so that memory slots stay valid.
/// The caller sees to it that no vCPU and no worker uses the memory meanwhile.
///
/// # Errors
/// What `mmap` says. The region then is as it was.
pub fn replace_mapping(region: &GuestRegionMmap, file: BorrowedFd<'_>, offset: u64, mapping: Mapping) -> Result<()> {
    let kind = match mapping {
        Mapping::Shared => MapFlags::SHARED,
        Mapping::Private => MapFlags::PRIVATE,
    };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = kind | MapFlags::FIXED | MapFlags::NORESERVE;
    let (address, bytes) = (region.get_mmap().as_ptr().cast(), region.get_mmap().size());
    // SAFETY: exactly the range of a mapping that the region owns is replaced; guest memory has no references into it, and
    // unmapping the range later unmaps the replacement.
    unsafe { mmap(address, bytes, access, flags, file, offset) }.map(drop)
}

/// Lets the host back a region with huge pages, where what it is mapped from has any.
pub fn prefer_huge_pages(region: &GuestRegionMmap) {
    let (address, bytes) = (region.get_mmap().as_ptr().cast(), region.get_mmap().size());
    // SAFETY: the range is a mapping that the region owns, and its content stays as it is. Refused by hosts that have none.
    let _ = unsafe { madvise(address, bytes, Advice::LinuxHugepage) };
}

/// Maps a whole file over the beginning of a region, so that writes stay with this process. Behind the file the region stays
/// as it is.
///
/// # Errors
/// `INVAL` when the file is longer than the region, or what `mmap` says.
pub fn map_image(region: &GuestRegionMmap, file: BorrowedFd<'_>, file_bytes: u64) -> Result<()> {
    let bytes = usize::try_from(file_bytes).ok().filter(|bytes| *bytes <= region.get_mmap().size());
    let bytes = bytes.ok_or(Errno::INVAL)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: only a part of a mapping that the region owns is replaced; guest memory has no references into it, and
    // unmapping the range later unmaps the replacement.
    unsafe { mmap(region.get_mmap().as_ptr().cast(), bytes, access, flags, file, 0) }.map(drop)
}

pub(crate) fn errno(error: kvm_ioctls::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}
