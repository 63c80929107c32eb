// The pool: one btrfs that holds every volume. It is found again by its UUID after a restart of the agent (still
// mounted), after a reboot (mounted again) and after a crash in the middle of making it (finished).
import { chmod, lstat, mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { btrfsIdentity, enableQuota } from "../../ffi/host/btrfs.ts";
import { allocateFile, fileSystemFacts, syncFile } from "../../ffi/host/files.ts";
import { mountFlags, mountImage, unmount } from "../../ffi/host/mounts.ts";
import { asHostFailure, isHostError } from "../../ffi/status.ts";
import type { Logger } from "../../src/contracts/log.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { quotaState } from "./accounting.ts";
import { formatTool, nativePool } from "./capabilities.ts";
import { type BtrfsOptions, poolBytes } from "./options.ts";
import { type PoolRecord, readPoolRecord, writePoolRecord } from "./pool-record.ts";

/** Discarding would punch holes into the preallocated image, and its space would be anybody's. */
const MOUNT_OPTIONS = "nodiscard";
const MOUNT_FLAGS = mountFlags.noSuid | mountFlags.noDevices | mountFlags.noAccessTimes;
/** Others may pass through to their own volume by name, and list nothing. */
const POOL_MODE = 0o711;
const FORMAT_TIMEOUT_MS = 60_000;
const FORMAT_OUTPUT_MAX_CHARS = 500;

export interface OpenPool {
  /** Directory whose subvolumes are the volumes. */
  readonly path: string;
  readonly uuid: string;
  readonly simpleQuota: boolean;
}

export class Pool {
  readonly #path: string;
  readonly #image: string;
  readonly #recordPath: string;
  /** One opening at a time: two mounts of one image would be a mistake. */
  #opening: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly stateDir: string,
    private readonly options: BtrfsOptions,
    private readonly log: Logger,
  ) {
    this.#path = join(stateDir, "pool");
    this.#image = join(stateDir, "pool.img");
    this.#recordPath = join(stateDir, "pool.json");
  }

  /** The pool, mounted; null when none was ever made. */
  find(): Promise<OpenPool | null> {
    return this.#alone(async () => {
      const record = await readPoolRecord(this.#recordPath);
      return record === null ? null : this.#open(record);
    });
  }

  /** The pool, mounted; made when there is none. Rejects with `HOST_FULL` when it does not fit. */
  require(): Promise<OpenPool> {
    return this.#alone(async () => this.#open((await readPoolRecord(this.#recordPath)) ?? (await this.#plan())));
  }

  /** Unmounts a pool image that holds no volume; anything else stays as it is. */
  close(): Promise<void> {
    return this.#alone(async () => {
      const record = await readPoolRecord(this.#recordPath);
      if (record?.kind !== "image" || !(await this.#isMounted(record)) || (await readdir(this.#path)).length > 0)
        return;
      try {
        await unmount(this.#path, { detach: false });
      } catch (error) {
        if (!isHostError(error, "EBUSY")) throw error;
        this.log.info({ path: this.#path }, "the empty workspace pool is in use and stays mounted");
      }
    });
  }

  #alone<T>(action: () => Promise<T>): Promise<T> {
    const run = this.#opening.then(action);
    this.#opening = run.catch(() => {});
    return run.catch((error: unknown) => {
      throw asHostFailure(error, "the workspace pool could not be opened");
    });
  }

  async #plan(): Promise<PoolRecord> {
    const native = await nativePool(this.stateDir);
    if (native === null && (await exists(this.#image))) {
      throw new AgentError(
        "STATE_UNAVAILABLE",
        `${this.#image} exists without ${this.#recordPath}; restore the record, or remove the image with its content`,
      );
    }
    const size = native === null ? poolBytes(this.options, (await fileSystemFacts(this.stateDir)).availableBytes) : 0;
    const record: PoolRecord = {
      version: 1,
      kind: native === null ? "image" : "native",
      uuid: native?.uuid ?? crypto.randomUUID(),
      size_bytes: size,
    };
    await writePoolRecord(this.#recordPath, record);
    return record;
  }

  async #open(record: PoolRecord): Promise<OpenPool> {
    if (!(await this.#isMounted(record))) {
      await mkdir(this.#path).catch(ignoring("EEXIST"));
      if (record.kind === "image") await this.#mountImage(record);
      await chmod(this.#path, POOL_MODE);
      if (!(await this.#isMounted(record))) {
        throw new AgentError("STATE_UNAVAILABLE", `${this.#path} is not on the file system ${record.uuid}`);
      }
    }
    return { path: this.#path, uuid: record.uuid, simpleQuota: await this.#quota(record) };
  }

  async #mountImage(record: PoolRecord): Promise<void> {
    if (!(await exists(this.#image))) await this.#format(record);
    const started = performance.now();
    const request = { target: this.#path, type: "btrfs", options: MOUNT_OPTIONS, flags: MOUNT_FLAGS };
    const { loopNumber } = await mountImage(this.#image, request);
    const elapsedMs = Math.round(performance.now() - started);
    this.log.info({ path: this.#path, loopNumber, elapsedMs }, "workspace pool mounted");
  }

  /** The image gets its name when it is complete, so that a crash leaves a file that is recognised and made again. */
  async #format(record: PoolRecord): Promise<void> {
    const tool = formatTool();
    if (tool === null) {
      throw new AgentError("CAPABILITY_MISSING", "mkfs.btrfs is not installed; install the package btrfs-progs");
    }
    const beside = `${this.#image}.new`;
    await rm(beside, { force: true });
    try {
      await allocateFile(beside, record.size_bytes);
      await format(tool, beside, record.uuid);
      await syncFile(beside);
      await rename(beside, this.#image);
    } catch (error) {
      await rm(beside, { force: true });
      // Nothing was promised with this record, and the next attempt may find another size.
      await rm(this.#recordPath, { force: true });
      throw error;
    }
    this.log.info({ path: this.#image, bytes: record.size_bytes }, "workspace pool made");
  }

  async #quota(record: PoolRecord): Promise<boolean> {
    const state = await quotaState(record.uuid);
    if (state.enabled) return state.simple;
    if (record.kind === "native") {
      throw new AgentError(
        "STATE_UNAVAILABLE",
        `quotas were turned off on ${this.#path}; run \`btrfs quota enable\` there`,
      );
    }
    return (await enableQuota(this.#path)).simple;
  }

  async #isMounted(record: PoolRecord): Promise<boolean> {
    try {
      return (await btrfsIdentity(this.#path)).uuid === record.uuid;
    } catch (error) {
      if (isHostError(error, "ENOTTY", "ENOENT", "ENOTDIR", "ELOOP")) return false;
      throw error;
    }
  }
}

async function format(tool: string, image: string, uuid: string): Promise<void> {
  const child = Bun.spawn([tool, "-q", "-f", "-K", "-m", "single", "-d", "single", "-U", uuid, image], {
    env: {},
    stdin: "ignore",
    stdout: "ignore",
    stderr: "pipe",
    timeout: FORMAT_TIMEOUT_MS,
    killSignal: "SIGKILL",
  });
  const [said, exitCode] = await Promise.all([new Response(child.stderr).text(), child.exited]);
  if (exitCode === 0) return;
  throw new Error(`mkfs.btrfs ended with ${child.signalCode ?? exitCode}: ${said.slice(0, FORMAT_OUTPUT_MAX_CHARS)}`);
}

/** Whether there is anything of that name. */
export function exists(path: string): Promise<boolean> {
  return lstat(path).then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return false;
      throw error;
    },
  );
}

function ignoring(code: string): (error: NodeJS.ErrnoException) => void {
  return (error) => {
    if (error.code !== code) throw error;
  };
}
