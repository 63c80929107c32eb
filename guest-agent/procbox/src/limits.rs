//! Every bound of the process sandbox. Inputs beyond one are refused; nothing grows without one.

/// Bytes of the launch configuration.
pub const CONFIG_BYTES_MAX: u64 = 64 << 10;
/// Paths of one grant list.
pub const PATHS_MAX: usize = 256;
/// Bytes of one path.
pub const PATH_BYTES_MAX: usize = 4096;
/// TCP ports that can be granted.
pub const NET_PORTS_MAX: usize = 64;

/// Bytes of a packet between the processes of a sandbox; a longer body travels in a memory file.
pub const PACKET_BYTES_MAX: usize = 64 << 10;
/// Bytes of a body in a memory file: the longest command with its environment, with room for the encoding.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Descriptors that go with one packet.
pub const PACKET_DESCRIPTORS_MAX: usize = 8;

/// Bytes of a command that still fits one argument of execve.
pub const INLINE_COMMAND_BYTES_MAX: usize = wire::limits::ARGUMENT_MAX;

/// Milliseconds the spawner may take for one fork before it counts as stopped and is replaced.
pub const SPAWNER_ANSWER_MS_MAX: u64 = 2_000;
/// Spawners that may be killed or stopped under one command before it is refused.
pub const SPAWNER_ATTEMPTS_MAX: usize = 3;
/// Milliseconds the sandbox may take to come up.
pub const LAUNCH_MS_MAX: u64 = 30_000;
/// Milliseconds a command may take from its fork to its execve.
pub const EXEC_START_MS_MAX: u64 = 10_000;
/// Milliseconds that killed processes may take to vanish from their control group.
pub const KILL_MS_MAX: u64 = 5_000;
/// Milliseconds a minder may take to kill its command before init kills everything: the command may keep it stopped.
pub const MINDER_KILL_MS_MAX: u64 = 2_000;
/// Grace in milliseconds of a shutdown asked for by SIGTERM.
pub const TERM_GRACE_MS: u64 = 5_000;
/// Longest grace in milliseconds of a shutdown.
pub const SHUTDOWN_GRACE_MS_MAX: u64 = 60_000;
/// Milliseconds in which open connections learn that the sandbox has ended.
pub const FAREWELL_MS: u64 = 25;

/// Descriptors of the supervisor: seven for each command that runs, three for each leaf that lingers.
pub const DESCRIPTORS_MAX: u64 = 16_384;
/// Host connections to one supervisor.
pub const CONNECTIONS_MAX: usize = 64;
/// Bytes that the kernel may hold for one of them.
pub const SEND_BUFFER_SIZE: usize = 1 << 20;
/// File operations that run at the same time; each has a worker process.
pub const FILE_WORKERS_MAX: usize = 16;
/// Downloads and uploads of files and archives at the same time: each lasts as long as its client likes.
pub const TRANSFERS_MAX: usize = 64;
/// Watches at the same time.
pub const WATCHES_MAX: usize = 32;
/// Idle workers kept for the next file operation.
pub const FILE_WORKERS_IDLE_MAX: usize = 2;

/// Milliseconds the port worker may take to list the sockets.
pub const PORT_LIST_MS_MAX: u64 = 10_000;
/// Tables of sockets that the port worker reads at the same time.
pub const PORT_LOOKS_MAX: usize = 4;
/// Listening sockets that go into one packet.
pub const PORTS_IN_PACKET_MAX: usize = 256;
/// Bytes of a connection that go into one packet.
pub const PORT_PIECE_SIZE: usize = 32 << 10;
/// Milliseconds from the end of one of the port worker's sockets to that of all, when it ends.
pub const WORKER_END_MS: u64 = 50;
/// Milliseconds after which the port worker notices that nobody waits for what it is busy with.
pub const ABANDONED_LOOK_MS: u64 = 1_000;

/// Terminals of a sandbox.
pub const TERMINALS_MAX: u32 = 64;
/// Bytes and inodes of the sandbox's root, which holds mount points and links only.
pub const ROOT_BYTES_MAX: u32 = 4 << 20;
pub const ROOT_INODES_MAX: u32 = 4096;

const _: () = assert!(wire::limits::COMMAND_MAX + wire::limits::ENVIRONMENT_MAX < BODY_BYTES_MAX);
