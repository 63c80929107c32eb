// An advisory lock on a file, held by this process until it is released or the process ends, however it ends.
import { closeSync, openSync } from "node:fs";

export type LockMode = "shared" | "exclusive";

export class Lock {
  #descriptor: number | null;

  private constructor(descriptor: number) {
    this.#descriptor = descriptor;
  }

  /** Waits until the lock is free. The file is made when it is absent; its folder must be there. */
  static async take(path: string, mode: LockMode): Promise<Lock> {
    const lock = await Lock.#request(path, [`--${mode}`]);
    if (lock === null) throw new Error(`cannot lock ${path}`);
    return lock;
  }

  /** Null when somebody else holds it. */
  static tryTake(path: string, mode: LockMode): Promise<Lock | null> {
    return Lock.#request(path, [`--${mode}`, "--nonblock"]);
  }

  // The lock belongs to the open file, which the program shares with us and leaves behind when it ends.
  static async #request(path: string, flags: readonly string[]): Promise<Lock | null> {
    const descriptor = openSync(path, "a");
    const child = Bun.spawn(["flock", ...flags, "3"], { stdio: ["ignore", "ignore", "inherit", descriptor] });
    if ((await child.exited) === 0) return new Lock(descriptor);
    closeSync(descriptor);
    return null;
  }

  release(): void {
    if (this.#descriptor !== null) closeSync(this.#descriptor);
    this.#descriptor = null;
  }

  [Symbol.dispose](): void {
    this.release();
  }
}
