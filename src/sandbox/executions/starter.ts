// The reader that started an execution, and what its pace and its loss mean: it alone may hold the process up, and when
// it goes another has half a minute to take its place before the process is let run, or the process is killed at once.
import { limits } from "../../config/limits.ts";
import type { OutputOffsets } from "../../contracts/executions.ts";
import type { OutputReader } from "./reader.ts";

export interface StarterHooks {
  /** How far the reader has come that holds the process up; null: nobody holds it up. */
  readonly pace: (offsets: OutputOffsets | null) => void;
  /** The guest must not hold the process up any more. */
  readonly unblock: () => void;
  readonly kill: () => void;
}

export interface StarterRules {
  /** Hold the process up at the pace of the reader. */
  readonly block: boolean;
  /** How far the reader has come. */
  readonly from: OutputOffsets;
  /** Kill the process when the reader is lost. */
  readonly kill: boolean;
}

export class Starter {
  readonly #hooks: StarterHooks;
  #reader: OutputReader | null = null;
  #block = false;
  #kill = false;
  #killUnread = false;
  #grace: Timer | null = null;

  constructor(hooks: StarterHooks) {
    this.#hooks = hooks;
  }

  /** The process has begun; where it may be held up, somebody has to come and read. */
  begin({ block, from, kill }: StarterRules): void {
    this.#block = block;
    this.#kill = kill;
    if (!block) return;
    this.#hooks.pace(from);
    this.#startGrace();
  }

  /** The process went on without the agent, whose end was the loss of whoever had the role. */
  resume(rules: StarterRules): void {
    this.begin(rules);
    this.#killUnread = rules.kill;
    if (rules.kill) this.#startGrace();
  }

  /** The newest has the role. */
  take(reader: OutputReader): void {
    this.#stopGrace();
    this.#killUnread = false;
    this.#reader = reader;
    this.advanced(reader);
  }

  advanced(reader: OutputReader): void {
    if (reader === this.#reader && this.#block) this.#hooks.pace(reader.offsets);
  }

  left(reader: OutputReader): void {
    if (reader !== this.#reader) return;
    this.#reader = null;
    if (this.#kill) this.#hooks.kill();
    else if (this.#block) this.#startGrace();
  }

  /** The agent lets go: nobody's loss means anything, and the process stays as far as it is. */
  suspend(): void {
    this.#stopGrace();
    this.#reader = null;
    this.#kill = false;
  }

  /** The process is over: what waits for the reader is let through. */
  release(): void {
    this.suspend();
    if (this.#block) this.#hooks.pace(null);
    this.#block = false;
  }

  #startGrace(): void {
    this.#stopGrace();
    this.#grace = setTimeout(() => this.#graceOver(), limits.executionReattachGraceMs);
    this.#grace.unref();
  }

  #graceOver(): void {
    this.#grace = null;
    if (this.#killUnread) this.#hooks.kill();
    if (!this.#block) return;
    this.#block = false;
    this.#hooks.pace(null);
    this.#hooks.unblock();
  }

  #stopGrace(): void {
    if (this.#grace !== null) clearTimeout(this.#grace);
    this.#grace = null;
  }
}
