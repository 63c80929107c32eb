// Every bound of the agent, with the relations between them asserted once at load. Units are in the names.

const KIB = 1024;
const MIB = 1024 * KIB;

export const limits = {
  // HTTP.
  requestBodyMaxBytes: 96 * MIB,
  jsonBodyMaxBytes: 2 * MIB,
  idempotencyBodyMaxBytes: 16 * MIB,
  idempotencyReplyMaxBytes: 8 * MIB,
  idempotencyKeepMs: 24 * 3600 * 1000,
  rateBucketIdleMs: 10 * 60 * 1000,

  // Sandboxes on one host.
  sandboxesMax: 4096,
  sandboxIdMaxChars: 64,
  sandboxNameMaxChars: 128,
  labelsMax: 64,
  labelMaxChars: 256,

  // Commands.
  commandMaxBytes: 1 * MIB,
  commandInlineMaxBytes: 128 * KIB,
  outputMaxBytes: 16 * MIB,
  execDefaultTimeoutMs: 30 * 1000,
  runningExecutionsMax: 256,

  // Files.
  fileMaxBytes: 64 * MIB,
  pathMaxBytes: 4096,

  // Change-sets.
  manifestPathsMax: 64,
  manifestFilesMax: 200_000,
  manifestListingMaxBytes: 64 * MIB,
  manifestTimeoutMs: 300 * 1000,
  workspaceEntriesMax: 500_000,

  // Guest-agent protocol.
  frameMaxBytes: 1 * MIB + 64,
  streamCreditBytes: 1 * MIB,
  streamsMax: 1024,
  guestConnectTimeoutMs: 5 * 1000,

  // Agent life.
  stopBudgetMs: 30 * 1000,
  shutdownBudgetMs: 20 * 1000,
  ballastBytes: 8 * MIB,
  configFileMaxBytes: 1 * MIB,
} as const;

function holds(relation: boolean, text: string): void {
  if (!relation) throw new Error(`limits contradict each other: ${text}`);
}

holds(limits.commandInlineMaxBytes <= limits.commandMaxBytes, "an inline command fits the command limit");
holds((limits.fileMaxBytes * 4) / 3 < limits.requestBodyMaxBytes, "a base64 file fits a request body");
holds(limits.streamCreditBytes >= limits.frameMaxBytes - 64, "one frame fits the initial credit");
holds(limits.commandMaxBytes < limits.jsonBodyMaxBytes, "a command fits a JSON body");
