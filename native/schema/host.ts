// The single description of what crosses between TypeScript and the host library: the completion record and every job
// with its arguments and results. `generate.ts` writes both sides from it; nothing of it is written by hand elsewhere.

/**
 * `u32`: a number. `size`: 64 bits, a safe integer in TypeScript. `u64`: 64 bits, a bigint. `text`: bytes without NUL,
 * at most 4096 (paths, names, mount options).
 */
export type FieldType = "u32" | "size" | "u64" | "text";

/** At most this many results fit a completion record. */
export const RESULTS_MAX = 4;

export interface JobDescription {
  readonly name: string;
  readonly about: string;
  readonly arguments: Readonly<Record<string, FieldType>>;
  readonly results: Readonly<Record<string, Exclude<FieldType, "text">>>;
}

/** Fields of a completion record, packed in this order, little-endian. `status`: 0 or more, or a negative errno. */
export const completionFields = [
  { name: "sequence", bytes: 8 },
  { name: "status", bytes: 4 },
  { name: "kind", bytes: 4 },
  { name: "values", bytes: 8 * RESULTS_MAX },
] as const;

/** The order numbers the jobs; the ABI hash covers it, so both sides always agree. */
export const jobs: readonly JobDescription[] = [
  {
    name: "sleep",
    about: "Does nothing for a while on a native thread: measures that the event loop stays free.",
    arguments: { milliseconds: "u32" },
    results: {},
  },
  {
    name: "file_lock",
    about: "Opens or makes a file and takes an exclusive lock on it without waiting; held until the handle is closed.",
    arguments: { path: "text" },
    results: { handle: "u32" },
  },
  {
    name: "handle_close",
    about: "Closes a handle of this library, away from the event loop.",
    arguments: { handle: "u32" },
    results: {},
  },
  {
    name: "file_clone",
    about: "Makes a new file that shares the blocks of another (reflink).",
    arguments: { source: "text", target: "text", mode: "u32" },
    results: {},
  },
  {
    name: "file_sync",
    about: "Makes a file, or the whole file system that holds it, durable.",
    arguments: { path: "text", whole_file_system: "u32" },
    results: {},
  },
  {
    name: "file_allocate",
    about: "Makes a new file with all its blocks reserved, not copied on write where the file system can do that.",
    arguments: { path: "text", bytes: "size" },
    results: {},
  },
  {
    name: "file_system_facts",
    about: "Type and space of the file system that holds a path.",
    arguments: { path: "text" },
    results: { type: "size", total_bytes: "size", available_bytes: "size" },
  },
  {
    name: "directory_remove",
    about: "Removes an empty directory, asking again while it is busy (control groups empty themselves late).",
    arguments: { path: "text", timeout_ms: "u32" },
    results: {},
  },
  {
    name: "mount",
    about: "Mounts a file system at a directory and makes the mount private.",
    arguments: { source: "text", target: "text", type: "text", options: "text", flags: "u32" },
    results: {},
  },
  {
    name: "mount_image",
    about: "Mounts a file system image through a loop device that clears itself after the last use.",
    arguments: { image: "text", target: "text", type: "text", options: "text", flags: "u32" },
    results: { loop_number: "u32" },
  },
  {
    name: "unmount",
    about: "Unmounts what is mounted at a directory; with `detach` also while it is in use.",
    arguments: { target: "text", detach: "u32" },
    results: {},
  },
  {
    name: "btrfs_identity",
    about: "UUID of the btrfs that holds a path, in two halves, and the id of the path's subvolume.",
    arguments: { path: "text" },
    results: { id_high: "u64", id_low: "u64", subvolume_id: "size" },
  },
  {
    name: "btrfs_enable_quota",
    about: "Turns on simple quotas, or full quota groups where the kernel has no simple ones.",
    arguments: { path: "text" },
    results: { simple: "u32" },
  },
  {
    name: "btrfs_create",
    about: "Makes an empty subvolume with a limit and an owner; with simple quotas nested subvolumes share the limit.",
    arguments: {
      parent: "text",
      name: "text",
      limit_bytes: "size",
      simple_quota: "u32",
      mode: "u32",
      uid: "u32",
      gid: "u32",
    },
    results: { subvolume_id: "size" },
  },
  {
    name: "btrfs_clone",
    about: "Makes a writable snapshot of a subvolume, with its own limit and owner.",
    arguments: {
      source: "text",
      parent: "text",
      name: "text",
      limit_bytes: "size",
      simple_quota: "u32",
      mode: "u32",
      uid: "u32",
      gid: "u32",
    },
    results: { subvolume_id: "size" },
  },
  {
    name: "btrfs_delete",
    about: "Deletes a subvolume by name and, as far as the kernel allows at once, its quota group.",
    arguments: { parent: "text", name: "text" },
    results: { subvolume_id: "size" },
  },
  {
    name: "btrfs_sweep",
    about: "Makes the cleaner give back deleted subvolumes' space, and removes quota groups whose subvolume is gone.",
    arguments: { path: "text" },
    results: { removed: "u32", waiting: "u32" },
  },
  {
    name: "tree_copy",
    about: "Copies a directory tree that may be hostile and in use; never follows links, never leaves the file system.",
    arguments: { source: "text", target: "text", bytes_max: "size", entries_max: "u32" },
    results: { bytes: "size", entries: "u32", skipped: "u32" },
  },
  {
    name: "tree_remove",
    about: "Removes a directory tree of any depth and mode; never follows links.",
    arguments: { path: "text" },
    results: { entries: "u32" },
  },
  {
    name: "tree_measure",
    about: "Adds up the blocks that a directory tree occupies; each hard-linked file counts once.",
    arguments: { path: "text", entries_max: "u32" },
    results: { bytes: "size", entries: "u32" },
  },
  {
    name: "kvm_measure",
    about: "Runs a guest of a few instructions at ring 0, and says how many a second it got through.",
    arguments: { instructions: "u32" },
    results: { per_second: "size" },
  },
  {
    name: "vsock_cid_probe",
    about:
      "Says whether a machine could have this vsock id now; an error says that no machine of this host can have one.",
    arguments: { cid: "u32" },
    results: { free: "u32" },
  },
];
