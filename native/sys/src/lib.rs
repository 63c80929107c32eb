//! Every unsafe system call of the host library: ioctls of btrfs, loop devices and KVM, sockets to virtual machines, the
//! Landlock version query and the signal mask of native threads. Callers get safe functions over borrowed descriptors; nothing here keeps state.

mod arch;
pub mod btrfs;
pub mod disk_io;
pub mod grace;
pub mod guest_io;
pub mod guest_vm;
mod ioctl;
pub mod kvm;
pub mod landlock;
pub mod loop_device;
pub mod namespaces;
pub mod process;
pub mod reclaim;
pub mod signals;
pub mod tap;
pub mod threads;
pub mod uring;
pub mod vhost;
pub mod vsock;

pub use arch::kvm_guest;
pub use rustix::io::{Errno, Result};
