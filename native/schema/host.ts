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
  {
    name: "way_make",
    about:
      "Makes a namespace, a pair of links into it, and there a bridge with a tap device, or, with no bridge, neither; the host's end is down.",
    arguments: {
      namespace: "text",
      link: "text",
      inner: "text",
      bridge: "text",
      tap: "text",
      label: "text",
      group: "u32",
      host_address: "u32",
      inner_address: "u32",
      guest_address: "u32",
      bridge_address: "u32",
      prefix_length: "u32",
      owner: "u32",
      queues: "u32",
    },
    results: { index: "u32" },
  },
  {
    name: "way_remove",
    about: "Removes a link and lets a namespace go, as far as they are there and have the label; either may be empty.",
    arguments: { namespace: "text", link: "text", label: "text", group: "u32" },
    results: { found: "u32" },
  },
  {
    name: "link_raise",
    about: "Sets a link up; with a label only one that has it.",
    arguments: { link: "text", label: "text" },
    results: {},
  },
  {
    name: "link_facts",
    about:
      "Number, group and kind of a link; state: 1, it has the label, and 2, it is up. Kinds: 1 bridge, 2 tap, 3 macvtap.",
    arguments: { link: "text", label: "text" },
    results: { index: "u32", group: "u32", state: "u32", kind: "u32" },
  },
  {
    name: "link_group",
    about: "Puts a link into a group.",
    arguments: { link: "text", group: "u32" },
    results: {},
  },
  {
    name: "tap_make",
    about: "Makes a tap device that is down and joins a bridge.",
    arguments: { link: "text", label: "text", group: "u32", bridge: "text", owner: "u32", queues: "u32" },
    results: { index: "u32" },
  },
  {
    name: "macvtap_make",
    about: "Makes a macvtap that is down, on a link, with the hardware address of its guest.",
    arguments: { link: "text", label: "text", group: "u32", lower: "text", mac: "size" },
    results: { index: "u32" },
  },
  {
    name: "tap_open",
    about: "Attaches to a queue of a tap device in a namespace, or here where that is empty; the caller owns the file.",
    arguments: { namespace: "text", link: "text", multiqueue: "u32" },
    results: { descriptor: "u32" },
  },
  {
    name: "address_probe",
    about: "Says whether a link has this address.",
    arguments: { address: "u32" },
    results: { used: "u32" },
  },
  {
    name: "bpf_object_load",
    about: "Loads an object that was given before, once; 0 or an errno, which its text explains.",
    arguments: { object: "u32" },
    results: { errno: "u32" },
  },
  {
    name: "bpf_close",
    about: "Closes an object, a map, a program or an attachment, away from the event loop.",
    arguments: { handle: "u32" },
    results: {},
  },
  {
    name: "bpf_pin",
    about: "Gives a map, a program or an attachment a name in a file system of type bpf.",
    arguments: { handle: "u32", path: "text" },
    results: {},
  },
  {
    name: "bpf_pin_open",
    about: "Opens what has a name in a file system of type bpf: 0 a map, 1 a program, 2 an attachment.",
    arguments: { path: "text" },
    results: { handle: "u32", kind: "u32" },
  },
  {
    name: "bpf_map_create",
    about: "Makes a map that is in no object.",
    arguments: {
      name: "text",
      kind: "u32",
      key_bytes: "u32",
      value_bytes: "u32",
      max_entries: "u32",
      flags: "u32",
    },
    results: { handle: "u32" },
  },
  {
    name: "bpf_map_memory",
    about: "Memory that a map takes in the kernel.",
    arguments: { map: "u32" },
    results: { bytes: "size" },
  },
  {
    name: "bpf_program_by_id",
    about: "Opens a loaded program by its number.",
    arguments: { id: "u32" },
    results: { handle: "u32" },
  },
  {
    name: "bpf_link_attach",
    about:
      "Attaches a program to an interface by TCX, in front of others or behind them, if its hook is at a revision.",
    arguments: { program: "u32", interface_index: "u32", egress: "u32", first: "u32", revision: "u64" },
    results: { handle: "u32" },
  },
  {
    name: "bpf_link_facts",
    about: "Number, program and place of an attachment by TCX.",
    arguments: { link: "u32" },
    results: { id: "u32", program_id: "u32", interface_index: "u32", egress: "u32" },
  },
  {
    name: "bpf_link_replace",
    about: "Puts another program in the place of an attachment's.",
    arguments: { link: "u32", program: "u32" },
    results: {},
  },
  {
    name: "bpf_link_detach",
    about: "Ends an attachment though it may be pinned or open elsewhere.",
    arguments: { link: "u32" },
    results: {},
  },
  {
    name: "bpf_tcx_programs",
    about: "Who is attached by TCX: how many, the first, and the place of one program from 1 on.",
    arguments: { interface_index: "u32", egress: "u32", program_id: "u32" },
    results: { revision: "u64", count: "u32", position: "u32", first_id: "u32" },
  },
  {
    name: "bpf_filter_attach",
    about: "Attaches a program by a filter of clsact, which is made if it is missing.",
    arguments: {
      program: "u32",
      interface_index: "u32",
      egress: "u32",
      priority: "u32",
      filter_handle: "u32",
      replace: "u32",
    },
    results: { program_id: "u32" },
  },
  {
    name: "bpf_filter_program",
    about: "Program of a filter, 0 where there is none.",
    arguments: { interface_index: "u32", egress: "u32", priority: "u32", filter_handle: "u32" },
    results: { program_id: "u32" },
  },
  {
    name: "bpf_filter_detach",
    about: "Removes a filter that has this program.",
    arguments: {
      interface_index: "u32",
      egress: "u32",
      priority: "u32",
      filter_handle: "u32",
      program_id: "u32",
    },
    results: { removed: "u32" },
  },
  {
    name: "bpf_xdp_attach",
    about: "Attaches a program as XDP where there is none.",
    arguments: { program: "u32", interface_index: "u32", generic: "u32" },
    results: {},
  },
  {
    name: "bpf_xdp_program",
    about: "XDP program of an interface; mode 1 is in the driver, 2 behind it.",
    arguments: { interface_index: "u32" },
    results: { program_id: "u32", mode: "u32", occupied: "u32" },
  },
  {
    name: "bpf_xdp_detach",
    about: "Removes the XDP program when it is this one.",
    arguments: { interface_index: "u32", program_id: "u32" },
    results: { removed: "u32" },
  },
  {
    name: "bpf_ring_open",
    about: "Starts a thread that carries the records of a ring buffer to a socket.",
    arguments: { map: "u32" },
    results: { descriptor: "u32" },
  },
  {
    name: "bpf_probe_load",
    about: "Loads the smallest program there is and lets it go.",
    arguments: {},
    results: {},
  },
  {
    name: "bpf_probe_tcx",
    about: "Whether the kernel attaches by TCX.",
    arguments: {},
    results: { supported: "u32" },
  },
  {
    name: "grace_period",
    about: "Waits until everything that the kernel was in the middle of, packets above all, has come to its end.",
    arguments: {},
    results: {},
  },
];
