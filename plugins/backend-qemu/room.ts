// A machine that writes to its disk when the host has no room stands still at that write: its guest would take an error
// for a broken disk. It goes on when there is room again, unless it was frozen meanwhile.
import type { Json, JsonObject } from "../../src/contracts/json.ts";

const LOOK_INTERVAL_MS = 1000;
const WAITS = "io-error";

export class Room {
  #isShort = false;
  #isFrozen = false;
  #looking = false;
  /** Since the last answer; it may have been told in the same breath as that. */
  #heard = false;

  /** `run` asks the monitor; it rejects once the machine is gone. */
  constructor(private readonly run: (command: string) => Promise<Json>) {}

  /** Whether the machine waits for room, as far as was seen a second ago. */
  get isShort(): boolean {
    return this.#isShort;
  }

  /** Somebody froze the machine or let it go on, and this must not undo that. */
  set isFrozen(isFrozen: boolean) {
    this.#isFrozen = isFrozen;
  }

  /** QEMU told of something. */
  hear(event: string, data: JsonObject): void {
    if (event === "BLOCK_IO_ERROR" && data.nospace === true && data.action === "stop") this.look();
  }

  /** Looks at once whether the machine waits, and every second for as long as it does. */
  look(): void {
    this.#heard = true;
    if (this.#looking) return;
    this.#looking = true;
    void this.#look().finally(() => {
      this.#looking = false;
    });
  }

  async #look(): Promise<void> {
    try {
      while (this.#heard) {
        this.#heard = false;
        await this.#outwait();
      }
    } catch {
      // Whoever uses the machine hears of its end.
    }
  }

  async #outwait(): Promise<void> {
    while (((await this.run("query-status")) as JsonObject).status === WAITS) {
      this.#isShort = true;
      await Bun.sleep(LOOK_INTERVAL_MS);
      if (!this.#isFrozen) await this.run("cont");
    }
    this.#isShort = false;
  }
}
