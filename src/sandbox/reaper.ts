// The periodic work of the core: sandboxes whose time is over are removed, pools are filled, quarantined leases are freed,
// and old rows of the state go. Stored deadlines are wall time, so they hold over restarts and suspends.
import type { Context } from "./context.ts";
import type { PoolKeeper } from "./pools/keeper.ts";
import { ttlDeadlineUnixMs } from "./record.ts";
import { remove } from "./remove.ts";

const PRUNE_INTERVAL_MS = 60 * 1000;

export class Reaper {
  #prunedAtUnixMs = 0;

  constructor(
    private readonly context: Context,
    private readonly pools: Pick<PoolKeeper, "tend">,
  ) {}

  /** One pass; never rejects. Faults are logged; the next pass tries again. */
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
