//! x86-64: the old calls beside which other architectures have only the new ones, and the requests to KVM.

mod kvm_requests;

pub use kvm_requests::KVM_REQUESTS;

use libc::c_long;
use seccompiler::TargetArch;

/// Calls by the numbers of another architecture, which this kernel may know too, kill the process.
pub const TARGET: TargetArch = TargetArch::x86_64;

/// Beside [`crate::calls::ALLOWED`].
pub const ALLOWED: [c_long; 2] = [libc::SYS_epoll_wait, libc::SYS_poll];

/// Beside [`crate::calls::REFUSED`].
pub const REFUSED: [c_long; 3] = [libc::SYS_open, libc::SYS_readlink, libc::SYS_unlink];

/// Beside [`crate::calls::NAMING`].
pub const NAMING: [c_long; 5] = [libc::SYS_open, libc::SYS_unlink, libc::SYS_rename, libc::SYS_mkdir, libc::SYS_rmdir];
