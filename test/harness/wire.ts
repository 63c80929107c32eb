// The frames of one interface in one network namespace, in the hands of a test: what it sends goes out as it is, and what
// arrives is kept. The work is done by `wire.c`, one process an interface.
import { join } from "node:path";
import type { FileSink, Subprocess } from "bun";
import { read, type Reading } from "./frames.ts";
import { outputOf } from "./program.ts";

const ANSWER_TIMEOUT_MS = 30_000;

/** Builds the helper program at `output`. */
export async function buildWire(output: string): Promise<void> {
  await outputOf(["cc", "-O2", "-Wall", "-static", "-o", output, join(import.meta.dir, "wire.c")]);
}

/** A frame that arrived, and what it says. */
export interface Arrival extends Reading {
  readonly frame: Uint8Array;
}

export interface Flood {
  readonly frames: readonly Uint8Array[];
  readonly perSecond: number;
  readonly count: number;
  /** Each frame has another source port, so that it begins a connection of its own. */
  readonly freshFlows?: boolean;
}

export class Wire {
  /** What arrived, oldest first; a test may empty it. */
  readonly arrivals: Arrival[] = [];
  readonly #process: Subprocess<"pipe", "pipe", "inherit">;
  readonly #answers: ((line: string) => void)[] = [];
  readonly #floodEnds: ((line: string) => void)[] = [];
  readonly #watchers = new Set<() => void>();
  #unanswered: string[] = [];
  #ended = false;

  private constructor(process: Subprocess<"pipe", "pipe", "inherit">) {
    this.#process = process;
    void this.#readLines();
  }

  /** Resolves when frames of `interfaceName` in `namespace` are seen. `processor`: the one that sends; any when unset. */
  static async open(program: string, namespace: string, interfaceName: string, processor?: number): Promise<Wire> {
    const pinned = processor === undefined ? [] : ["taskset", "--cpu-list", String(processor)];
    const argv = [...pinned, "nsenter", `--net=/run/netns/${namespace}`, program, interfaceName];
    const wire = new Wire(Bun.spawn(argv, { stdin: "pipe", stdout: "pipe", stderr: "inherit" }));
    await wire.#answer();
    return wire;
  }

  /** @throws Error with the error's number when the interface does not take the frame */
  async send(frame: Uint8Array): Promise<void> {
    await this.#ask(`s ${hex(frame)}`);
  }

  /** Past every hook of the interface where it goes out. */
  async sendPastHooks(frame: Uint8Array): Promise<void> {
    await this.#ask(`q ${hex(frame)}`);
  }

  /** One TCP frame that stands for segments of `segmentBytes` each. */
  async sendSegments(frame: Uint8Array, segmentBytes: number): Promise<void> {
    await this.#ask(`g ${segmentBytes} ${hex(frame)}`);
  }

  /** Sends in the background; resolves when all were sent, with how many the interface did not take. */
  flood({ frames, perSecond, count, freshFlows }: Flood): Promise<{ sent: number; failed: number }> {
    const { promise, resolve } = Promise.withResolvers<string>();
    this.#floodEnds.push(resolve);
    this.#write(`f ${perSecond} ${count} ${freshFlows === true ? 1 : 0} ${frames.map(hex).join(" ")}`);
    return promise.then((line) => {
      const [sent = 0, failed = 0] = line.slice(2).split(" ").map(Number);
      return { sent, failed };
    });
  }

  /** From now on arrivals are counted and not kept. */
  async count(): Promise<void> {
    await this.#ask("c");
  }

  /** Frames since `count`, by `family/protocol/destination port`. Throws when some came too fast to be counted. */
  async counted(): Promise<ReadonlyMap<string, number>> {
    const line = await this.#ask("C");
    const [overflows, ...entries] = line.slice(2).split(" ");
    if (overflows !== "0") throw new Error(`${overflows} frames arrived too fast`);
    return new Map(
      entries.map((entry) => {
        const [key = "", frames] = entry.split("=");
        return [key, Number(frames)];
      }),
    );
  }

  /** Resolves when a frame that `wanted` accepts is there, or was. */
  async until(wanted: (arrival: Arrival) => boolean): Promise<Arrival> {
    const deadline = performance.now() + ANSWER_TIMEOUT_MS;
    for (;;) {
      const found = this.arrivals.find(wanted);
      if (found !== undefined) return found;
      if (this.#ended || performance.now() > deadline) throw new Error("the frame did not arrive");
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#watchers.add(resolve);
      await Promise.race([promise, Bun.sleep(100)]);
      this.#watchers.delete(resolve);
    }
  }

  async close(): Promise<void> {
    await this.#process.stdin.end();
    await this.#process.exited;
  }

  #write(line: string): void {
    const input: FileSink = this.#process.stdin;
    input.write(`${line}\n`);
    input.flush();
  }

  async #ask(line: string): Promise<string> {
    this.#write(line);
    const answer = await this.#answer();
    if (answer.startsWith("e")) throw new Error(`the interface does not take it: errno ${answer.slice(2)}`);
    return answer;
  }

  #answer(): Promise<string> {
    const early = this.#unanswered.shift();
    if (early !== undefined) return Promise.resolve(early);
    if (this.#ended) return Promise.reject(new Error("the wire's program has ended"));
    const { promise, resolve } = Promise.withResolvers<string>();
    this.#answers.push(resolve);
    return promise;
  }

  async #readLines(): Promise<void> {
    const decoder = new TextDecoder();
    let rest = "";
    for await (const chunk of this.#process.stdout) {
      const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) this.#take(line);
    }
    this.#ended = true;
    for (const resolve of [...this.#answers, ...this.#floodEnds]) resolve("e 0");
  }

  #take(line: string): void {
    if (line.startsWith("r ")) {
      const frame = Uint8Array.fromHex(line.slice(2));
      this.arrivals.push({ ...read(frame), frame });
      for (const wake of this.#watchers) wake();
      return;
    }
    const waiting = line.startsWith("f ") ? this.#floodEnds.shift() : this.#answers.shift();
    if (waiting === undefined) this.#unanswered.push(line);
    else waiting(line);
  }
}

function hex(frame: Uint8Array): string {
  return frame.toHex();
}
