//! The other way of frames: the host's kernel (vhost-net) moves them between a tap and the rings of a pair by itself. It sees
//! the driver's notifications and raises the device's interrupt; nobody here wakes up for a frame.

use super::features::MERGEABLE_BUFFERS;
use crate::virtio::{
    DeviceContext, DeviceError, FEATURE_EVENT_INDEX, FEATURE_INDIRECT_DESCRIPTORS, FEATURE_VERSION_1, GuestRam, Queue,
};
use fluxvm_sys::tap::Tap;
use fluxvm_sys::vhost::set_backend;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use vhost::vhost_kern::VhostKernBackend;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// What of a driver's choices concerns the rings and the header in front of a frame, and so the kernel.
const CONCERNED: u64 = MERGEABLE_BUFFERS | FEATURE_EVENT_INDEX | FEATURE_INDIRECT_DESCRIPTORS | FEATURE_VERSION_1;
const QUEUES: usize = 2;

/// The kernel's device and the memory of which it is told.
struct Kernel {
    device: File,
    memory: Arc<GuestRam>,
}

impl AsRawFd for Kernel {
    fn as_raw_fd(&self) -> RawFd {
        self.device.as_raw_fd()
    }
}

impl VhostKernBackend for Kernel {
    type AS = Arc<GuestRam>;

    fn mem(&self) -> &Self::AS {
        &self.memory
    }
}

/// One pair of queues and the tap queue behind it, as the kernel knows them.
pub struct Vhost {
    kernel: Kernel,
    tap: File,
    /// The kernel writes here when rings or buffers make no sense to it.
    broken: EventFd,
    owned: bool,
    runs: bool,
}

impl Vhost {
    /// For a pair whose rings will lie in `memory`, on a descriptor of the kernel's device that nobody else uses.
    ///
    /// # Errors
    /// When the host has no descriptors left.
    pub fn new(device: File, memory: Arc<GuestRam>, tap: &Tap) -> io::Result<Self> {
        let kernel = Kernel { device, memory };
        let tap = File::from(tap.as_fd().try_clone_to_owned()?);
        Ok(Self { kernel, tap, broken: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?, owned: false, runs: false })
    }

    /// Whether the kernel moves the frames now.
    pub fn runs(&self) -> bool {
        self.runs
    }

    /// Ready to read when the kernel cannot go on.
    pub fn broken(&self) -> &EventFd {
        &self.broken
    }

    /// Hands both queues, from `first` on, to the kernel.
    ///
    /// # Errors
    /// When the kernel does not take them; they are ours then, as before.
    pub fn start(&mut self, context: &mut DeviceContext<'_>, first: usize) -> io::Result<()> {
        self.prepare(context.memory, context.features)?;
        for index in 0..QUEUES {
            self.describe(index, &context.queues[first + index])?;
            self.kernel.set_vring_call(index, context.interrupt.line()).map_err(io_error)?;
            self.kernel.set_vring_err(index, &self.broken).map_err(io_error)?;
        }
        self.runs = true;
        for index in 0..QUEUES {
            let begun = context.hand_over(first + index).and_then(|notify| {
                self.kernel.set_vring_kick(index, notify).map_err(io_error)?;
                set_backend(self.kernel.device.as_fd(), index as u32, Some(self.tap.as_fd()))?;
                // What the driver offered before the kernel listened.
                notify.write(1)
            });
            if let Err(error) = begun {
                self.stop(context, first).map_err(io::Error::other)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes the queues back where the kernel left them. Afterwards it touches no guest memory.
    ///
    /// # Errors
    /// When the kernel does not let go, or the rings are not in guest memory.
    pub fn stop(&mut self, context: &mut DeviceContext<'_>, first: usize) -> Result<(), DeviceError> {
        if !std::mem::take(&mut self.runs) {
            return Ok(());
        }
        for index in 0..QUEUES {
            set_backend(self.kernel.device.as_fd(), index as u32, None).map_err(io::Error::from)?;
        }
        for index in 0..QUEUES {
            let base = self.kernel.get_vring_base(index).map_err(io_error)?;
            context.take_back(first + index, base as u16)?;
        }
        Ok(())
    }

    /// Tells the kernel whose memory it is, what was negotiated, and where guest memory lies.
    fn prepare(&mut self, memory: &GuestRam, features: u64) -> io::Result<()> {
        if !self.owned {
            self.kernel.set_owner().map_err(io_error)?;
            self.owned = true;
        }
        let wanted = features & CONCERNED;
        if wanted & !self.kernel.get_features().map_err(io_error)? != 0 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "vhost-net lacks a feature of the driver"));
        }
        self.kernel.set_features(wanted).map_err(io_error)?;
        let regions: Vec<_> = memory
            .iter()
            .map(|region| VhostUserMemoryRegionInfo {
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: region.as_ptr() as u64,
                mmap_offset: 0,
                mmap_handle: -1,
            })
            .collect();
        self.kernel.set_mem_table(&regions).map_err(io_error).map(drop)
    }

    fn describe(&self, index: usize, queue: &Queue) -> io::Result<()> {
        let state = queue.state();
        if !state.ready {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a queue of the pair is not set up"));
        }
        let place = VringConfigData {
            queue_max_size: state.max_size,
            queue_size: state.size,
            flags: 0,
            desc_table_addr: state.desc_table,
            used_ring_addr: state.used_ring,
            avail_ring_addr: state.avail_ring,
            log_addr: None,
        };
        self.kernel.set_vring_num(index, state.size).map_err(io_error)?;
        self.kernel.set_vring_addr(index, &place).map_err(io_error)?;
        self.kernel.set_vring_base(index, state.next_avail).map_err(io_error)
    }
}

fn io_error(error: vhost::Error) -> io::Error {
    match error {
        vhost::Error::IoctlError(error) => error,
        other => io::Error::other(other),
    }
}
