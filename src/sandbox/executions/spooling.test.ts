// Random lives of outputs on tiny rings that share a tiny budget: guests that send and send again, readers that come and
// go, processes that are held up, agents that end politely or at once. Whatever happens, nobody sees a wrong byte, a
// process that is held up loses none, what was confirmed is found again, and everything gets on.
import { expect, test } from "bun:test";
import { copyFileSync, existsSync } from "node:fs";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Output } from "./output.ts";
import { RingBudget, type RingSizes } from "./ring-budget.ts";
import { RingFile } from "./ring-file.ts";

const SIZES: RingSizes = { stepBytes: 720, keptMaxBytes: 24 * 640 };
/** What the least ring keeps. */
const LEAST_KEPT_BYTES = 640;
const CREDIT_BYTES = 6000;
const OUTPUTS = 6;
const STUCK_MS = 10_000;

/** Numbers that are the same for the same seed. */
class Dice {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  below(bound: number): number {
    this.#state = (Math.imul(this.#state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((this.#state / 2 ** 32) * bound);
  }

  once(in_: number): boolean {
    return this.below(in_) === 0;
  }
}

/** One output: what its guest has of it, and those who read it. */
class Life {
  /** Bytes that its process has written. */
  end = 0;
  /** The next byte that the guest sends. */
  sent = 0;
  credit = CREDIT_BYTES;
  /** Where bytes end that the guest has lost. */
  readonly gapEnds = new Set<number>();
  readonly readers: number[] = [0, 0];
  over = false;
  file!: RingFile;
  output!: Output;
  isLagging = false;
  isRead = false;

  constructor(
    readonly number: number,
    /** Held up by its first reader. */
    readonly block: boolean,
  ) {}

  get name(): string {
    return `${this.number}.stdout`;
  }

  byteAt(offset: number): number {
    return (offset * 31 + Math.floor(offset / 251) + this.number * 17) & 0xff;
  }

  bytes(from: number, length: number): Uint8Array {
    return Uint8Array.from({ length }, (_, n) => this.byteAt(from + n));
  }

  hold(file: RingFile): void {
    this.file = file;
    this.output = new Output(file, {
      arrived: () => undefined,
      kept: () => undefined,
      lagging: () => this.isLagging,
      failing: (error) => {
        throw error;
      },
    });
  }
}

class Spool {
  readonly lives: Life[] = [];
  readonly counts = { evicted: 0, refused: 0, jumps: 0, held: 0, kills: 0, restarts: 0 };
  #budget!: RingBudget;
  #directory: string;
  #numbers = 0;
  #noiseBytes = 0;

  constructor(
    readonly dice: Dice,
    readonly root: string,
    readonly totalBytes: number,
  ) {
    this.#directory = root;
    this.#newBudget();
  }

  #newBudget(): void {
    this.#noiseBytes = 0;
    this.#budget = new RingBudget(
      this.totalBytes,
      {
        bytes: () => this.#over().reduce((sum, { output }) => sum + output.diskBytes, 0),
        reserved: () => 0,
        evict: () => this.#evict(),
      },
      SIZES,
    );
  }

  #over(): Life[] {
    return this.lives.filter(({ over, isRead, output }) => over && !isRead && output.idle && output.diskBytes > 0);
  }

  #evict(): boolean {
    const [oldest] = this.#over();
    if (oldest === undefined) {
      this.counts.refused += 1;
      return false;
    }
    this.counts.evicted += 1;
    this.lives.splice(this.lives.indexOf(oldest), 1);
    void oldest.output.remove();
    return true;
  }

  begin(): void {
    const life = new Life(this.#numbers++, this.dice.once(2));
    life.hold(RingFile.create(join(this.#directory, life.name), this.#budget));
    if (life.block) life.output.setPace(0);
    this.lives.push(life);
  }

  pick(): Life | undefined {
    return this.lives[this.dice.below(this.lives.length)];
  }

  /** The process writes, and the guest sends what its credit allows. */
  write(life: Life): void {
    if (life.over) return;
    if (!life.block && this.dice.once(40)) {
      life.end += 1 + this.dice.below(300);
      life.sent = life.end;
      life.gapEnds.add(life.end);
    }
    life.end += this.dice.below(this.dice.once(10) ? 4500 : 900);
    this.send(life);
  }

  send(life: Life): void {
    while (life.sent < life.end && life.credit > 0) {
      // Not across bytes that are lost.
      const gap = [...life.gapEnds].find((gapEnd) => gapEnd > life.sent) ?? life.end;
      if (gap < life.end && life.sent < gap) {
        life.sent = gap;
        continue;
      }
      const length = Math.min(life.end - life.sent, life.credit, 1 + this.dice.below(700));
      const { output } = life;
      life.credit -= length;
      void output.append(life.sent, life.bytes(life.sent, length)).then(() => {
        if (life.output === output) life.credit = Math.min(CREDIT_BYTES, life.credit + length);
      });
      life.sent += length;
    }
    if (life.sent < life.end) this.counts.held += 1;
  }

  /** The connection was cut: the guest sends again from what is on disk. */
  cut(life: Life): void {
    life.sent = Math.max(life.output.storedEnd, Math.max(0, ...life.gapEnds));
    life.credit = CREDIT_BYTES;
    this.send(life);
  }

  async read(life: Life, reader: number): Promise<void> {
    if (!this.lives.includes(life)) return;
    const at = life.readers[reader] ?? 0;
    life.isRead = true;
    const found = await life.output.read(at, 1 + this.dice.below(2000));
    life.isRead = false;
    if (found === null) return;
    const { offset, data } = found;
    const name = `output ${life.number}, reader ${reader} at ${at}`;
    if (Buffer.compare(data, life.bytes(offset, data.length)) !== 0) throw new Error(`${name}: wrong bytes`);
    if (offset !== at) {
      this.counts.jumps += 1;
      const isFull = life.output.window.end - offset >= LEAST_KEPT_BYTES;
      if (offset < at || (life.block && reader === 0 && !life.over)) throw new Error(`${name}: goes on at ${offset}`);
      if (!isFull && !life.gapEnds.has(offset)) throw new Error(`${name}: ${offset - at} bytes lost for nothing`);
    }
    life.readers[reader] = offset + data.length;
    if (life.block && reader === 0 && !life.over) life.output.setPace(offset + data.length);
  }

  /** The process ends, and nobody holds anything up any more. */
  async finish(life: Life): Promise<void> {
    if (life.over) return;
    life.output.setPace(null);
    for (life.sent = Math.min(life.sent, life.end); life.sent < life.end; await Bun.sleep(0)) this.send(life);
    await inTime(life.output.settled(), `output ${life.number} is stored`);
    expect(life.output.window.end).toBe(life.end);
    expect(life.output.keptEnd).toBe(life.end);
    expect(life.output.idle).toBe(true);
    life.over = true;
  }

  /** What others take of the budget comes and goes. */
  noise(): void {
    this.#budget.give(this.#noiseBytes);
    this.#noiseBytes = 0;
    if (this.dice.once(2)) return;
    const bytes = this.dice.below(this.totalBytes);
    if (this.#budget.take(bytes, 0)) this.#noiseBytes = bytes;
  }

  /** Another agent takes over: after a polite end, or from whatever is in the files now. */
  async restart(kill: boolean): Promise<void> {
    const confirmed = new Map<Life, number>();
    // Those that are found again can be evicted, and no others.
    const lives = this.lives.splice(0);
    if (kill) {
      this.counts.kills += 1;
      const copy = join(this.root, `agent-${this.counts.kills}`);
      await mkdir(copy);
      for (const life of lives) {
        confirmed.set(life, life.output.keptEnd);
        const path = join(this.#directory, life.name);
        // Nothing but a write that is under way goes on while this blocks: what a killed agent leaves.
        if (existsSync(path)) copyFileSync(path, join(copy, life.name));
        void life.output.close();
      }
      this.#directory = copy;
    } else {
      this.counts.restarts += 1;
      for (const life of lives) confirmed.set(life, life.output.keptEnd);
      await inTime(Promise.all(lives.map(({ output }) => output.close())), "everything is closed");
    }
    this.#newBudget();
    for (const life of lives) {
      life.hold(await RingFile.find(join(this.#directory, life.name), this.#budget));
      this.lives.push(life);
    }
    for (const life of [...this.lives]) {
      const { output } = life;
      if (output.window.end < (confirmed.get(life) ?? 0)) throw new Error(`output ${life.number}: confirmed and lost`);
      if (life.over) continue;
      if (life.block) output.setPace(output.paceAfterRestart);
      this.cut(life);
      if (life.block) output.setPace(life.readers[0] ?? 0);
    }
  }

  /** Everything that can be read is right, and no ring is larger than it may be. */
  async check(): Promise<void> {
    const rings = this.lives.reduce((sum, { output }) => sum + output.diskBytes, 0);
    expect(this.#budget.usedBytes).toBe(rings + this.#noiseBytes);
    // The least ring of each is there whatever is used.
    expect(this.#budget.usedBytes).toBeLessThanOrEqual(this.totalBytes + this.lives.length * SIZES.stepBytes);
    for (const life of [...this.lives]) {
      const { base, end } = life.output.window;
      expect(end - base).toBeLessThanOrEqual(SIZES.keptMaxBytes);
      life.readers[2] = base;
      for (let before = -1; (life.readers[2] ?? 0) < end && before !== life.readers[2];) {
        before = life.readers[2] ?? 0;
        await this.read(life, 2);
      }
    }
  }

  async end(): Promise<void> {
    for (const life of [...this.lives]) await this.finish(life);
    await this.check();
    for (const life of [...this.lives]) await life.output.remove();
    expect(this.#budget.usedBytes).toBe(this.#noiseBytes);
  }
}

async function inTime<T>(promise: Promise<T>, what: string): Promise<T> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(new Error(`never: ${what}`)), STUCK_MS);
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function step(spool: Spool): Promise<void> {
  const { dice } = spool;
  if (spool.lives.length < OUTPUTS) spool.begin();
  const life = spool.pick();
  if (life === undefined) return;
  const what = dice.below(100);
  if (what < 45) spool.write(life);
  else if (what < 80) await spool.read(life, dice.below(2));
  else if (what < 84) spool.cut(life);
  else if (what < 87) life.isLagging = !life.isLagging;
  else if (what < 89) life.output.allRead();
  else if (what < 93) spool.noise();
  else if (what < 95) await spool.finish(life);
  else if (what < 96) await spool.restart(dice.once(2));
  else if (what < 98) await spool.check();
  else await Bun.sleep(dice.below(2));
}

test.each([
  { seed: 1, totalBytes: 3_000 },
  { seed: 2, totalBytes: 14_000 },
  { seed: 3, totalBytes: 40_000 },
  { seed: 4, totalBytes: 150_000 },
])(
  "outputs are right and get on ($totalBytes bytes for all, seed $seed)",
  async ({ seed, totalBytes }) => {
    const root = await mkdtemp(join(tmpdir(), "spool-"));
    try {
      const spool = new Spool(new Dice(seed), root, totalBytes);
      for (let n = 0; n < 3000; n++) await step(spool);
      await spool.end();
      const { evicted, jumps, held, kills, restarts } = spool.counts;
      expect(Math.min(jumps, held, kills, restarts)).toBeGreaterThan(3);
      expect(evicted > 3 || totalBytes > 100_000).toBe(true);
    } finally {
      await rm(root, { recursive: true, force: true });
    }
  },
  60_000,
);
