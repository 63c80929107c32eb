//! Why the engine refuses or fails: short words with the cause in the chain.

use crate::virtio::StateError;
use fluxvm_sys::Errno;
use std::io;

/// What every fallible function of the engine returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `/dev/kvm` cannot be opened.
    #[error("/dev/kvm cannot be opened")]
    OpenKvm(#[source] io::Error),
    /// The host's KVM lacks something that the machine needs.
    #[error("the host's KVM has no {0}")]
    KvmExtension(&'static str),
    /// A call to KVM failed; the text says what it was for.
    #[error("KVM refused {0}")]
    Kvm(&'static str, #[source] io::Error),
    /// The RAM asked for cannot be: bytes, and why.
    #[error("guest memory cannot be {0} bytes: {1}")]
    MemorySize(u64, &'static str),
    /// The file behind the RAM cannot be mapped.
    #[error("guest memory cannot be mapped")]
    MapMemory(#[source] io::Error),
    /// An image that is to be memory of the guest cannot be.
    #[error("an image cannot be mapped into guest memory")]
    Image(#[source] io::Error),
    /// Something that belongs into guest memory does not fit there.
    #[error("{0} does not fit into guest memory")]
    NoRoom(&'static str),
    /// Too few or too many vCPUs.
    #[error("{0} vCPUs: 1 to {max} are possible", max = crate::arch::layout::VCPUS_MAX)]
    VcpuCount(u32),
    /// More devices than the machine has places for.
    #[error("more than {max} virtio devices", max = crate::arch::layout::VIRTIO_SLOTS)]
    TooManyDevices,
    /// The kernel image cannot be booted.
    #[error("the kernel image cannot be booted: {0}")]
    Kernel(&'static str),
    /// The kernel image cannot be read or is damaged.
    #[error("the kernel image cannot be loaded")]
    LoadKernel(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The initial RAM disk cannot be read.
    #[error("the initial RAM disk cannot be loaded")]
    LoadInitrd(#[source] io::Error),
    /// The kernel's command line cannot be used.
    #[error("the kernel command line {0}")]
    CommandLine(&'static str),
    /// A range of ports or addresses is given to two devices.
    #[error("two devices at {0:#x}")]
    AddressTaken(u64),
    /// What was asked for does not go with the state of the machine.
    #[error("cannot {action} a machine that is {state}")]
    WrongState {
        /// What was asked for.
        action: &'static str,
        /// What the machine is.
        state: &'static str,
    },
    /// vCPUs did not come to rest in time.
    #[error("the vCPUs did not stop within {0} ms")]
    BarrierTimeout(u128),
    /// A thread cannot be started.
    #[error("a thread cannot be started")]
    Thread(#[source] io::Error),
    /// A list for KVM is longer than it takes.
    #[error("{0}")]
    State(&'static str),
    /// A saved state is not one of this machine.
    #[error("the saved state cannot be loaded")]
    SavedState(#[from] StateError),
    /// A device says no.
    #[error("device {0} failed")]
    Device(&'static str, #[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// For `map_err` on calls of kvm-ioctls: `what` continues "KVM refused …".
    pub fn kvm(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Self {
        move |error| Self::Kvm(what, io::Error::from_raw_os_error(error.errno()))
    }

    /// For `map_err` on calls of the sys crate.
    pub fn errno(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Kvm(what, errno.into())
    }
}
