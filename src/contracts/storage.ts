// Storage: writable volumes for sandboxes. A volume is a directory with a bound on its size; a clone is an independent
// copy at one instant. Capability words: `hard_cap` (the bound holds while a command runs), `instant_clone` (a clone
// costs the same whatever the volume holds).
import type { Release, ResourceScope } from "./resource.ts";

/** A volume's name is one path component and no dot name. */
export const VOLUME_NAME_PATTERN = /^[A-Za-z0-9-][A-Za-z0-9.-]{0,127}$/;

export interface Volume {
  /** Resource name: the sandbox id, or `<id>.<purpose>` for a clone. Matches `VOLUME_NAME_PATTERN`. */
  readonly name: string;
  /** Absolute host directory that is the root of the volume. */
  readonly path: string;
  readonly capBytes: number;
  /** Whether the bound holds while a command runs. */
  readonly hardCap: boolean;
}

export interface VolumeRequest {
  readonly name: string;
  readonly capBytes: number;
  /** Owner of the volume's root directory, mode 0700. */
  readonly uid: number;
  readonly gid: number;
}

/** A volume that was found beyond its bound. */
export interface Overshoot {
  readonly volume: Volume;
  /** What it holds, or null when it has too many entries to add up. */
  readonly bytes: number | null;
}

export interface Storage {
  readonly releases: Readonly<Record<string, Release>>;
  createVolume(request: VolumeRequest, resources: ResourceScope): Promise<Volume>;
  /** Clones `source` under a new name with the same owner; the source may be in use. */
  cloneVolume(source: Volume, request: VolumeRequest, resources: ResourceScope): Promise<Volume>;
  /** The volume of a sandbox after an agent restart, or null when it is gone. */
  openVolume(name: string): Promise<Volume | null>;
  usage(volume: Volume): Promise<{ bytes: number }>;
  /**
   * Facet of storage without `hard_cap`: reports volumes beyond their bound, again and again while they are, so that
   * their writers can be stopped. Nothing is watched until somebody asks. Returns how to stop.
   */
  readonly watchOvershoot?: (listener: (found: Overshoot) => void) => () => void;
  /** Stops what the plugin runs in the agent (watchers); volumes stay. */
  close(): Promise<void>;
}
