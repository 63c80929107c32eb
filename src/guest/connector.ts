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

/** It is tried again after a share of the time that it has been waited for: each attempt costs a guest that boots. */
const RETRY_SHARE = 1 / 50;
/** An attempt may take another share: a slow guest needs the time, and what a guest loses as it boots costs no more. */
const ATTEMPT_SHARE = 1 / 4;
const RETRY_MIN_MS = 2;
const RETRY_MAX_MS = 100;

const defaultHeartbeat: Heartbeat = { idleMs: limits.guestIdleMs, pongTimeoutMs: limits.guestPongTimeoutMs };

/** What a failure to connect means on one kind of link. */
interface Patience {
  /** How long an attempt may take at least. */
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
  const startedMs = performance.now();
  const deadlineMs = startedMs + timeoutMs;
  for (;;) {
    const beganMs = performance.now();
    const leftMs = Math.max(1, deadlineMs - beganMs);
    const attemptMs = Math.max(limit.attemptMs, (beganMs - startedMs) * ATTEMPT_SHARE);
    try {
      return await shakeHands(endpoint, Math.ceil(Math.min(leftMs, attemptMs)), heartbeat);
    } catch (error) {
      const failure = asAgentError(error);
      const waitedMs = performance.now() - startedMs;
      const pauseMs = Math.min(Math.max(RETRY_MIN_MS, waitedMs * RETRY_SHARE), RETRY_MAX_MS);
      if (failure.code !== "GUEST_UNREACHABLE" || performance.now() + pauseMs >= deadlineMs) throw failure;
      await Bun.sleep(pauseMs);
      if (limit.isOver()) throw failure;
    }
  }
}
