// What flows between sandboxes and the world, as it happens. A connection that breaks is made again behind the last flow;
// whatever was lost all the same is told.
import { following } from "./following.ts";
import type { RetryOptions } from "./retry.ts";
import type { Transport } from "./transport.ts";
import type { Flow } from "./types.ts";

export type FlowFrame =
  | ({ readonly type: "fluxvm.network.flow"; readonly vm_id: string; readonly flow: Flow } & FlowPosition)
  /** Flows were lost before the next one, nobody knows how many. */
  | { readonly type: "lagged"; readonly missed: null };

export interface FlowPosition {
  /** One life of the agent. */
  readonly epoch: string;
  readonly sequence: number;
}

export interface FlowFilter {
  /** Id of a sandbox. */
  readonly vm_id?: string;
  readonly verdict?: "allow" | "drop";
}

export interface FollowFlowsOptions extends RetryOptions {
  /** The last flow that was seen; without it, it begins with the next one. */
  readonly after?: FlowPosition;
}

type Frame = FlowFrame | ({ readonly type: "following" } & FlowPosition);

/** Follows flows until the signal aborts. Throws `ApiError`, or `UnreachableError` when the agent stays away. */
export async function* followFlows(
  transport: Transport,
  filter: FlowFilter = {},
  options: FollowFlowsOptions = {},
): AsyncGenerator<FlowFrame, void, void> {
  let { after } = options;
  const query = () => ({ ...filter, ...(after && { epoch: after.epoch, after: after.sequence }) });
  for await (const frame of following<Frame>(transport, "/v1/network/flows/stream", query, options)) {
    if (frame.type !== "lagged") after = { epoch: frame.epoch, sequence: frame.sequence };
    if (frame.type !== "following") yield frame;
  }
}
