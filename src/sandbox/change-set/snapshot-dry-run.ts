// A dry-run in the sandbox itself: memory and disk are kept as a snapshot, the command runs, what it changed is told, and
// the sandbox is put back to the snapshot whatever happened. It has the mailbox of the sandbox all the while.
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { withDeadline } from "../../errors/deadline.ts";
import type { Context } from "../context.ts";
import { tellingEnd } from "../ending.ts";
import { tellTime } from "../guest-clock.ts";
import { checkCommand, commandTimeoutMs, liveOf, runningOf } from "../guest-access.ts";
import type { DryRunReply, DryRunRequest } from "../operations.ts";
import { lifeOwner } from "../record.ts";
import { discard } from "../run.ts";
import type { Live, Sandbox, SideOperation } from "../sandbox.ts";
import { listingPath, revert, snapshotResource } from "../snapshots/revert.ts";
import { facetOf } from "../snapshots/snapshots.ts";
import { newDryRunTag } from "../snapshots/tag.ts";
import { observe } from "./observed-run.ts";
import { listingPaths } from "./paths.ts";

/**
 * Rejects with `PATHS_REQUIRED`, `DRY_RUN_BUSY`, `SANDBOX_BUSY` while commands run (they would end with it), and with
 * `DRY_RUN_NOT_REVERTED` when the changes may still be there.
 */
export async function snapshotDryRun(context: Context, sandbox: Sandbox, request: DryRunRequest): Promise<DryRunReply> {
  checkCommand({ command: request.command, env: sandbox.environment });
  if (request.paths === undefined) {
    throw new AgentError(
      "PATHS_REQUIRED",
      "paths is required: name what of the machine's root is compared, as in /root",
    );
  }
  const paths = listingPaths(request.paths);
  const timeoutMs = commandTimeoutMs(sandbox.record, request.timeoutSeconds);
  liveOf(sandbox);
  facetOf(context, sandbox);
  context.assertOpen();
  if (sandbox.dryRun !== null) throw new AgentError("DRY_RUN_BUSY");
  if (sandbox.runningCommands > 0) {
    throw new AgentError("SANDBOX_BUSY", "commands are running in the sandbox, which a dry-run would end");
  }
  if (sandbox.runningWrites > 0) {
    throw new AgentError("SANDBOX_BUSY", "files are being written in the sandbox, which a dry-run would undo");
  }
  const run = new SnapshotDryRun(context, sandbox, { command: request.command, timeoutMs, paths });
  sandbox.dryRun = run.side;
  try {
    return await sandbox.actor.run("dry-run", () => run.run());
  } finally {
    sandbox.dryRun = null;
    run.finish();
  }
}

interface Wish {
  readonly command: string;
  readonly timeoutMs: number;
  readonly paths: readonly Uint8Array[];
}

class SnapshotDryRun {
  readonly side: SideOperation;
  readonly #done = Promise.withResolvers<void>();
  #aborted: AgentError | null = null;
  #live: Live | null = null;

  constructor(
    private readonly context: Context,
    private readonly sandbox: Sandbox,
    private readonly wish: Wish,
  ) {
    this.side = {
      volumeName: sandbox.id,
      inMailbox: true,
      abort: (cause) => this.#abort(cause),
      done: this.#done.promise,
    };
  }

  finish(): void {
    this.#done.resolve();
  }

  /** Ends the command by ending the machine, which is put back afterwards. */
  #abort(cause: AgentError): void {
    this.#aborted ??= cause;
    if (this.#live !== null) void discard(this.#live.instance);
  }

  async run(): Promise<DryRunReply> {
    if (this.#aborted !== null) throw this.#aborted;
    const { context, sandbox } = this;
    const live = runningOf(sandbox);
    const tag = newDryRunTag();
    const ledger = context.ledger(`${lifeOwner(sandbox.record)}/${tag}`);
    const pending = { tag, ledger };
    sandbox.revert = pending;
    try {
      await tellingEnd(context, sandbox, () => this.#save(live, tag));
    } catch (error) {
      sandbox.revert = null;
      const { changes, stuck } = await ledger.releaseAll();
      if (stuck !== null) sandbox.leftovers.push(ledger);
      await context.dependencies.store.commit(changes);
      throw error;
    }
    this.#live = live;
    const outcome = await tellingEnd(context, sandbox, () => this.#observe(live, tag)).then(
      (observed) => ({ observed }),
      (error: unknown) => ({ error }),
    );
    this.#live = null;
    await context.dependencies.crashPoint("dry-run.reverting");
    await revert(context, sandbox, live.volume, pending);
    if ("observed" in outcome) return { ...outcome.observed, revertedVia: "snapshot" };
    throw this.#aborted ?? outcome.error;
  }

  async #save(live: Live, tag: string): Promise<void> {
    const { context, sandbox } = this;
    const facet = facetOf(context, sandbox);
    await sandbox.revert?.ledger.acquire(snapshotResource(sandbox, tag), () =>
      withDeadline(facet.save(live.instance, live.volume, tag), limits.snapshotTimeoutMs, "taking a snapshot"),
    );
    await context.dependencies.crashPoint("dry-run.saved");
    await tellTime(context, sandbox.id, live);
  }

  async #observe(live: Live, tag: string) {
    if (this.#aborted !== null) throw this.#aborted;
    const channel = await live.instance.channel();
    return await observe(this.context, channel, {
      ...this.wish,
      environment: this.sandbox.environment,
      listing: listingPath(this.context, this.sandbox.id, tag),
    });
  }
}
