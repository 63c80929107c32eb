// Volumes as subvolumes of the pool. A volume's name is its subvolume's name, its bound is the subvolume's quota; the
// file system itself is the record of both, so nothing has to be kept in step with it. Bounds may add up to more than
// the pool: one volume cannot fill it, several together can, and new ones are then refused.
import { lstat } from "node:fs/promises";
import { join } from "node:path";
import {
  btrfsIdentity,
  cloneSubvolume,
  createSubvolume,
  deleteSubvolume,
  type SubvolumeRequest,
  sweepQuotaGroups,
} from "../../ffi/host/btrfs.ts";
import { fileSystemFacts } from "../../ffi/host/files.ts";
import { asHostFailure, isHostError } from "../../ffi/status.ts";
import type { Logger } from "../../src/contracts/log.ts";
import type { PluginContext } from "../../src/contracts/plugin.ts";
import type { Release, Resource, ResourceScope } from "../../src/contracts/resource.ts";
import { type Storage, type Volume, VOLUME_NAME_PATTERN, type VolumeRequest } from "../../src/contracts/storage.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { limitOf, referencedBytes } from "./accounting.ts";
import type { BtrfsOptions } from "./options.ts";
import { exists, type OpenPool, Pool } from "./pool.ts";

const RESOURCE_KIND = "btrfs-volume";
const SUBVOLUME_ROOT_INODE = 256;
const ROOT_MODE = 0o700;
/**
 * A new volume is refused when less than this share of the pool is free: btrfs takes space in groups of up to a tenth of
 * the file system, so the last tenth may not be there for the files of a new volume.
 */
const FREE_SHARE_MIN = 0.1;
/** A volume is bounded by this share of the pool whatever was asked for, so that none can fill the pool alone. */
const POOL_SHARE_MAX = 0.5;
/** Space of deleted volumes comes back late, so a full pool is swept and looked at again. */
const FULL_ATTEMPTS = 4;
const FULL_PAUSE_MS = 250;
const SWEEP_PAUSE_MS = 5_000;

export class BtrfsStorage implements Storage {
  readonly releases: Readonly<Record<string, Release>> = { [RESOURCE_KIND]: (resource) => this.#release(resource) };
  readonly #pool: Pool;
  readonly #log: Logger;
  /** Names that are being made; the file system does not know them yet. */
  readonly #making = new Set<string>();
  #sweep: Timer | null = null;

  constructor({ host, options, log }: PluginContext<BtrfsOptions>) {
    this.#pool = new Pool(host.stateDir, options, log);
    this.#log = log;
  }

  createVolume(request: VolumeRequest, resources: ResourceScope): Promise<Volume> {
    return this.#make(request, resources, (subvolume) => createSubvolume(subvolume));
  }

  cloneVolume(source: Volume, request: VolumeRequest, resources: ResourceScope): Promise<Volume> {
    return this.#make(request, resources, (subvolume) => cloneSubvolume(source.path, subvolume));
  }

  async openVolume(name: string): Promise<Volume | null> {
    checkName(name);
    const pool = await this.#pool.find();
    return pool === null ? null : this.#open(pool, name);
  }

  /** With simple quotas a clone counts only what it does not share with its source. */
  async usage(volume: Volume): Promise<{ bytes: number }> {
    const pool = await this.#pool.find();
    const subvolumeId = pool === null ? null : await this.#subvolumeId(pool, volume.name);
    if (pool === null || subvolumeId === null) throw new AgentError("SANDBOX_GONE", "the workspace is gone");
    return { bytes: await referencedBytes(pool.uuid, subvolumeId) };
  }

  async close(): Promise<void> {
    if (this.#sweep !== null) clearTimeout(this.#sweep);
    this.#sweep = null;
    await this.#pool.close();
  }

  async #make(
    request: VolumeRequest,
    resources: ResourceScope,
    make: (subvolume: SubvolumeRequest) => Promise<unknown>,
  ): Promise<Volume> {
    const { name, capBytes, uid, gid } = request;
    checkName(name);
    const pool = await this.#pool.require();
    if (this.#making.has(name) || (await exists(join(pool.path, name)))) {
      throw new AgentError("SANDBOX_EXISTS", `a workspace called ${name} exists`);
    }
    this.#making.add(name);
    try {
      const { totalBytes } = await this.#admit(pool);
      const limitBytes = Math.min(capBytes, Math.floor(totalBytes * POOL_SHARE_MAX));
      const { simpleQuota } = pool;
      const subvolume = { parent: pool.path, name, limitBytes, simpleQuota, mode: ROOT_MODE, uid, gid };
      const resource = { kind: RESOURCE_KIND, name, data: { pool: pool.uuid } };
      await resources.acquire(resource, () => make(subvolume));
      return volumeOf(pool, name, limitBytes);
    } catch (error) {
      throw asHostFailure(error, "the workspace could not be made");
    } finally {
      this.#making.delete(name);
    }
  }

  /** Rejects with `HOST_FULL` when the pool has no room for another volume. */
  async #admit(pool: OpenPool): Promise<{ totalBytes: number }> {
    for (let attempt = 1; ; attempt += 1) {
      const { totalBytes, availableBytes } = await fileSystemFacts(pool.path);
      if (availableBytes >= totalBytes * FREE_SHARE_MIN) return { totalBytes };
      if (attempt === FULL_ATTEMPTS) throw new AgentError("HOST_FULL", "the workspace pool is full");
      await sweepQuotaGroups(pool.path);
      await Bun.sleep(FULL_PAUSE_MS);
    }
  }

  async #open(pool: OpenPool, name: string): Promise<Volume | null> {
    const subvolumeId = await this.#subvolumeId(pool, name);
    if (subvolumeId === null) return null;
    const capBytes = await limitOf(pool.uuid, subvolumeId);
    // Without a bound it is not one that we finished making.
    return capBytes === null ? null : volumeOf(pool, name, capBytes);
  }

  /** Null: there is no subvolume of that name. */
  async #subvolumeId(pool: OpenPool, name: string): Promise<number | null> {
    try {
      const path = join(pool.path, name);
      if ((await lstat(path)).ino !== SUBVOLUME_ROOT_INODE) return null;
      return (await btrfsIdentity(path)).subvolumeId;
    } catch (error) {
      if (isHostError(error, "ENOENT") || (error as NodeJS.ErrnoException).code === "ENOENT") return null;
      throw asHostFailure(error, "the workspace could not be opened");
    }
  }

  async #release(resource: Resource): Promise<void> {
    checkName(resource.name);
    const pool = await this.#pool.find();
    if (pool === null || pool.uuid !== resource.data.pool) {
      this.#log.warn(
        { name: resource.name, pool: resource.data.pool ?? null },
        "a volume's pool does not exist any more",
      );
      return;
    }
    try {
      if ((await deleteSubvolume(pool.path, resource.name)) !== null) this.#sweepLater();
    } catch (error) {
      throw asHostFailure(error, `the workspace ${resource.name} could not be deleted`);
    }
  }

  /** Quota groups can be removed when the file system has cleaned up behind the deletion, seconds later. */
  #sweepLater(): void {
    if (this.#sweep !== null) return;
    this.#sweep = setTimeout(() => void this.#sweepNow(), SWEEP_PAUSE_MS);
    this.#sweep.unref();
  }

  async #sweepNow(): Promise<void> {
    try {
      const pool = await this.#pool.find();
      const left = pool === null ? 0 : (await sweepQuotaGroups(pool.path)).waiting;
      this.#sweep = null;
      if (left > 0) this.#sweepLater();
    } catch (error) {
      this.#sweep = null;
      this.#log.warn({ error }, "quota groups of deleted workspaces could not be removed");
    }
  }
}

function volumeOf(pool: OpenPool, name: string, capBytes: number): Volume {
  return { name, path: join(pool.path, name), capBytes, hardCap: true };
}

function checkName(name: string): void {
  if (!VOLUME_NAME_PATTERN.test(name))
    throw new AgentError("INVALID_ID", "a volume's name is 1 to 128 of A-Z, a-z, 0-9, . and -");
}
