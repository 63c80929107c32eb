// Turns a request into a WebSocket. A handler answers with `upgradeResponse` once it knows that the caller may have one;
// the server makes the socket after every layer has seen the response.
import type { ServerWebSocket } from "bun";
import { AgentError } from "../../errors/agent-error.ts";

/** What a socket is for the server; the names are those by which it finds them. */
export interface SocketHandler {
  open(socket: ServerWebSocket<unknown>): void;
  message(socket: ServerWebSocket<unknown>, message: string | Buffer): void;
  /** What was sent has gone out. */
  drain(socket: ServerWebSocket<unknown>): void;
  /** The socket is gone, or was never made. */
  close(): void;
}

const handlers = new WeakMap<Response, SocketHandler>();
const VERSION = "13";

/** Throws `UPGRADE_REQUIRED` unless the request asks for a WebSocket. */
export function checkUpgrade({ headers }: Request): void {
  const isWebSocket = headers.get("upgrade")?.toLowerCase() === "websocket";
  if (isWebSocket && headers.get("sec-websocket-version") === VERSION && headers.has("sec-websocket-key")) return;
  throw new AgentError("UPGRADE_REQUIRED");
}

/** The answer to a request that becomes a socket of `handler`; `protocol` is the one chosen from those offered. */
export function upgradeResponse(handler: SocketHandler, protocol: string | null): Response {
  const response = new Response(null, {
    status: 101,
    headers: protocol === null ? {} : { "sec-websocket-protocol": protocol },
  });
  handlers.set(response, handler);
  return response;
}

/** The handler of a response that is an upgrade; undefined for every other. */
export function socketHandlerOf(response: Response): SocketHandler | undefined {
  return handlers.get(response);
}
