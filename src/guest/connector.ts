// Opens guest channels, in whichever protocol version the guest speaks.
import { limits } from "../config/limits.ts";
import type { ConnectOptions, GuestChannel, GuestConnector } from "../contracts/channel.ts";
import { asAgentError } from "../errors/agent-error.ts";
import { WarmChannel } from "./channel.ts";
import type { GuestConnection, Heartbeat } from "./connection.ts";
import { guestUnreachable } from "./faults.ts";
import { shakeHands, type Endpoint } from "./handshake.ts";
import { unixLink } from "./link.ts";
import { LineChannel } from "./v1.ts";

const RETRY_FIRST_MS = 2;
const RETRY_MAX_MS = 10;

const defaultHeartbeat: Heartbeat = { idleMs: limits.guestIdleMs, pongTimeoutMs: limits.guestPongTimeoutMs };

/** `heartbeat` is for guests that are slower than a process on the same host, and for tests. */
export function createGuestConnector(heartbeat: Heartbeat = defaultHeartbeat): GuestConnector {
  const connect = async (endpoint: Endpoint, options: ConnectOptions): Promise<GuestChannel> => {
    const { connectTimeoutMs, onCut = () => undefined } = options;
    const connection = await connectWithRetries(endpoint, connectTimeoutMs, heartbeat);
    if (connection === null) return new LineChannel(endpoint);
    connection.whenEnded(onCut);
    return new WarmChannel(connection, async () => {
      const next = await reconnect(endpoint, connectTimeoutMs, heartbeat);
      next.whenEnded(onCut);
      return next;
    });
  };
  return {
    unix: ({ path, device = false, ...options }) =>
      connect({ open: unixLink(path), token: options.token, device }, options),
    through: ({ open, ...options }) => connect({ open, token: options.token }, options),
  };
}

async function connectWithRetries(
  endpoint: Endpoint,
  timeoutMs: number,
  heartbeat: Heartbeat,
): Promise<GuestConnection | null> {
  const deadlineMs = performance.now() + timeoutMs;
  for (let pauseMs = RETRY_FIRST_MS; ; pauseMs = Math.min(2 * pauseMs, RETRY_MAX_MS)) {
    const leftMs = Math.max(1, deadlineMs - performance.now());
    try {
      return await shakeHands(endpoint, Math.ceil(leftMs), heartbeat);
    } catch (error) {
      const failure = asAgentError(error);
      if (failure.code !== "GUEST_UNREACHABLE" || performance.now() + pauseMs >= deadlineMs) throw failure;
      await Bun.sleep(pauseMs);
    }
  }
}

/** One attempt: a guest agent that was there and refuses now has ended. */
async function reconnect(endpoint: Endpoint, timeoutMs: number, heartbeat: Heartbeat): Promise<GuestConnection> {
  const connection = await shakeHands(endpoint, timeoutMs, heartbeat);
  if (connection === null) throw guestUnreachable("the guest agent speaks version 1 now");
  return connection;
}
