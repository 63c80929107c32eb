// Changes of files as they happen. What happened while a connection was broken nobody knows, and that is told.
import { following } from "./following.ts";
import type { RetryOptions } from "./retry.ts";
import type { Query, Transport } from "./transport.ts";

export type WatchFrame =
  /** From here on nothing is missed. */
  | { readonly type: "ready" }
  | {
      readonly type: "change";
      readonly change: "created" | "modified" | "removed" | "renamed";
      readonly path: string;
      /** The exact bytes, when they are not UTF-8. */
      readonly path_base64?: string;
      readonly renamed_to?: string;
      readonly renamed_to_base64?: string;
    }
  /** Changes were lost: look at everything again. */
  | { readonly type: "overflow" }
  /** The last one. */
  | { readonly type: "ended"; readonly reason: "sandbox_ended" | "directory_removed" };

/** The frames, to the last one. Throws `ApiError`, or `UnreachableError` when the agent stays away. */
export async function* watched(
  transport: Transport,
  path: string,
  query: Query,
  options: RetryOptions,
): AsyncGenerator<WatchFrame, void, void> {
  let isAgain = false;
  for await (const frame of following<WatchFrame>(transport, path, () => query, options)) {
    if (frame.type === "ready" && isAgain) yield { type: "overflow" };
    else yield frame;
    if (frame.type === "ended") return;
    isAgain = true;
  }
}
