//! Which system calls a running machine makes, with which arguments. Nothing here opens a file by name, starts a program, a
//! process or a thread, or makes memory executable.

use crate::arch::KVM_REQUESTS;
use libc::c_long;
use rustix::process::Pid;
use seccompiler::{
    BackendError, SeccompCmpArgLen::Dword, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, SeccompCmpOp::MaskedEq,
    SeccompCondition,
};

/// Allowed with any arguments: they work on descriptors and memory that the process has.
pub const ALLOWED: [c_long; 51] = [
    // Bytes in and out.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_flock,
    libc::SYS_copy_file_range,
    libc::SYS_fstat,
    libc::SYS_close,
    libc::SYS_io_uring_enter,
    // Sockets that exist.
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    // Waiting.
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // What a thread does at its beginning, for one that is still there.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    // Signals and ends.
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Refused without killing: libraries try these and go on without.
pub const REFUSED: [c_long; 8] = [
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_membarrier,
];

/// Allowed beside the others where files may be named: with an empty root these reach only the one directory. None makes a
/// link, with which somebody outside could be led astray.
pub const NAMING: [c_long; 6] = [
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_mkdirat,
];

/// Makes a file share the blocks of another, for snapshots of disks.
const FICLONE: u32 = 0x4004_9409;

/// A call that is allowed when all conditions hold; several rules of one call are alternatives.
pub struct Rule {
    pub call: c_long,
    pub conditions: Vec<SeccompCondition>,
}

/// Requests to tap devices that a driver's choices lead to.
const TAP_REQUESTS: [u32; 2] = [
    0x4004_54D0, // TUNSETOFFLOAD
    0x4004_54D9, // TUNSETQUEUE
];

/// Requests to vhost-net, which a machine hands its taps to whenever its driver starts or it goes on after a pause. They
/// reach the memory and the descriptors that this process has.
const VHOST_REQUESTS: [u32; 12] = [
    0x8008_AF00, // GET_FEATURES
    0x4008_AF00, // SET_FEATURES
    0x0000_AF01, // SET_OWNER
    0x4008_AF03, // SET_MEM_TABLE
    0x4008_AF10, // SET_VRING_NUM
    0x4028_AF11, // SET_VRING_ADDR
    0x4008_AF12, // SET_VRING_BASE
    0xC008_AF12, // GET_VRING_BASE
    0x4008_AF20, // SET_VRING_KICK
    0x4008_AF21, // SET_VRING_CALL
    0x4008_AF22, // SET_VRING_ERR
    0x4008_AF30, // NET_SET_BACKEND
];

/// Makes an accepted socket not wait.
const FIONBIO: u32 = 0x5421;

const DESCRIPTOR_COMMANDS: [i32; 5] =
    [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC];

/// The calls whose arguments decide.
pub fn conditional(own: Pid) -> Result<Vec<Rule>, BackendError> {
    let mut rules = Vec::new();
    let requests = KVM_REQUESTS.iter().chain(&TAP_REQUESTS).chain(&VHOST_REQUESTS).chain(&[FIONBIO, FICLONE]);
    for request in requests {
        rules.push(Rule { call: libc::SYS_ioctl, conditions: vec![equal(1, *request)?] });
    }
    for command in DESCRIPTOR_COMMANDS {
        rules.push(Rule { call: libc::SYS_fcntl, conditions: vec![equal(1, command as u32)?] });
    }
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let not_executable = SeccompCondition::new(2, Qword, MaskedEq(libc::PROT_EXEC as u64), 0)?;
        rules.push(Rule { call, conditions: vec![not_executable] });
    }
    // The name of a thread.
    rules.push(Rule { call: libc::SYS_prctl, conditions: vec![equal(0, libc::PR_SET_NAME.cast_unsigned())?] });
    // Without a new address, which could cover something else.
    let in_place = MaskedEq(!(libc::MREMAP_MAYMOVE as u64));
    rules.push(Rule { call: libc::SYS_mremap, conditions: vec![SeccompCondition::new(3, Qword, in_place, 0)?] });
    let kind = MaskedEq(!((libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64));
    let stream = SeccompCondition::new(1, Qword, kind, libc::SOCK_STREAM as u64)?;
    let unix = equal(0, libc::AF_UNIX as u32)?;
    rules.push(Rule { call: libc::SYS_socket, conditions: vec![unix, stream, equal(2, 0)?] });
    let own = equal(0, own.as_raw_nonzero().get().cast_unsigned())?;
    rules.push(Rule { call: libc::SYS_tgkill, conditions: vec![own] });
    Ok(rules)
}

fn equal(argument: u8, value: u32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, Dword, Eq, value.into())
}
