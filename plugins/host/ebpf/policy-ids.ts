// Numbers of compiled policies. Connections that the kernel remembers name the policy that allowed them, so a number is
// never used for another policy as long as the maps live, whatever became of the agent that gave it out.
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { dirname } from "node:path";
import { AgentError } from "../../../src/errors/agent-error.ts";

/** Numbers are reserved on disk in blocks, so that most of them cost no write. */
const BLOCK = 4096;
/** How far beyond the highest number in the maps an agent begins that finds no reservation. */
const UNKNOWN_GAP = 1 << 20;
const NUMBER_MAX = 0xffff_ffff;

export class PolicyNumbers {
  #next: number;
  #reservedBelow: number;
  #reserving: Promise<void> = Promise.resolve();

  private constructor(
    private readonly path: string,
    first: number,
  ) {
    this.#next = first;
    this.#reservedBelow = first;
  }

  /** `highestSeen`: of all numbers that are in the maps, 0 without any. */
  static async open(path: string, highestSeen: number): Promise<PolicyNumbers> {
    const reserved = await readReservation(path);
    const first = Math.max(reserved ?? 0, highestSeen === 0 ? 1 : highestSeen + (reserved === null ? UNKNOWN_GAP : 1));
    const numbers = new PolicyNumbers(path, first);
    await numbers.#reserve();
    return numbers;
  }

  /** A number that no policy of these maps had. Rejects with `DATAPLANE_FAILED` after four billion of them. */
  async take(): Promise<number> {
    while (this.#next >= this.#reservedBelow) {
      this.#reserving = this.#reserving.catch(() => undefined).then(() => this.#reserve());
      await this.#reserving;
    }
    const number = this.#next;
    this.#next += 1;
    return number;
  }

  async #reserve(): Promise<void> {
    if (this.#next < this.#reservedBelow) return;
    const below = this.#reservedBelow + BLOCK;
    if (below > NUMBER_MAX) {
      throw new AgentError("DATAPLANE_FAILED", "the numbers of policies are used up; restart the host");
    }
    await mkdir(dirname(this.path), { recursive: true, mode: 0o700 });
    await writeFile(`${this.path}.new`, `${below}\n`, { mode: 0o600 });
    await rename(`${this.path}.new`, this.path);
    this.#reservedBelow = below;
  }
}

async function readReservation(path: string): Promise<number | null> {
  const text = await readFile(path, "utf8").catch(() => "");
  return /^\d{1,10}\n$/.test(text) ? Number(text) : null;
}
