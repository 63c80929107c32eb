// How a connected socket that native code has made becomes one of the event loop's. Bun does that by descriptor, which
// its public types leave out.
import type { Socket, SocketHandler } from "bun";

/** The descriptor is the event loop's from here on. */
export const adoptSocket = Bun.connect as unknown as (options: {
  readonly fd: number;
  readonly socket: SocketHandler;
}) => Promise<Socket>;
