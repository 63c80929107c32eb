// Resources: things on the host that must be given back. Each is journalled by name before it is acquired, and the
// journal rows of a sandbox are its cleanup stack: unwind, delete and reconcile all call the same release.
import type { JsonObject } from "./json.ts";

/** One thing held: a directory, a control group, a process, a socket. */
export interface Resource {
  /** Kind word, unique over all plugins, for example `cgroup`, `process`, `volume`. */
  readonly kind: string;
  /** Unique within the kind; release acts on this name and nothing else. */
  readonly name: string;
  /** What release needs beside the name; never a secret. */
  readonly data: JsonObject;
}

/**
 * Gives a resource back. Must succeed when it is already gone, may be called again after a crash at any point, and
 * must verify (by recorded identity) that what it removes is what was recorded.
 */
export type Release = (resource: Resource) => Promise<void>;

/** The journal of one owner (a sandbox generation, or one operation on it). */
export interface ResourceScope {
  /**
   * Writes the intent durably, runs `make`, and keeps the row until the resource is released. When `make` throws, the
   * row stays and the owner's unwind releases it.
   */
  acquire<T>(resource: Resource, make: () => Promise<T>): Promise<T>;
  /** Replaces `data` of a row that is held, durably (for example a process identity known only after the start). */
  update(kind: string, name: string, data: JsonObject): Promise<void>;
  /** Releases one held resource now and removes its row. */
  release(kind: string, name: string): Promise<void>;
  /** The rows held at this moment, oldest first. */
  held(): readonly Resource[];
}
