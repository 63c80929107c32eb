// Requests that may be sent again: the row of a key begins with the first transaction of the work, gets the reply with the
// one that makes the result durable, and goes when the work fails. After a crash `reconcile` forgets rows without a reply.
import type { Change } from "../state/change.ts";
import { AgentError } from "../errors/agent-error.ts";
import { IdempotencyConflict } from "../state/conflicts.ts";
import type { Context } from "./context.ts";
import type { IdempotentRequest } from "./operations.ts";

/** For the first transaction. Its commit fails with `IdempotencyConflict` where the key is in use. */
export function beginKey(context: Context, request: IdempotentRequest<never> | undefined): Change[] {
  if (request === undefined) return [];
  const { hash, bodyHash } = request;
  const createdAtUnixMs = context.dependencies.clock.nowUnixMs();
  return [{ begin: "idempotency", row: { hash, bodyHash, reply: null, createdAtUnixMs } }];
}

/** For the transaction that makes `outcome` durable. */
export function finishKey<Outcome>(request: IdempotentRequest<Outcome> | undefined, outcome: Outcome): Change[] {
  if (request === undefined) return [];
  return [{ finish: "idempotency", hash: request.hash, reply: request.reply(outcome) }];
}

/** For the transaction that ends work that failed. */
export function forgetKey(request: IdempotentRequest<never> | undefined): Change[] {
  return request === undefined ? [] : [{ remove: "idempotency", hash: request.hash }];
}

/** What a caller hears of a commit with `beginKey` that failed. */
export function keyError(error: unknown): unknown {
  return error instanceof IdempotencyConflict ? new AgentError("IDEMPOTENCY_IN_FLIGHT") : error;
}

/** Runs work whose result the state does not hold: what it made is there before its reply is. */
export async function once<Outcome>(
  context: Context,
  request: IdempotentRequest<Outcome> | undefined,
  work: () => Promise<Outcome>,
): Promise<Outcome> {
  if (request === undefined) return await work();
  const { store, log } = context.dependencies;
  await store.commit(beginKey(context, request)).catch((error: unknown) => {
    throw keyError(error);
  });
  try {
    const outcome = await work();
    await store.commit(finishKey(request, outcome));
    return outcome;
  } catch (error) {
    await store.commit(forgetKey(request)).catch((cause: unknown) => {
      log.warn({ error: String(cause) }, "the key of a request that failed is in use until the agent starts again");
    });
    throw error;
  }
}
