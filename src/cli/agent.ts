// The agent that a command talks to, through the TypeScript client: `ApiError` is exit status 1, `UnreachableError` 3.
import type { FluxVm, RetryOptions, Sandbox } from "../../sdk/typescript/client.ts";
import type { Invocation } from "./command.ts";
import { resolveConnection } from "./connection.ts";
import { sandboxId } from "./sandbox-lookup.ts";
import type { Terminal } from "./terminal.ts";

const ANSWER_MS = 60_000;

/** The agent that the options, the environment or the configuration name. Throws `UsageError`, or `AgentError`. */
export async function connect(invocation: Invocation, terminal: Terminal): Promise<FluxVm> {
  const [{ FluxVm }, options] = await Promise.all([
    import("../../sdk/typescript/client.ts"),
    resolveConnection(invocation, terminal.environment),
  ]);
  return new FluxVm(options);
}

/** The sandbox that the argument SANDBOX, or `word`, means. Throws as `connect` does, and `ApiError`. */
export async function sandboxOf(
  invocation: Invocation,
  terminal: Terminal,
  word: string = invocation.argument("SANDBOX"),
): Promise<Sandbox> {
  const client = await connect(invocation, terminal);
  return client.sandbox(await sandboxId(client, word));
}

/** How long the whole answer of a call may take. An agent that is away is told at once. */
export function within(ms: number = ANSWER_MS): RetryOptions {
  return { signal: AbortSignal.timeout(ms), resumeMs: 0 };
}
