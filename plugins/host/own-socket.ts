// Connecting to a socket in a directory that belongs to a machine's user. Somebody who got out of a guest may have put a link
// there to a service of the host, which would take an agent that is root for one of its own.
import type { Socket, SocketHandler } from "bun";
import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { AgentError } from "../../src/errors/agent-error.ts";

/** Of Linux; the runtime has no name for it. Such a descriptor says which file it is, and opens nothing. */
const O_PATH = 0o10_000_000;

/** Connects to the very socket at `path`. Rejects with `GUEST_UNREACHABLE` for what is none, or as the system does. */
export async function connectOwn(path: string, handler: SocketHandler<unknown>): Promise<Socket<unknown>> {
  const place = await open(path, O_PATH | constants.O_NOFOLLOW);
  try {
    if (!(await place.stat()).isSocket()) throw new AgentError("GUEST_UNREACHABLE", "what is there is not a socket");
    // Leads to that socket whatever has its name by now.
    return await Bun.connect({ unix: `/proc/self/fd/${place.fd}`, socket: handler });
  } finally {
    await place.close();
  }
}
