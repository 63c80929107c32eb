// Grace periods: until every packet that the kernel was in the middle of has come to its end. One that begins after several
// asked serves all of them, so however many ask, one native thread waits.
import { runJob } from "../channel.ts";

/** The period that has begun, and the one that those who ask now get. */
let running: Promise<void> | null = null;
let next: Promise<void> | null = null;

/**
 * Resolves once every packet that was being judged when this was called has been judged. Takes milliseconds. Rejects with a
 * `HostError`: `EINVAL`: a kernel with processors that are never disturbed.
 */
export function gracePeriod(): Promise<void> {
  // One that has begun may have passed the packet of who asks now.
  next ??= (running ?? Promise.resolve()).then(begin, begin);
  return next;
}

function begin(): Promise<void> {
  next = null;
  const period = runJob("gracePeriod", {}).then(() => undefined);
  running = period;
  return period;
}
