// What native code keeps open for us under a number: maps, programs, attachments. Closing is a job, because the last user
// of such a thing may have to wait for everybody who is still in the middle of it.
import { runJob } from "../channel.ts";

export abstract class Held implements AsyncDisposable {
  #handle: number | null;

  protected constructor(
    handle: number,
    /** For errors. */
    readonly what: string,
  ) {
    this.#handle = handle;
  }

  /** The number that native code knows it by. Throws when it was closed. */
  get handle(): number {
    if (this.#handle === null) throw new Error(`${this.what} was closed before`);
    return this.#handle;
  }

  /** Pins it at a path of a file system of type bpf: it then lives without us. `EEXIST`: there is something. */
  async pin(path: string): Promise<void> {
    await runJob("bpfPin", { handle: this.handle, path }, path);
  }

  /** Gives up our hold. What is pinned or attached elsewhere lives on. */
  async close(): Promise<void> {
    const { handle } = this;
    this.#handle = null;
    await runJob("bpfClose", { handle }, this.what);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#handle !== null) await this.close();
  }
}

const KINDS = ["map", "program", "attachment"] as const;

/**
 * Opens what is pinned at `path` and returns its number. Rejects with a `HostError` (`ENOENT`: nothing is), and with an
 * error that says so when it is of another kind.
 */
export async function openPin(path: string, kind: (typeof KINDS)[number]): Promise<number> {
  const found = await runJob("bpfPinOpen", { path }, path);
  if (KINDS[found.kind] === kind) return found.handle;
  await runJob("bpfClose", { handle: found.handle }, path);
  throw new Error(`${path} is a pinned ${KINDS[found.kind]}, not a ${kind}`);
}
