// Every error code of the agent: its HTTP status, whether the same call may work later, and its default message.
// A message that a client of the reference API matches on is kept to the letter. Codes are only ever added.

interface ErrorEntry {
  readonly status: number;
  readonly retryable: boolean;
  readonly message: string;
}

const entry = (status: number, message: string, retryable = false): ErrorEntry => ({ status, message, retryable });

export const catalogue = {
  // The request itself.
  BAD_REQUEST: entry(400, "bad request"),
  MALFORMED_JSON: entry(400, "the body is not valid JSON"),
  INVALID_FIELD: entry(422, "a field has the wrong type or is missing"),
  UNSUPPORTED_MEDIA_TYPE: entry(415, "send Content-Type: application/json"),
  BODY_TOO_LARGE: entry(413, "the request body is too large"),
  BODY_TOO_SLOW: entry(408, "the request body came too slowly", true),
  UPLOADS_BUSY: entry(503, "too many large requests at once; try again later", true),
  COMMAND_TOO_LARGE: entry(413, "the command is larger than 1 MiB"),
  STREAMS_EXHAUSTED: entry(429, "this token has as many streams attached as it may", true),
  ROUTE_NOT_FOUND: entry(404, "no such route; GET /v1/openapi.json lists those of this agent"),
  METHOD_NOT_ALLOWED: entry(405, "this route does not answer that method"),
  UPGRADE_REQUIRED: entry(426, "this route answers WebSocket upgrades only"),
  RATE_LIMITED: entry(429, "too many requests; try again later", true),

  // Who is calling.
  AUTH_REQUIRED: entry(401, "missing or invalid bearer token"),
  ADMIN_REQUIRED: entry(403, "admin role required"),
  ORIGIN_REFUSED: entry(403, "requests from this origin are refused"),
  TENANT_REFUSED: entry(403, "this token may not act for that tenant"),
  HOST_WIDE_REFUSED: entry(403, "a tenant's token may not use host-wide routes"),
  HOST_PATHS_REFUSED: entry(403, "a tenant's token may not choose places of the host"),
  QUOTA_EXCEEDED: entry(403, "the quota of this token is used up"),

  // Idempotency.
  IDEMPOTENCY_KEY_INVALID: entry(400, "Idempotency-Key must be 1 to 255 visible ASCII characters"),
  IDEMPOTENCY_IN_FLIGHT: entry(409, "a request with this Idempotency-Key is in flight", true),
  IDEMPOTENCY_MISMATCH: entry(422, "this Idempotency-Key was used with a different body"),

  // Sandboxes.
  SANDBOX_NOT_FOUND: entry(404, "VM not found"),
  SANDBOX_EXISTS: entry(409, "a sandbox with this id exists"),
  SANDBOX_BUSY: entry(409, "another operation on this sandbox is in progress", true),
  SANDBOX_NOT_READY: entry(412, "the sandbox is not ready", true),
  SANDBOX_PAUSED: entry(423, "the sandbox is paused"),
  SANDBOX_GONE: entry(409, "the sandbox has ended"),
  REVERTED: entry(409, "the sandbox was put back to an earlier state: begin again"),
  INVALID_STATE: entry(412, "the sandbox is in a state that does not allow this"),
  INVALID_ID: entry(400, "an id is 1 to 64 of A-Z, a-z, 0-9 and -"),
  CREATE_KIND_MISSING: entry(400, "name a template, a spec or a procbox"),
  SANDBOXES_EXHAUSTED: entry(503, "this host runs as many sandboxes as its limit allows", true),

  RELEASE_FAILED: entry(500, "something that the sandbox held could not be released; delete it again", true),

  // Backends and plugins.
  PROCBOX_DISABLED: entry(403, "procbox sandboxes are disabled on this host"),
  CONFINEMENT_UNAVAILABLE: entry(503, "this host cannot confine the sandbox as asked"),
  UID_POOL_EXHAUSTED: entry(503, "no free sandbox uid", true),
  LAUNCH_FAILED: entry(500, "the sandbox could not be started"),
  MONITOR_ERROR: entry(500, "the virtual machine monitor failed"),
  SNAPSHOT_NOT_FOUND: entry(404, "no such snapshot"),
  SNAPSHOT_EXISTS: entry(409, "a snapshot with this tag exists"),
  RESTORE_NEEDS_STOP: entry(409, "this backend restores a stopped sandbox only; stop it first"),
  NOT_SUPPORTED: entry(501, "this backend cannot do that"),
  CAPABILITY_MISSING: entry(501, "a capability of the host is missing"),
  PLUGIN_NOT_FOUND: entry(404, "no such plugin"),
  PLUGIN_REFUSED: entry(400, "the plugin was refused"),
  PLUGIN_FAULT: entry(500, "a plugin failed"),

  // Networks.
  NETWORK_FAILED: entry(500, "the network of the sandbox could not be set up"),
  DATAPLANE_FAILED: entry(500, "the dataplane could not enforce the policy"),
  POLICY_INVALID: entry(400, "the network policy is invalid"),
  NETWORK_GROUP_NOT_FOUND: entry(404, "no such network group"),
  CNP_NOT_FOUND: entry(404, "no such network policy document"),
  ADDRESSES_EXHAUSTED: entry(503, "no free address block", true),
  CAPTURE_NOT_FOUND: entry(404, "no such capture"),
  CAPTURE_BUSY: entry(409, "a capture of this sandbox is running", true),

  // Templates.
  POOL_NOT_FOUND: entry(404, "pool not found"),
  POOL_EXISTS: entry(400, "a pool of this name exists"),
  POOL_EMPTY: entry(503, "no sandbox of the pool is ready", true),
  TEMPLATE_NOT_FOUND: entry(404, "no such template"),
  TEMPLATE_EXISTS: entry(409, "a template of this name exists"),
  TEMPLATE_IN_USE: entry(409, "sandboxes or pools need the template"),
  TEMPLATE_BUSY: entry(409, "another template is being built or removed", true),
  TEMPLATE_INVALID: entry(400, "the template is invalid"),
  TEMPLATE_BUILD_FAILED: entry(500, "the template could not be built"),

  // Commands, files and change-sets in the guest.
  PROGRAM_NOT_FOUND: entry(400, "no such program in the sandbox"),
  PROGRAM_DENIED: entry(400, "the program cannot be run in the sandbox"),
  GUEST_ERROR: entry(400, "guest agent error"),
  GUEST_UNREACHABLE: entry(503, "the guest agent does not answer", true),
  PROTOCOL_MISMATCH: entry(502, "the guest agent speaks another protocol"),
  PATH_INVALID: entry(400, "unsafe or invalid path"),
  PATHS_REQUIRED: entry(400, "paths is required"),
  FILE_NOT_FOUND: entry(400, "path not found"),
  FILE_NOT_REGULAR: entry(400, "not a regular file"),
  FILE_DENIED: entry(400, "the sandbox may not access this path"),
  FILE_IS_SYMLINK: entry(400, "symbolic links are not followed"),
  PATH_NOT_FOUND: entry(404, "path not found"),
  PATH_EXISTS: entry(409, "something has this name"),
  DIRECTORY_NOT_EMPTY: entry(412, "the directory is not empty"),
  RANGE_NOT_SATISFIABLE: entry(416, "the file has no such part"),
  ARCHIVE_REFUSED: entry(400, "the archive was refused"),
  NOT_A_DIRECTORY: entry(400, "not a directory"),
  FILE_TOO_LARGE: entry(413, "the file is larger than the limit"),
  WORKSPACE_FULL: entry(413, "the workspace is full"),
  WALK_FAILED: entry(400, "listing the files failed"),
  LISTING_TOO_LARGE: entry(413, "too many files; narrow the paths"),
  BASELINE_MISSING: entry(404, "no baseline recorded for this sandbox"),
  BASELINE_CORRUPT: entry(400, "the stored baseline is corrupt; take a new one"),
  BASELINE_MODE_CHANGED: entry(409, "the baseline used another fingerprint mode; take a new one"),
  DRY_RUN_BUSY: entry(409, "another dry-run or restore is running on this sandbox", true),
  DRY_RUN_NOT_REVERTED: entry(500, "the changes may still be in the sandbox"),

  // Executions.
  EXECUTION_NOT_FOUND: entry(404, "no such execution"),
  EXECUTION_EXISTS: entry(409, "an execution with this id runs or ran another command"),
  EXECUTION_EXITED: entry(412, "the execution has exited"),
  STDIN_GAP: entry(416, "the offset lies beyond the input that was taken"),
  STDIN_CLOSED: entry(400, "the input is closed"),
  TTY_REQUIRED: entry(400, "the execution has no terminal"),

  // Ports.
  PORT_REFUSED: entry(502, "nothing in the sandbox listens on this port", true),
  PORT_WAIT_TIMEOUT: entry(504, "nothing has come to listen on the port in time", true),
  PORT_BROKEN: entry(502, "the connection to the port broke off"),
  PORTS_BUSY: entry(409, "the sandbox has as many ports, connections to them or waits for them as it may", true),
  PORT_IN_USE: entry(409, "the port of the host is taken"),
  PORT_RESERVED: entry(403, "the agent itself uses this port of the host"),
  PORT_EXPOSED: entry(409, "this port is exposed on another port of the host"),
  PORT_NOT_EXPOSED: entry(404, "this port is not exposed"),

  // The agent and its host.
  CONFIG_INVALID: entry(400, "the configuration is invalid"),
  STATE_LOCKED: entry(503, "another agent uses this state directory"),
  STATE_NEWER: entry(503, "the state directory was written by a newer version"),
  STATE_UNAVAILABLE: entry(503, "the state could not be written", true),
  HOST_FULL: entry(507, "the host has no space left", true),
  SHUTTING_DOWN: entry(503, "the agent is shutting down", true),
  DEADLINE_EXCEEDED: entry(504, "the operation took too long", true),
  INTERNAL: entry(500, "internal error"),
} as const satisfies Record<string, ErrorEntry>;

export type ErrorCode = keyof typeof catalogue;
