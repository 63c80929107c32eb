//! Every bound of the protocol. A violation ends the connection or the operation, never the guest agent.

/// The port on which a guest agent listens.
pub const PORT: u32 = 17777;

/// Bytes of one version 1 line, newline included: a 64 MiB file in base64 and its envelope.
pub const V1_LINE_MAX: usize = 96 << 20;
/// Bytes of one file, decoded, that version 1 carries.
pub const V1_FILE_MAX: u64 = 64 << 20;
/// Bytes of each output channel that a version 1 `exec` keeps, from the head.
pub const V1_OUTPUT_MAX: u64 = 16 << 20;
/// Seconds a version 1 `exec` may take when the request does not say.
pub const V1_TIMEOUT_SECONDS_DEFAULT: u64 = 30;
/// Bytes of one terminal data frame after `shell-opened`.
pub const V1_SHELL_FRAME_MAX: usize = 1 << 20;

/// What a frame's length field may say: at least stream id and kind …
pub const FRAME_LENGTH_MIN: usize = 5;
/// … and at most this, so that an OPEN with the longest command and its environment fits.
pub const FRAME_LENGTH_MAX: usize = 2 << 20;
/// Bytes of content in one DATA frame.
pub const DATA_MAX: usize = 1 << 20;
/// Bytes of credit each direction of a stream starts with.
pub const CREDIT_INITIAL: u64 = 1 << 20;
/// Credit a sender may hold; a peer that grants more breaks the protocol.
pub const CREDIT_MAX: u64 = 1 << 53;
/// Streams a connection may have open.
pub const STREAMS_MAX: usize = 1024;
/// Nesting of a msgpack payload.
pub const PAYLOAD_DEPTH_MAX: usize = 16;

/// Hex digits of the preamble's nonce.
pub const NONCE_DIGITS: usize = 32;

/// Commands that may run in one guest at a time.
pub const EXECUTIONS_MAX: usize = 256;
/// Executions that a guest knows, running or not.
pub const EXECUTIONS_KNOWN_MAX: usize = 1000;
/// Bytes of the id of an execution.
pub const EXECUTION_ID_MAX: usize = 64;
/// Bytes of one output channel that an execution keeps.
pub const RING_MAX: u64 = 8 << 20;
/// Bytes that all executions of a guest keep, where it has memory for so much.
pub const OUTPUT_KEPT_MAX: u64 = 256 << 20;
/// Bytes of input in one `execution-stdin`.
pub const STDIN_PIECE_MAX: usize = 256 << 10;
/// Bytes of input that wait for a command.
pub const STDIN_BUFFER_MAX: usize = 1 << 20;
/// Bytes of a command, or of arguments with what msgpack adds, that an execution's state repeats.
pub const LISTED_COMMAND_MAX: usize = 1000;
/// Bytes of a command line, or of all arguments together.
pub const COMMAND_MAX: usize = 1 << 20;
/// Bytes the kernel takes as one argument (MAX_ARG_STRLEN less its NUL); a longer command goes by descriptor.
pub const ARGUMENT_MAX: usize = (128 << 10) - 1;
/// Bytes of all environment names and values together.
pub const ENVIRONMENT_MAX: usize = 512 << 10;
/// Variables a request may set.
pub const ENVIRONMENT_COUNT_MAX: usize = 4096;
/// Arguments of an `argv` command.
pub const ARGV_COUNT_MAX: usize = 16_384;

/// Bytes of a path (PATH_MAX).
pub const PATH_MAX: usize = 4096;
/// Paths of one manifest.
pub const MANIFEST_PATHS_MAX: usize = 64;
/// Names in one directory that are listed.
pub const LIST_ENTRIES_MAX: usize = 100_000;
/// Directories below one another that an archive goes into.
pub const ARCHIVE_DEPTH_MAX: usize = 256;
/// Names in one archive.
pub const ARCHIVE_ENTRIES_MAX: u64 = 1_000_000;
/// Bytes that are read for one manifest.
pub const MANIFEST_HASHED_MAX: u64 = 512 << 30;
/// Directories of one watch.
pub const WATCH_DIRECTORIES_MAX: usize = 8192;
/// Connections to ports of one guest at a time.
pub const PORT_CONNECTIONS_MAX: usize = 256;
/// Waits for ports of one guest at a time.
pub const PORT_WAITS_MAX: usize = 64;
/// Listening sockets of one answer.
pub const PORTS_LISTED_MAX: usize = 4096;
/// Bytes of the name of a process that has a socket (TASK_COMM_LEN less its NUL).
pub const PROCESS_NAME_MAX: usize = 15;
/// Milliseconds in which a server of the guest takes a connection.
pub const PORT_CONNECT_MS_MAX: u64 = 10_000;
/// Bytes of a token.
pub const TOKEN_MAX: usize = 4096;

const _: () = assert!(DATA_MAX + 64 <= FRAME_LENGTH_MAX);
const _: () = assert!(COMMAND_MAX + ENVIRONMENT_MAX < FRAME_LENGTH_MAX);
const _: () = assert!(CREDIT_INITIAL as usize >= DATA_MAX);
const _: () = assert!(V1_FILE_MAX as usize / 3 * 4 + (1 << 20) <= V1_LINE_MAX);
