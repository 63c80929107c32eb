// The periodic work of the core: sandboxes whose time is over are removed, pools are filled, quarantined leases are freed,
// and old rows of the state go. Stored deadlines are wall time, so they hold over restarts and suspends.
import type { Context } from "./context.ts";
import type { PoolKeeper } from "./pools/keeper.ts";
import { ttlDeadlineUnixMs } from "./record.ts";
import { remove } from "./remove.ts";

const PRUNE_INTERVAL_MS = 60 * 1000;

export class Reaper {
  #timer: ReturnType<typeof setTimeout> | null = null;
  #pass: Promise<void> = Promise.resolve();
  #stopped = false;
  #prunedAtUnixMs = 0;

  constructor(
    private readonly context: Context,
    private readonly pools: Pick<PoolKeeper, "tend">,
  ) {}

  start(): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => {
      this.#pass = this.pass().finally(() => this.start());
    }, this.context.dependencies.settings.reaperIntervalMs);
    this.#timer.unref();
  }

  /** Resolves when the pass that runs, if any, is over; no other begins. */
  async stop(): Promise<void> {
    this.#stopped = true;
    if (this.#timer !== null) clearTimeout(this.#timer);
    await this.#pass;
  }

  /** One pass. Faults are logged; the next pass tries again. */
  async pass(): Promise<void> {
    const { log, clock, store } = this.context.dependencies;
    const now = clock.nowUnixMs();
    const attempt = (what: string, work: Promise<void>): Promise<void> =>
      work.catch((error: unknown) => log.warn({ error: String(error) }, `reaper: ${what} failed`));
    const expired = this.context.catalogue.all().filter(({ record }) => {
      const deadline = ttlDeadlineUnixMs(record);
      return deadline !== null && deadline <= now;
    });
    await Promise.all(
      expired.map(async (sandbox) => {
        log.info({ sandbox: sandbox.id }, "the time of a sandbox is over");
        await attempt(`removing ${sandbox.id}`, remove(this.context, sandbox));
      }),
    );
    this.pools.tend();
    await attempt("freeing leases", this.context.leases.sweep());
    if (now - this.#prunedAtUnixMs < PRUNE_INTERVAL_MS) return;
    this.#prunedAtUnixMs = now;
    await attempt("pruning the state", store.prune(now));
  }
}
