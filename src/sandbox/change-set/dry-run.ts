// A dry-run on a copy: the workspace is cloned, a second instance is launched on the clone exactly as the first was on
// the original, the command runs there, and the clone is thrown away whatever happened. The sandbox itself goes on.
import { join } from "node:path";
import type { Instance } from "../../contracts/backend.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Context } from "../context.ts";
import { newsOfEnd } from "../ending.ts";
import { checkCommand, commandTimeoutMs, liveOf } from "../guest-access.ts";
import type { Ledger } from "../ledger.ts";
import type { DryRunReply, DryRunRequest } from "../operations.ts";
import { lifeOwner } from "../record.ts";
import { discard, launch, makePlaces, stuckMessage, volumeRequest } from "../run.ts";
import type { Live, Sandbox, SideOperation } from "../sandbox.ts";
import { newDryRunTag } from "../snapshots/tag.ts";
import { observe } from "./observed-run.ts";
import { listingPaths } from "./paths.ts";
import { snapshotDryRun } from "./snapshot-dry-run.ts";

const DEFAULT_PATHS = ["/"];

interface Attempt {
  readonly command: DryRunRequest;
  readonly timeoutMs: number;
  readonly paths: readonly Uint8Array[];
  readonly operation: string;
  readonly ledger: Ledger;
}

/**
 * Runs a command on a copy and tells what it changed there. Rejects with `DRY_RUN_BUSY` while another runs,
 * `WORKSPACE_FULL` when the workspace is over its cap, `SANDBOX_GONE` when the sandbox is stopped meanwhile, and
 * `RELEASE_FAILED` when the copy could not be thrown away.
 */
export async function dryRun(context: Context, sandbox: Sandbox, request: DryRunRequest): Promise<DryRunReply> {
  const kind = context.backend(sandbox.record.backend).dryRun;
  if (kind === undefined) throw new AgentError("NOT_SUPPORTED");
  return kind === "snapshot"
    ? await snapshotDryRun(context, sandbox, request)
    : await dryRunOnCopy(context, sandbox, request);
}

async function dryRunOnCopy(context: Context, sandbox: Sandbox, request: DryRunRequest): Promise<DryRunReply> {
  checkCommand({ command: request.command, env: sandbox.environment });
  const paths = listingPaths(request.paths ?? DEFAULT_PATHS);
  const timeoutMs = commandTimeoutMs(sandbox.record, request.timeoutSeconds);
  const live = liveOf(sandbox);
  context.assertOpen();
  if (sandbox.dryRun !== null) throw new AgentError("DRY_RUN_BUSY");
  const operation = newDryRunTag();
  const ledger = context.ledger(`${lifeOwner(sandbox.record)}/${operation}`);
  return await new DryRun(context, sandbox, live, { command: request, timeoutMs, paths, operation, ledger }).run();
}

class DryRun {
  #aborted: AgentError | null = null;
  #instance: Instance | null = null;

  constructor(
    private readonly context: Context,
    private readonly sandbox: Sandbox,
    private readonly live: Live,
    private readonly attempt: Attempt,
  ) {}

  async run(): Promise<DryRunReply> {
    const { promise: done, resolve: finished } = Promise.withResolvers<void>();
    const side: SideOperation = {
      volumeName: this.#cloneName,
      inMailbox: false,
      abort: (cause) => this.#abort(cause),
      done,
    };
    this.sandbox.dryRun = side;
    try {
      return await this.#runAndDiscard();
    } finally {
      this.sandbox.dryRun = null;
      finished();
    }
  }

  get #cloneName(): string {
    return `${this.sandbox.id}.${this.attempt.operation}`;
  }

  #abort(cause: AgentError): void {
    this.#aborted ??= cause;
    if (this.#instance !== null) void discard(this.#instance);
  }

  async #runAndDiscard(): Promise<DryRunReply> {
    let reply: DryRunReply;
    try {
      reply = await this.#runOnCopy();
    } catch (error) {
      const end = this.#aborted === null ? await this.#endOfCopy(error) : null;
      await this.#discard().catch((fault: unknown) => {
        this.context.dependencies.log.error(
          { sandbox: this.sandbox.id, error: String(fault) },
          "a dry-run left a copy",
        );
      });
      throw this.#aborted ?? end ?? error;
    }
    await this.#discard();
    return reply;
  }

  /** The sandbox goes on when its copy ends, and the error must not say otherwise. */
  async #endOfCopy(error: unknown): Promise<AgentError | null> {
    const silent = error instanceof AgentError && (error.code === "GUEST_UNREACHABLE" || error.code === "SANDBOX_GONE");
    const reason = silent && this.#instance !== null ? await newsOfEnd(this.#instance) : null;
    return reason === null ? null : new AgentError("SANDBOX_GONE", `the copy of the dry-run ended: ${reason}`);
  }

  /** Everything up to the reply; what was acquired is in the ledger at every moment. */
  async #runOnCopy(): Promise<DryRunReply> {
    const { dependencies, places } = this.context;
    const { operation, ledger, paths, command, timeoutMs } = this.attempt;
    const { storage, crashPoint } = dependencies;
    const { volume } = this.live;
    if ((await storage.usage(volume)).bytes > volume.capBytes) throw new AgentError("WORKSPACE_FULL");
    const name = `${this.sandbox.id}/${operation}`;
    const shortName = this.context.catalogue.shortNameFor(name);
    await makePlaces(this.context, ledger, name, shortName);
    const clone = await storage.cloneVolume(volume, volumeRequest(this.sandbox, this.#cloneName), ledger);
    await crashPoint("dry-run.cloned");
    this.#assertWanted();
    const place = { shortName, instanceName: name, volume: clone, resources: ledger };
    this.#instance = await launch(this.context, this.sandbox, place);
    await crashPoint("dry-run.launched");
    this.#assertWanted();
    const listing = join(places.instanceDir(name), "before.json");
    const channel = await this.#instance.channel();
    const { environment } = this.sandbox;
    const run = { command: command.command, environment, timeoutMs, paths, listing };
    const observed = await observe(this.context, channel, run);
    return { ...observed, revertedVia: "workspace-copy" };
  }

  #assertWanted(): void {
    if (this.#aborted !== null) throw this.#aborted;
  }

  /** Throws the copy away. Rejects with `RELEASE_FAILED`; the journal then leads the removal to what is left. */
  async #discard(): Promise<void> {
    const { store, crashPoint } = this.context.dependencies;
    await crashPoint("dry-run.discarding");
    if (this.#instance !== null) await discard(this.#instance);
    const { changes, stuck } = await this.attempt.ledger.releaseAll();
    if (stuck !== null) this.sandbox.leftovers.push(this.attempt.ledger);
    if (changes.length > 0) await store.commit(changes);
    await crashPoint("dry-run.discarded");
    if (stuck === null) return;
    throw new AgentError("RELEASE_FAILED", `the copy of the dry-run could not be removed: ${stuckMessage(stuck)}`);
  }
}
