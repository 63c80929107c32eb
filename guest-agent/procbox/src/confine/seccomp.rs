//! Which system calls are refused: to commands, to the supervisor, and to servers of a host's files.

use crate::sys::seccomp::{Filter, Refusal, When};
use libc::*;

/// Calls that no command has a use for that the sandbox could allow: they reach for other processes' memory, the
/// kernel, the clock, mounts and namespaces, or open a way around the sandbox's other layers.
const COMMAND_DENIED: [c_long; 54] = [
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_fanotify_init,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_syslog,
    SYS_vhangup,
    SYS_open_by_handle_at,
    SYS_name_to_handle_at,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_unshare,
    SYS_setns,
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
    SYS_lookup_dcookie,
    SYS_nfsservctl,
    SYS_move_pages,
    SYS_migrate_pages,
];

/// As if the kernel had none: programs then fall back to what the other rules can see into.
const COMMAND_ABSENT: [c_long; 4] = [SYS_clone3, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register];

const NEW_NAMESPACES: u32 =
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET) as u32;
const SOCKET_TYPE_MASK: u32 = 0xf;
const SHARED_NETWORK_FAMILIES: [u32; 2] = [AF_INET as u32, AF_INET6 as u32];
const OWN_NETWORK_FAMILIES: [u32; 4] = [AF_INET as u32, AF_INET6 as u32, AF_UNIX as u32, AF_NETLINK as u32];
const WHOLE: u32 = u32::MAX;
const TIOCLINUX: u32 = 0x541c;

/// Btrfs requests that make, delete or freeze subvolumes, which their kernel side grants to any owner of a directory: a
/// subvolume nested in a workspace may have no bound of its own. Sharing blocks between files stays allowed.
const SUBVOLUME_REQUESTS: [u32; 7] =
    [0x5000_9401, 0x5000_940e, 0x5000_940f, 0x5000_9417, 0x5000_9418, 0x4008_941a, 0x5000_943f];

/// System V and POSIX message queues, semaphores and shared memory, which no path and no Landlock rule governs.
const IPC: [c_long; 13] = [
    SYS_shmget,
    SYS_shmat,
    SYS_shmctl,
    SYS_msgget,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_msgctl,
    SYS_semget,
    SYS_semop,
    SYS_semtimedop,
    SYS_semctl,
    SYS_mq_open,
    SYS_mq_unlink,
];

/// What a command shares with the host for want of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// Sockets that would get around the TCP rules are refused.
    pub network: bool,
    /// Objects of inter-process communication are refused.
    pub ipc: bool,
}

/// The filter of commands.
pub fn for_commands(shared: Shared) -> Filter {
    let mut refusals: Vec<Refusal> = COMMAND_DENIED.iter().map(always).collect();
    refusals.extend(COMMAND_ABSENT.map(|call| Refusal { call, when: When::Always, errno: ENOSYS }));
    refusals.extend([
        refuse(SYS_clone, When::AnyBit(0, NEW_NAMESPACES)),
        // Bytes typed into a terminal from inside reach whoever shares it.
        refuse(SYS_ioctl, When::Equal(1, WHOLE, TIOCSTI as u32)),
        refuse(SYS_ioctl, When::Equal(1, WHOLE, TIOCLINUX)),
        // The sandbox's helpers have the same user: their limits are not for commands to lower.
        refuse(SYS_prlimit64, When::NoneOf(0, &[0])),
        // Some families reach the host past every other layer (virtual sockets); others are kernel code that no
        // command needs to reach.
        refuse(
            SYS_socket,
            When::NoneOf(0, if shared.network { &SHARED_NETWORK_FAMILIES } else { &OWN_NETWORK_FAMILIES }),
        ),
    ]);
    refusals.extend(SUBVOLUME_REQUESTS.map(|request| refuse(SYS_ioctl, When::Equal(1, WHOLE, request))));
    if shared.ipc {
        refusals.extend(IPC.iter().map(always));
    }
    if shared.network {
        // Without a namespace of their own, commands get what the TCP rules govern and nothing else.
        for kind in [SOCK_DGRAM, SOCK_RAW] {
            refusals.push(refuse(SYS_socket, When::Equal(1, SOCKET_TYPE_MASK, kind as u32)));
        }
    }
    Filter::refusing(&refusals)
}

/// The filter of the supervisor, which accepts connections, moves bytes and needs nothing else.
pub fn for_supervisor() -> Filter {
    let own = [
        SYS_execve,
        SYS_execveat,
        SYS_fork,
        SYS_vfork,
        SYS_clone3,
        SYS_socket,
        SYS_connect,
        SYS_bind,
        SYS_mknod,
        SYS_mknodat,
        SYS_setuid,
        SYS_setgid,
        SYS_setresuid,
        SYS_setresgid,
        SYS_setgroups,
        SYS_io_uring_setup,
    ];
    let refusals: Vec<Refusal> = COMMAND_DENIED.iter().chain(&own).map(always).collect();
    Filter::refusing(&refusals)
}

/// Set user or group id on execution.
const SET_ID: u32 = S_ISUID | S_ISGID;

/// Calls that give a file its mode, and which argument that is.
const MODE_CALLS: [(c_long, u32); 9] = [
    (SYS_chmod, 1),
    (SYS_fchmod, 1),
    (SYS_fchmodat, 2),
    (SYS_fchmodat2, 2),
    (SYS_creat, 1),
    (SYS_open, 2),
    (SYS_openat, 3),
    (SYS_mknod, 1),
    (SYS_mknodat, 2),
];

/// What a file server changes its root and its threads' working directories with.
const SERVER_ALLOWED: [c_long; 2] = [SYS_chroot, SYS_unshare];

/// The filter of a server of files. Nobody on the host becomes another user by running what a guest has put there.
pub fn for_file_server() -> Filter {
    let mut refusals: Vec<Refusal> =
        COMMAND_DENIED.iter().filter(|call| !SERVER_ALLOWED.contains(call)).map(always).collect();
    refusals.extend([SYS_unshare, SYS_clone].map(|call| refuse(call, When::AnyBit(0, NEW_NAMESPACES))));
    refusals.extend(MODE_CALLS.map(|(call, argument)| refuse(call, When::AnyBit(argument, SET_ID))));
    // Those have their modes and flags in memory, where no filter sees them.
    let unseen = [SYS_openat2, SYS_clone3, SYS_io_uring_setup];
    refusals.extend(unseen.map(|call| Refusal { call, when: When::Always, errno: ENOSYS }));
    Filter::refusing(&refusals)
}

fn always(call: &c_long) -> Refusal {
    refuse(*call, When::Always)
}

fn refuse(call: c_long, when: When) -> Refusal {
    Refusal { call, when, errno: EPERM }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process::{Forked, exit_now, forbid_new_privileges, fork};
    use nix::errno::Errno;
    use nix::sys::wait::{WaitStatus, waitpid};

    /// The errno of a system call under the command filter, 0 when it succeeds.
    fn errno_of(is_shared: bool, call: c_long, arguments: [c_int; 3]) -> c_int {
        match fork().unwrap() {
            Forked::Child => {
                forbid_new_privileges().unwrap();
                for_commands(Shared { network: is_shared, ipc: is_shared }).install().unwrap();
                let [a, b, c] = arguments.map(c_long::from);
                // SAFETY: no call below gets a pointer other than null.
                let result = unsafe { syscall(call, a, b, c, 0, 0) };
                exit_now(if result < 0 { Errno::last_raw() } else { 0 })
            }
            Forked::Parent(pid) => match waitpid(pid, None).unwrap() {
                WaitStatus::Exited(_, code) => code,
                other => panic!("{other:?}"),
            },
        }
    }

    #[test]
    fn denied_absent_and_foreign_calls() {
        assert_eq!(errno_of(false, SYS_getppid, [0; 3]), 0);
        assert_eq!(errno_of(false, SYS_unshare, [0; 3]), EPERM);
        assert_eq!(errno_of(false, SYS_io_uring_setup, [0; 3]), ENOSYS);
        assert_eq!(errno_of(false, 0x4000_0000 + SYS_mount, [0; 3]), ENOSYS);
        assert_eq!(errno_of(false, SYS_clone, [CLONE_NEWUSER | SIGCHLD, 0, 0]), EPERM);
    }

    #[test]
    fn arguments_decide_where_they_should() {
        assert_eq!(errno_of(false, SYS_socket, [AF_INET, SOCK_DGRAM, 0]), 0);
        assert_eq!(errno_of(true, SYS_socket, [AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0]), EPERM);
        assert_eq!(errno_of(true, SYS_socket, [AF_INET, SOCK_STREAM, 0]), 0);
        assert_eq!(errno_of(true, SYS_socket, [AF_UNIX, SOCK_STREAM, 0]), EPERM);
        assert_eq!(errno_of(false, SYS_socket, [AF_UNIX, SOCK_STREAM, 0]), 0);
        assert_eq!(errno_of(false, SYS_socket, [AF_NETLINK, SOCK_RAW, 0]), 0);
        assert_eq!(errno_of(false, SYS_socket, [AF_VSOCK, SOCK_STREAM, 0]), EPERM);
        assert_eq!(errno_of(false, SYS_socket, [AF_ALG, SOCK_SEQPACKET, 0]), EPERM);
        assert_eq!(errno_of(true, SYS_shmget, [IPC_PRIVATE, 1, 0]), EPERM);
        assert_eq!(errno_of(false, SYS_ioctl, [0, TIOCSTI as c_int, 0]), EPERM);
        assert_eq!(errno_of(false, SYS_ioctl, [0, 0x5000_940e, 0]), EPERM);
        assert_eq!(errno_of(false, SYS_prlimit64, [1, 0, 0]), EPERM);
        assert_eq!(errno_of(false, SYS_prlimit64, [0, RLIMIT_CORE as c_int, 0]), 0);
    }
}
