// Looks for volumes beyond their bound. Adding up a tree is dear, asking for free space is cheap: volumes are measured
// when the file system has filled up by more than a step since the last time, and now and then regardless.
import { fileSystemFacts } from "../../ffi/host/files.ts";
import { measureTree } from "../../ffi/host/trees.ts";
import { isHostError } from "../../ffi/status.ts";
import type { Logger } from "../../src/contracts/log.ts";
import type { Overshoot, Volume } from "../../src/contracts/storage.ts";

const STEP_BYTES = 16 * 1024 * 1024;
const REGULAR_MS = 5_000;
/** Measuring takes at most this share of the time, whatever a sandbox puts into its volume. */
const DUTY_SHARE = 0.2;

export interface WatcherOptions {
  readonly directory: string;
  readonly intervalMs: number;
  readonly entriesMax: number;
  readonly log: Logger;
}

export class Watcher {
  readonly #volumes = new Map<string, Volume>();
  readonly #listeners = new Set<(found: Overshoot) => void>();
  readonly #options: WatcherOptions;
  #timer: Timer | null = null;
  #looking = false;
  #usedBytes = 0;
  #measuredAt = Number.NEGATIVE_INFINITY;
  #notBefore = Number.NEGATIVE_INFINITY;

  constructor(options: WatcherOptions) {
    this.#options = options;
  }

  add(volume: Volume): void {
    this.#volumes.set(volume.name, volume);
    this.#schedule();
  }

  remove(name: string): void {
    this.#volumes.delete(name);
  }

  /** Returns how to stop listening. */
  listen(listener: (found: Overshoot) => void): () => void {
    this.#listeners.add(listener);
    this.#schedule();
    return () => this.#listeners.delete(listener);
  }

  close(): void {
    this.#volumes.clear();
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }

  #schedule(): void {
    if (this.#timer !== null || this.#looking || this.#volumes.size === 0 || this.#listeners.size === 0) return;
    this.#timer = setTimeout(() => void this.#look(), this.#options.intervalMs);
    this.#timer.unref();
  }

  async #look(): Promise<void> {
    this.#timer = null;
    this.#looking = true;
    try {
      const { totalBytes, availableBytes } = await fileSystemFacts(this.#options.directory);
      const usedBytes = totalBytes - availableBytes;
      const now = performance.now();
      const due = usedBytes - this.#usedBytes >= STEP_BYTES || now - this.#measuredAt >= REGULAR_MS;
      // What became free makes the next step start lower.
      this.#usedBytes = Math.min(this.#usedBytes, usedBytes);
      if (due && now >= this.#notBefore) {
        this.#usedBytes = usedBytes;
        await this.#measureAll();
        this.#measuredAt = performance.now();
        this.#notBefore = this.#measuredAt + (this.#measuredAt - now) * (1 / DUTY_SHARE - 1);
      }
    } catch (error) {
      this.#options.log.warn({ error }, "workspaces could not be measured");
    } finally {
      this.#looking = false;
      this.#schedule();
    }
  }

  async #measureAll(): Promise<void> {
    for (const volume of [...this.#volumes.values()]) {
      const bytes = await this.#measure(volume);
      if (bytes !== null && bytes <= volume.capBytes) continue;
      if (!this.#volumes.has(volume.name)) continue;
      for (const listener of [...this.#listeners]) listener({ volume, bytes });
    }
  }

  /** Null: too many entries. A volume that goes meanwhile, or cannot be read now, counts as empty this time. */
  async #measure(volume: Volume): Promise<number | null> {
    try {
      return (await measureTree(volume.path, this.#options.entriesMax)).bytes;
    } catch (error) {
      if (isHostError(error, "E2BIG", "ENAMETOOLONG")) return null;
      if (!isHostError(error, "ENOENT"))
        this.#options.log.warn({ volume: volume.name, error }, "workspace not measured");
      return 0;
    }
  }
}
