// The flows that one stream follows: those of its filter, each as the exporter of the wire contract writes it, and a mark
// wherever some were lost.
import type { HttpDependencies } from "../dependencies.ts";
import type { Frame, FrameSource } from "../stream/frame.ts";
import { flowReply } from "./flow.ts";

const FLOW_FRAME = "fluxvm.network.flow";

/** What there is to follow. */
export type FollowedFlows = NonNullable<HttpDependencies["flows"]>;

export interface FlowFilter {
  /** Null sees everything; a tenant sees its own. */
  readonly tenant: string | null;
  readonly sandboxId?: string;
  readonly verdict?: "allow" | "drop";
}

/** The last flow that the client has seen. */
export interface FlowPosition {
  readonly epoch: string;
  readonly sequence: number;
}

export class FlowFrames implements FrameSource {
  readonly #abort = new AbortController();
  readonly #pending: Frame[] = [];
  #deliveries: ReturnType<FollowedFlows["follow"]> | null = null;

  /** Without `after` it begins with the next flow that is new or advances. */
  constructor(
    private readonly feed: FollowedFlows,
    private readonly filter: FlowFilter,
    private readonly after: FlowPosition | null,
  ) {}

  async next(): Promise<Frame | null> {
    const deliveries = (this.#deliveries ??= await this.#begin());
    const pending = this.#pending.shift();
    if (pending !== undefined) return pending;
    const { epoch } = this.feed;
    for (;;) {
      const { value, done } = await deliveries.next();
      if (done === true || value === undefined) return null;
      // How many were lost says nothing where not all are wanted, and would tell a tenant about the others.
      if ("missed" in value || value.item === null) return { type: "lagged", epoch, missed: null };
      const { sandbox, flow } = value.item;
      const { tenant, sandboxId, verdict } = this.filter;
      if (tenant !== null && sandbox.tenant !== tenant) continue;
      if ((sandboxId ?? sandbox.id) !== sandbox.id || (verdict ?? flow.verdict) !== flow.verdict) continue;
      return { type: FLOW_FRAME, vm_id: sandbox.id, flow: flowReply(flow), epoch, sequence: value.sequence };
    }
  }

  close(): void {
    this.#abort.abort();
  }

  async #begin(): Promise<ReturnType<FollowedFlows["follow"]>> {
    const { epoch } = this.feed;
    const now = await this.feed.join(this.#abort.signal);
    const { after } = this;
    // Another epoch is another life of the agent: what was missed of it cannot be counted.
    if (after !== null && after.epoch !== epoch) this.#pending.push({ type: "lagged", epoch, missed: null });
    const sequence = after?.epoch === epoch ? after.sequence : now;
    this.#pending.push({ type: "following", epoch, sequence });
    return this.feed.follow(this.#abort.signal, sequence);
  }
}
