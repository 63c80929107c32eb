// Opens guest channels, in whichever protocol version the guest speaks.
import { limits } from "../config/limits.ts";
import type { ConnectOptions, GuestChannel, GuestConnector } from "../contracts/channel.ts";
import { asAgentError } from "../errors/agent-error.ts";
import { WarmChannel } from "./channel.ts";
import type { GuestConnection, Heartbeat } from "./connection.ts";
import { guestUnreachable } from "./faults.ts";
import { shakeHands, type Endpoint } from "./handshake.ts";
import { unixLink } from "./link.ts";
import { ReceiveMemory, type Receive } from "./receive-memory.ts";
import { LineChannel } from "./v1.ts";

const RETRY_FIRST_MS = 2;
const RETRY_MAX_MS = 10;

const defaultHeartbeat: Heartbeat = { idleMs: limits.guestIdleMs, pongTimeoutMs: limits.guestPongTimeoutMs };

/** What a failure to connect means on one kind of link. */
interface Patience {
  /** How long the first attempt may take; each further one may take twice as long as the one before. */
  readonly attemptMs: number;
  /** Whether a guest agent that was reached and refuses now has ended. */
  readonly isRefusalFinal: boolean;
}

/** Whoever holds the other end of a socket of the host tells at once that it is there no more. */
const ofSockets: Patience = { attemptMs: Number.POSITIVE_INFINITY, isRefusalFinal: true };
/**
 * A machine may be slow to take a connection, and one that comes back from a snapshot forgets those that it has taken
 * without telling the host, which then hears nothing however long it waits.
 */
const ofLinks: Patience = { attemptMs: 2_000, isRefusalFinal: false };

export interface ConnectorOptions {
  /** For guests that are slower than a process on the same host, and for tests. */
  readonly heartbeat?: Heartbeat;
  /** What much is received with where it comes from a process on the same host; without, the event loop receives it. */
  readonly receive?: Receive;
}

export function createGuestConnector(options: ConnectorOptions = {}): GuestConnector {
  const { heartbeat = defaultHeartbeat, receive } = options;
  const memory = receive === undefined ? null : new ReceiveMemory(receive);
  const connect = async (endpoint: Endpoint, options: ConnectOptions, patience: Patience): Promise<GuestChannel> => {
    const { connectTimeoutMs, onCut = () => undefined, signal } = options;
    const persist = (isOver: () => boolean): Promise<GuestConnection | null> =>
      connectWithRetries(endpoint, connectTimeoutMs, heartbeat, { ...patience, isOver });
    const connection = await persist(() => signal?.aborted === true);
    if (connection === null) return new LineChannel(endpoint);
    connection.whenEnded(onCut);
    return new WarmChannel(connection, async (isClosed) => {
      const next = patience.isRefusalFinal
        ? await shakeHands(endpoint, connectTimeoutMs, heartbeat)
        : await persist(isClosed);
      if (next === null) throw guestUnreachable("the guest agent speaks version 1 now");
      next.whenEnded(onCut);
      return next;
    });
  };
  return {
    unix: ({ path, device = false, ...options }) =>
      connect({ open: unixLink(path, device ? null : memory), token: options.token, device }, options, ofSockets),
    through: ({ open, ...options }) => connect({ open, token: options.token }, options, ofLinks),
  };
}

/** Tries until the guest agent answers, the time has passed or it is over; rejects with the last failure then. */
async function connectWithRetries(
  endpoint: Endpoint,
  timeoutMs: number,
  heartbeat: Heartbeat,
  limit: { readonly attemptMs: number; readonly isOver: () => boolean },
): Promise<GuestConnection | null> {
  const deadlineMs = performance.now() + timeoutMs;
  let { attemptMs } = limit;
  for (let pauseMs = RETRY_FIRST_MS; ; pauseMs = Math.min(2 * pauseMs, RETRY_MAX_MS)) {
    const leftMs = Math.max(1, deadlineMs - performance.now());
    const beganMs = performance.now();
    try {
      return await shakeHands(endpoint, Math.ceil(Math.min(leftMs, attemptMs)), heartbeat);
    } catch (error) {
      const failure = asAgentError(error);
      if (failure.code !== "GUEST_UNREACHABLE" || performance.now() + pauseMs >= deadlineMs) throw failure;
      if (performance.now() - beganMs >= attemptMs) attemptMs *= 2;
      await Bun.sleep(pauseMs);
      if (limit.isOver()) throw failure;
    }
  }
}
