// One fake sandbox: whether it is alive or frozen, and its channel.
import { rm } from "node:fs/promises";
import { existsSync } from "node:fs";
import type { Instance, InstanceEnd, ProcessIdentity } from "../../src/contracts/backend.ts";
import type { GuestChannel } from "../../src/contracts/channel.ts";
import type { Volume } from "../../src/contracts/storage.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { FakeChannel } from "./channel.ts";
import type { FakeSpec } from "./request.ts";

export class FakeInstance implements Instance {
  readonly visiblePid = null;
  readonly enforcement = { confined: false, not_enforced: ["everything: the fake backend confines nothing"] };
  readonly ended: Promise<InstanceEnd>;
  readonly #end = Promise.withResolvers<InstanceEnd>();
  #thawed: PromiseWithResolvers<void> | null = null;

  constructor(
    readonly spec: FakeSpec,
    readonly identity: ProcessIdentity,
    readonly markerPath: string,
    readonly volume: Volume,
  ) {
    this.ended = this.#end.promise;
  }

  async channel(): Promise<GuestChannel> {
    if (this.spec.fail_at === "channel") throw new AgentError("GUEST_UNREACHABLE", "fake: failed at channel, as asked");
    this.#checkAlive();
    return new FakeChannel(this);
  }

  async stop(budgetMs: number): Promise<void> {
    await Bun.sleep(Math.min(this.spec.stop_delay_ms, budgetMs));
    if (this.spec.fail_at === "stop") throw new AgentError("DEADLINE_EXCEEDED", "fake: failed at stop, as asked");
    await rm(this.markerPath, { force: true });
    this.#end.resolve({ reason: "stopped", atUnixMs: Date.now() });
    this.thaw();
  }

  async detach(): Promise<void> {}

  freeze(): void {
    this.#thawed ??= Promise.withResolvers<void>();
  }

  thaw(): void {
    this.#thawed?.resolve();
    this.#thawed = null;
  }

  /** Runs `work` while the sandbox lives; rejects with `SANDBOX_GONE` when it is gone or ends before. */
  async during<T>(work: () => Promise<T>): Promise<T> {
    await this.#thawed?.promise;
    this.#checkAlive();
    const gone = this.ended.then((): never => {
      throw new AgentError("SANDBOX_GONE");
    });
    return Promise.race([work(), gone]);
  }

  #checkAlive(): void {
    if (!existsSync(this.markerPath)) throw new AgentError("SANDBOX_GONE");
  }
}
