// The snapshots of one sandbox by their tags: its memory and disk as they were.
import type { CallOptions } from "./retry.ts";
import { segment, type Transport } from "./transport.ts";
import type { Snapshot, VmRecord } from "./types.ts";

/** Every method rejects with `ApiError` (`NOT_SUPPORTED` where there is no memory that could be kept) or `UnreachableError`. */
export class Snapshots {
  readonly #path: string;

  constructor(
    private readonly transport: Transport,
    sandboxId: string,
  ) {
    this.#path = `/v1/sandboxes/${segment(sandboxId)}`;
  }

  /** Keeps memory and disk; the sandbox goes on as it was. Rejects with `SNAPSHOT_EXISTS`. */
  take(tag: string, { signal }: CallOptions = {}): Promise<Snapshot> {
    return this.transport.json("POST", `${this.#path}/snapshot`, { json: { tag }, signal });
  }

  async list({ signal }: CallOptions = {}): Promise<readonly Snapshot[]> {
    const path = `${this.#path}/snapshots`;
    return (await this.transport.json<{ items: readonly Snapshot[] }>("GET", path, { signal })).items;
  }

  async remove(tag: string, { signal }: CallOptions = {}): Promise<void> {
    await this.transport.json("DELETE", `${this.#path}/snapshots/${segment(tag)}`, { signal });
  }

  /** Puts the sandbox back to it, where what was started since is over; a stopped one is started from it. */
  restore(tag: string, { signal }: CallOptions = {}): Promise<VmRecord> {
    return this.transport.json("POST", `${this.#path}/restore`, { json: { tag }, signal });
  }

  /** Starts a stopped sandbox from it. */
  start(tag: string, { signal }: CallOptions = {}): Promise<VmRecord> {
    return this.transport.json("POST", `${this.#path}/start-from-snapshot`, { json: { tag }, signal });
  }
}
