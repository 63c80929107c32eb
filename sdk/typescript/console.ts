// The log of a sandbox's console, byte for byte. A connection that breaks ends it: nobody knows how far it had come.
import { UnreachableError } from "./errors.ts";
import { bodyOf } from "./frames.ts";
import type { CallOptions } from "./retry.ts";
import { segment, type Transport } from "./transport.ts";

export interface LogOptions extends CallOptions {
  /** The last lines that are given; 100 when absent. */
  readonly lines?: number;
  /** What is written later follows, until the sandbox is deleted. */
  readonly follow?: boolean;
}

/** The pieces of the log. Throws `ApiError` or `UnreachableError`. */
export async function* readLog(
  transport: Transport,
  sandboxId: string,
  { lines, follow, signal }: LogOptions = {},
): AsyncGenerator<Uint8Array, void, void> {
  const path = `/v1/vms/${segment(sandboxId)}/logs`;
  const response = await transport.request("GET", path, { query: { lines, follow }, accept: "text/plain", signal });
  const reader = bodyOf(response).getReader();
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
  } catch (cause) {
    if (signal?.aborted) throw cause;
    throw new UnreachableError(`the connection to the agent at ${transport.address} was cut`, { cause });
  } finally {
    reader.cancel().catch(() => {});
  }
}
