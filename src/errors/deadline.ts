// A bound on how long somebody waits; what is waited for goes on.
import { AgentError } from "./agent-error.ts";

/** Settles like `work`, or rejects with `DEADLINE_EXCEEDED` after `ms`. What was started goes on and is ignored then. */
export async function withDeadline<T>(work: Promise<T>, ms: number, what: string): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const expired = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new AgentError("DEADLINE_EXCEEDED", `${what} took longer than ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([work, expired]);
  } finally {
    clearTimeout(timer);
  }
}
