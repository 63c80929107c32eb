//! Every unsafe system call of the host library: ioctls of btrfs, loop devices and KVM, sockets to virtual machines, the
//! Landlock version query and the signal mask of native threads. Callers get safe functions over borrowed descriptors; nothing here keeps state.

pub mod btrfs;
pub mod disk_io;
pub mod guest_io;
pub mod guest_vm;
mod ioctl;
pub mod kvm;
pub mod kvm_guest;
pub mod landlock;
pub mod loop_device;
pub mod namespaces;
pub mod process;
pub mod reclaim;
pub mod sockets;
pub mod tap;
pub mod threads;
pub mod uring;
pub mod vsock;

pub use rustix::io::{Errno, Result};
