// Every bound of the agent, with the relations between them asserted once at load. Units are in the names.

const KIB = 1024;
const MIB = 1024 * KIB;

export const limits = {
  // HTTP.
  requestBodyMaxBytes: 96 * MIB,
  jsonBodyMaxBytes: 2 * MIB,
  /** Bodies of at most this size are read without a share of the budget below. */
  smallBodyMaxBytes: 64 * KIB,
  /** Sum of the larger bodies that are held at a time; more wait, then get a refusal. */
  bodyBudgetBytes: 192 * MIB,
  bodyBudgetWaitMs: 30 * 1000,
  /** A body has the grace plus its size at the least rate to arrive. */
  bodyGraceMs: 30 * 1000,
  bodyRateMinBytesPerSecond: 256 * KIB,
  connectionIdleSecs: 60,
  /** Silence of a stream after which it says that it is still there. */
  streamKeepAliveMs: 15 * 1000,
  attachedStreamsPerTokenMax: 2048,
  /** What a WebSocket's client may have sent that is not answered yet. */
  socketCreditBytes: 1 * MIB,
  /** A longer message is not even read to its end. */
  socketMessageMaxBytes: 2 * MIB,
  eventsPageMax: 1000,
  idempotencyKeepMs: 24 * 3600 * 1000,
  rateBucketIdleMs: 10 * 60 * 1000,

  // Sandboxes on one host.
  sandboxesMax: 4096,
  sandboxIdMaxChars: 64,
  sandboxNameMaxChars: 128,
  labelsMax: 64,
  labelMaxChars: 256,
  ttlMaxSeconds: 10 * 366 * 24 * 3600,
  mailboxMax: 64,

  // The journal of what a sandbox holds.
  resourcesPerOwnerMax: 256,
  releaseAttemptsMax: 5,
  releaseBackoffMs: 50,
  releaseTimeoutMs: 30 * 1000,
  /** Asking whether a value is unused reads the process table, so one pass asks about this many only. */
  leaseChecksPerPassMax: 32,
  adoptTimeoutMs: 10 * 1000,
  adoptionsAtOnceMax: 16,
  /** Taking, restoring or removing a snapshot: mostly the time to write a guest's memory. */
  snapshotTimeoutMs: 300 * 1000,

  // Dataplane.
  /** A power of two; eight connections each are remembered in the kernel. */
  connectionBucketsPerSandbox: 512,
  attachmentsRepairedAtOnce: 16,
  hooksLookedAtAgainMs: 10 * 1000,
  networksLookedAtMs: 20 * 1000,

  // Commands.
  commandMaxBytes: 1 * MIB,
  outputMaxBytes: 16 * MIB,
  execDefaultTimeoutMs: 30 * 1000,
  runningExecutionsMax: 256,
  /** How much longer than a command's own timeout the host waits for the guest agent. */
  execGraceMs: 5 * 1000,
  environmentMaxEntries: 1024,
  sandboxEnvironmentMaxBytes: 128 * KIB,

  // Executions.
  executionsKeptMax: 1000,
  /** How many are read from the disk at a time when an agent begins. */
  executionsLoadedAtOnce: 32,
  /** What is kept of each output, here and in the guest. */
  executionRingMaxBytes: 8 * MIB,
  /**
   * What is kept here of an output that holds its process up. A client that breaks off comes back for what had left the
   * agent and not reached it, and sockets hold megabytes.
   */
  executionBlockRingMaxBytes: 16 * MIB,
  /**
   * What the outputs of one sandbox may take on the host's disk: whole rings for 64 executions at once, half of which
   * hold their process up, each with an eighth more that is spare, and an eighth left for those that begin; or a third of a
   * ring for each of 256.
   */
  executionRingsTotalMaxBytes: 1024 * MIB,
  /** What of that remains of executions that are over, once nobody comes back to them. */
  executionRingsKeptMaxBytes: 256 * MIB,
  /** What is kept in memory of bytes that are on disk, while somebody is reading them. */
  executionTailBytes: 256 * KIB,
  /** The most that a reader gets at a time. */
  executionReadBytes: 256 * KIB,
  executionAcknowledgeBytes: 1 * MIB,
  executionAcknowledgeMs: 20,
  executionAttachPauseMinMs: 10,
  executionAttachPauseMaxMs: 1000,
  /** A write that failed is tried again after this long. */
  executionRetryMs: 1000,
  executionReattachGraceMs: 30 * 1000,
  executionWaitMaxMs: 600 * 1000,
  executionStartAttemptsMax: 3,
  /** What one call hands to the stdin of an execution. */
  stdinPieceMaxBytes: 256 * KIB,
  stdinWritersMax: 16,

  // SSH.
  sshConnectionsMax: 256,
  sshConnectionsPerKeyMax: 64,
  /** Connections that have not logged in; one more ends the oldest of them. */
  sshUnauthenticatedMax: 32,
  sshLoginDeadlineMs: 20 * 1000,
  sshLoginAttemptsMax: 12,
  /** A refused login is answered after this long, whatever it was refused for. */
  sshDenyDelayMs: 50,
  sshChannelsPerConnectionMax: 64,
  /** What a client may send on a channel that nobody reads; it grows for readers that keep up. */
  sshWindowMinBytes: 128 * KIB,
  sshWindowMaxBytes: 2 * MIB,
  /** Sum of the windows of a connection beyond which none grows. */
  sshWindowsPerConnectionBytes: 16 * MIB,
  sshPacketMaxBytes: 32 * KIB,
  /** A client that takes smaller packets only would make work out of proportion. */
  sshPacketMinBytes: 1 * KIB,
  /** Bytes on the way to a client beyond which output waits, and beyond which nothing more is read from it. */
  sshUnsentBytes: 512 * KIB,
  sshUnsentMaxBytes: 2 * MIB,
  /** Keys may be exchanged again after this long or this much. */
  sshRekeyMinMs: 1000,
  sshRekeyMinBytes: 64 * KIB,
  /** From a lost client's hang-up signal until its command is killed. */
  sshHangUpGraceMs: 2000,
  sshGoodbyeMs: 1000,
  sshEnvironmentMaxEntries: 64,
  sshTextMaxChars: 1024,
  sshSignalsWaitingMax: 16,
  sftpPacketMaxBytes: 256 * KIB,
  /** Content in one packet, beside which it has a few numbers and a handle. */
  sftpDataMaxBytes: 255 * KIB,
  sftpFilesMax: 256,
  sftpDirectoriesMax: 16,
  /** Streams from and to the guest that one client has at a time. */
  sftpTransfersMax: 8,
  /** What was written to one file and the guest has not taken. */
  sftpUnwrittenMaxBytes: 512 * KIB,
  /** How far a file is read ahead after a jump, and from where on it is read to its end. */
  sftpReadAheadMinBytes: 128 * KIB,
  sftpReadAheadMaxBytes: 8 * MIB,

  // Ports.
  portsListedMax: 4096,
  portWaitDefaultMs: 30 * 1000,
  portWaitMaxMs: 600 * 1000,
  exposuresPerSandboxMax: 64,
  /** Connections that clients of the host have to one exposed port. */
  exposedConnectionsMax: 128,
  /** Lower ports of the host belong to its own services. */
  exposedHostPortMin: 1024,

  // Consoles.
  consoleLinesDefault: 100,
  consoleLinesMax: 10_000,
  /** What is read back of a console's log, however many lines are asked for. */
  consoleTailMaxBytes: 1 * MIB,
  /** What a client of a console that can only be read gets of the past. */
  consoleRecentBytes: 64 * KIB,
  consoleReadBytes: 64 * KIB,
  consolePollMs: 300,

  // Warm pools.
  poolsMax: 64,
  poolSizeMax: 256,
  /** A member that could not be made is tried again after this long, doubled with each failure. */
  poolRetryMinMs: 5 * 1000,
  poolRetryMaxMs: 5 * 60 * 1000,

  // Networks.
  /** Ranges, and host names, in one list of a policy. */
  policyListMax: 1024,
  policyNamesMax: 256,
  policyPortsMax: 256,
  policyLabelsMax: 64,
  /** Ranges that one sandbox's compiled policy may have, allowed and denied. */
  policyRangesMax: 4096,
  /** More groups than this are refused, never left out. */
  groupsPerSandboxMax: 8,
  networkGroupsMax: 1024,
  networkFileMaxBytes: 16 * MIB,
  remoteRangesMax: 16_384,
  /** Addresses of one host name; more are not allowed, as if they were not its. */
  nameAddressesMax: 32,
  nameTtlMinMs: 5 * 1000,
  /** A name that nobody answers for is asked for again after this long. */
  nameRetryMs: 30 * 1000,
  nameTtlMaxMs: 3600 * 1000,
  /** How long an address stays its name's after the last answer that had it. */
  nameAddressKeepMs: 10 * 60 * 1000,
  nameResolveTimeoutMs: 3 * 1000,
  namesResolvedAtOnceMax: 16,
  flowsPageDefault: 100,
  flowsPageMax: 4096,
  /** How often the flows of all sandboxes are read while somebody follows, how many at a time, and how many are kept. */
  flowPollMs: 1000,
  flowsPerPassMax: 8192,
  flowRingMax: 16_384,
  captureSecondsMax: 30,
  capturePacketsMax: 20_000,
  capturesKeptMax: 16,
  /** What is kept of each packet. */
  captureSnapBytes: 1600,

  // Files.
  fileMaxBytes: 64 * MIB,
  pathMaxBytes: 4096,

  // Change-sets.
  manifestPathsMax: 64,
  manifestFilesMax: 200_000,
  manifestListingMaxBytes: 64 * MIB,
  manifestTimeoutMs: 300 * 1000,
  listingsAtOnceMax: 4,

  // Guest-agent protocol.
  frameMaxBytes: 2 * MIB,
  frameDataMaxBytes: 1 * MIB,
  streamCreditBytes: 1 * MIB,
  /** The credit of a stream that may run further ahead, and how many of them a connection can have. */
  wideStreamCreditBytes: 8 * MIB,
  wideStreamsPerConnectionMax: 2,
  streamsMax: 1024,
  guestCallTimeoutMs: 15 * 1000,
  guestFileTimeoutMs: 120 * 1000,
  /** The guest itself gives up earlier. */
  guestPortTimeoutMs: 45 * 1000,
  guestExecGraceMs: 10 * 1000,
  guestIdleMs: 30 * 1000,
  guestPongTimeoutMs: 10 * 1000,
  guestTextMaxChars: 1024,
  /** What waits for the guest to read it, beyond which no stream adds content. */
  guestCongestedBytes: 4 * MIB,
  guestUnsentMaxBytes: 128 * MIB,
  /** What is received at once is much from here on, and goes into memory of this size, of which so much is kept. */
  guestMuchBytes: 128 * KIB,
  guestReceiveBytes: 1024 * KIB,
  guestReceiveKeptMax: 8,
  guestLineMaxBytes: 96 * MIB,

  // State.
  commitGroupMax: 512,
  commitGroupMaxBytes: 16 * MIB,
  commitsWaitingMax: 65_536,
  eventsMax: 100_000,
  eventKeepMs: 30 * 24 * 3600 * 1000,
  idempotencyKeepMaxBytes: 256 * MIB,

  // Agent life.
  stopBudgetMs: 30 * 1000,
  /** For an instance whose work nobody will see again: removals, failed creates, copies of dry-runs. */
  discardBudgetMs: 1 * 1000,
  shutdownBudgetMs: 20 * 1000,
  ballastBytes: 8 * MIB,
  configFileMaxBytes: 1 * MIB,
  /** The text files of a template. */
  templateJsonMaxBytes: 256 * KIB,
} as const;

function holds(relation: boolean, text: string): void {
  if (!relation) throw new Error(`limits contradict each other: ${text}`);
}

holds(limits.requestBodyMaxBytes <= limits.bodyBudgetBytes, "the largest body fits the budget of bodies");
holds((limits.fileMaxBytes * 4) / 3 < limits.requestBodyMaxBytes, "a base64 file fits a request body");
holds(limits.streamCreditBytes >= limits.frameDataMaxBytes, "the data of one frame fits the initial credit");
holds(limits.commandMaxBytes + 64 * KIB < limits.frameMaxBytes, "the longest command and its arguments fit a frame");
holds((limits.fileMaxBytes * 4) / 3 < limits.guestLineMaxBytes, "a base64 file fits a version 1 line");
holds(limits.socketCreditBytes < limits.socketMessageMaxBytes, "a message beyond the credit can be told so");
holds(
  limits.executionAcknowledgeBytes < limits.executionRingMaxBytes / 4,
  "the guest's ring does not fill before it is told what may go",
);
holds(limits.stdinPieceMaxBytes + 64 * KIB < limits.frameMaxBytes, "a piece of input fits a frame");
holds(
  limits.guestCongestedBytes + limits.runningExecutionsMax * limits.stdinPieceMaxBytes < limits.guestUnsentMaxBytes,
  "content and a piece of input for each execution are not too much for a guest that reads",
);
holds(limits.commandMaxBytes < limits.jsonBodyMaxBytes, "a command fits a JSON body");
holds(
  limits.sshWindowMinBytes * limits.sshChannelsPerConnectionMax <= limits.sshWindowsPerConnectionBytes,
  "the windows of all channels of a connection fit their sum",
);
holds(limits.sshUnsentBytes + limits.executionReadBytes < limits.sshUnsentMaxBytes, "output alone never stops reading");
holds(limits.flowsPerPassMax < limits.flowRingMax, "a follower that keeps up gets every flow of a pass");
holds(limits.sftpDataMaxBytes + 512 <= limits.sftpPacketMaxBytes, "content and its packet's fields fit a packet");
