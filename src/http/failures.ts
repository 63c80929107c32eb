// Which error codes go together: what may fail when a route reaches the guest, names a file, lists files or launches.
// Routes name these groups, and the OpenAPI document lists the codes.
import type { ErrorCode } from "../errors/catalogue.ts";

type Codes = readonly ErrorCode[];

/** The sandbox is not in a state to do it, or its guest agent does not. */
export const sandboxFailures: Codes = [
  "SANDBOX_NOT_READY",
  "SANDBOX_GONE",
  "SANDBOX_BUSY",
  "INVALID_STATE",
  "GUEST_ERROR",
  "GUEST_UNREACHABLE",
  "PROTOCOL_MISMATCH",
  "CONFINEMENT_UNAVAILABLE",
  "CAPABILITY_MISSING",
  "NOT_SUPPORTED",
];

/** The same of a call that reaches the guest: it resumes a paused sandbox unless the caller declines, and stays out of a dry-run. */
export const guestFailures: Codes = [...sandboxFailures, "SANDBOX_PAUSED", "DRY_RUN_BUSY"];

/** The path leads nowhere, or where it may not. */
export const pathFailures: Codes = [
  "PATH_INVALID",
  "FILE_NOT_FOUND",
  "FILE_NOT_REGULAR",
  "FILE_DENIED",
  "FILE_IS_SYMLINK",
  "NOT_A_DIRECTORY",
  "FILE_TOO_LARGE",
];

/** The same on routes that stream files, where a missing path is a 404. */
export const streamedFileFailures: Codes = [
  "PATH_INVALID",
  "PATH_NOT_FOUND",
  "FILE_NOT_REGULAR",
  "FILE_DENIED",
  "FILE_IS_SYMLINK",
  "NOT_A_DIRECTORY",
];

/** The files of a sandbox cannot be listed. */
export const listingFailures: Codes = [...pathFailures, "PATHS_REQUIRED", "WALK_FAILED", "LISTING_TOO_LARGE"];

/** An instance cannot be made, or not taken apart. */
export const launchFailures: Codes = [
  "LAUNCH_FAILED",
  "RELEASE_FAILED",
  "PLUGIN_FAULT",
  "CONFINEMENT_UNAVAILABLE",
  "CAPABILITY_MISSING",
  "NOT_SUPPORTED",
  "UID_POOL_EXHAUSTED",
  "GUEST_UNREACHABLE",
  "PROTOCOL_MISMATCH",
  "WORKSPACE_FULL",
];
