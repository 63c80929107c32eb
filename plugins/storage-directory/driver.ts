// Volumes as plain directories inside the instances' directories. Whatever walks their content runs on native threads
// and follows no link.
import { chmod, chown, lstat, mkdir, rm } from "node:fs/promises";
import { copyTree, measureTree, removeTree } from "../../ffi/host/trees.ts";
import { asHostFailure, isHostError } from "../../ffi/status.ts";
import type { PluginContext } from "../../src/contracts/plugin.ts";
import type { Release, Resource, ResourceScope } from "../../src/contracts/resource.ts";
import type { Overshoot, Storage, Volume, VolumeRequest } from "../../src/contracts/storage.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { DirectoryOptions } from "./options.ts";
import { type Place, placeOf, readCap, writeCap } from "./places.ts";
import { Watcher } from "./watcher.ts";

const RESOURCE_KIND = "directory-volume";
const ROOT_MODE = 0o700;

export class DirectoryStorage implements Storage {
  readonly releases: Readonly<Record<string, Release>> = { [RESOURCE_KIND]: (resource) => this.#release(resource) };
  readonly #instancesDir: string;
  readonly #entriesMax: number;
  readonly #watcher: Watcher;
  /** Names that are being made. */
  readonly #making = new Set<string>();

  constructor({ host, options, log }: PluginContext<DirectoryOptions>) {
    this.#instancesDir = host.instancesDir;
    this.#entriesMax = options.entries_max;
    this.#watcher = new Watcher({
      directory: host.instancesDir,
      intervalMs: options.watch_interval_ms,
      entriesMax: options.entries_max,
      log,
    });
  }

  createVolume(request: VolumeRequest, resources: ResourceScope): Promise<Volume> {
    return this.#make(request, resources, async ({ path }) => {
      await mkdir(path, { mode: ROOT_MODE });
    });
  }

  /** Not one instant when the source is in use: each file is copied as it is when its turn comes. */
  cloneVolume(source: Volume, request: VolumeRequest, resources: ResourceScope): Promise<Volume> {
    return this.#make(request, resources, async ({ path }) => {
      try {
        await copyTree({ source: source.path, target: path, bytesMax: request.capBytes, entriesMax: this.#entriesMax });
      } catch (error) {
        throw copyFailure(error);
      }
    });
  }

  async openVolume(name: string): Promise<Volume | null> {
    const place = placeOf(this.#instancesDir, name);
    const capBytes = await readCap(place);
    if (capBytes === null || (await kindOf(place.path)) !== "directory") return null;
    return this.#opened(place, name, capBytes);
  }

  async usage(volume: Volume): Promise<{ bytes: number }> {
    try {
      return { bytes: (await measureTree(volume.path, this.#entriesMax)).bytes };
    } catch (error) {
      if (isHostError(error, "ENOENT")) throw new AgentError("SANDBOX_GONE", "the workspace is gone");
      throw copyFailure(error);
    }
  }

  watchOvershoot(listener: (found: Overshoot) => void): () => void {
    return this.#watcher.listen(listener);
  }

  async close(): Promise<void> {
    this.#watcher.close();
  }

  async #make(
    request: VolumeRequest,
    resources: ResourceScope,
    make: (place: Place) => Promise<void>,
  ): Promise<Volume> {
    const { name, capBytes, uid, gid } = request;
    const place = placeOf(this.#instancesDir, name);
    if (this.#making.has(name) || (await kindOf(place.path)) !== "nothing") {
      throw new AgentError("SANDBOX_EXISTS", `a workspace called ${name} exists`);
    }
    this.#making.add(name);
    try {
      await resources.acquire({ kind: RESOURCE_KIND, name, data: {} }, async () => {
        await mkdir(place.instanceDir, { recursive: true, mode: ROOT_MODE });
        await writeCap(place, capBytes);
        await make(place);
        await chmod(place.path, ROOT_MODE);
        await chown(place.path, uid, gid);
      });
    } catch (error) {
      throw asHostFailure(error, "the workspace could not be made");
    } finally {
      this.#making.delete(name);
    }
    return this.#opened(place, name, capBytes);
  }

  #opened(place: Place, name: string, capBytes: number): Volume {
    const volume: Volume = { name, path: place.path, capBytes, hardCap: false };
    this.#watcher.add(volume);
    return volume;
  }

  /** The record goes last: as long as it is there, the volume may be. */
  async #release({ name }: Resource): Promise<void> {
    const place = placeOf(this.#instancesDir, name);
    this.#watcher.remove(name);
    try {
      await removeTree(place.path);
      await rm(`${place.recordPath}.new`, { force: true });
      await rm(place.recordPath, { force: true });
    } catch (error) {
      throw asHostFailure(error, `the workspace ${name} could not be deleted`);
    }
  }
}

/** What went wrong while a tree was read, in the words of the caller. */
function copyFailure(error: unknown): AgentError {
  const explain = (code: "WORKSPACE_FULL" | "LISTING_TOO_LARGE" | "WALK_FAILED" | "FILE_DENIED", text: string) =>
    new AgentError(code, text, { cause: error });
  if (isHostError(error, "EDQUOT")) return explain("WORKSPACE_FULL", "the workspace holds more than its limit");
  if (isHostError(error, "E2BIG")) return explain("LISTING_TOO_LARGE", "the workspace has too many entries");
  if (isHostError(error, "ENAMETOOLONG"))
    return explain("WALK_FAILED", "the workspace has directories that are too deep");
  if (isHostError(error, "EACCES", "EPERM")) return explain("FILE_DENIED", "a file of the workspace cannot be read");
  return asHostFailure(error, "the workspace could not be read");
}

function kindOf(path: string): Promise<"directory" | "other" | "nothing"> {
  return lstat(path).then(
    (stats) => (stats.isDirectory() ? "directory" : "other"),
    (error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return "nothing";
      throw error;
    },
  );
}
