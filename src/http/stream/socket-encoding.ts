// How frames look as messages of a WebSocket, by the subprotocol that the client asks for: a msgpack map in a binary
// message, or JSON in a text message.
import type { ServerWebSocket } from "bun";
import { AgentError } from "../../errors/agent-error.ts";
import { type Framing, framings } from "./framing.ts";

export interface SocketEncoding {
  readonly protocol: string;
  /** Every frame is one part, as every message is one piece of memory. */
  readonly framing: Framing;
  /** What the server's `send` says: bytes sent, -1 when they wait for the client, 0 when they were dropped. */
  send(socket: ServerWebSocket<unknown>, frame: Uint8Array): number;
}

const LENGTH_BYTES = 4;
const decoder = new TextDecoder();

export const socketEncodings = {
  msgpack: {
    protocol: "fluxvm.stream.msgpack",
    framing: inOnePart(framings.msgpack),
    // A message has a length of its own.
    send: (socket, frame) => socket.sendBinary(frame.subarray(LENGTH_BYTES) as Uint8Array<ArrayBuffer>),
  },
  json: {
    protocol: "fluxvm.stream.json",
    framing: framings.ndjson,
    send: (socket, frame) => socket.sendText(decoder.decode(frame.subarray(0, -1))),
  },
} as const satisfies Record<string, SocketEncoding>;

/**
 * The bytes of output and nothing else, a binary message each. How it ended has no place in it, and neither have
 * keep-alives, which are pings of the socket's own.
 */
export const rawEncoding: SocketEncoding = {
  protocol: "",
  // An empty part all the same, because a stream goes on with the next.
  framing: { contentType: "", encode: ({ data }) => [data instanceof Uint8Array ? data : new Uint8Array(0)] },
  send: (socket, bytes) => (bytes.length === 0 ? 1 : socket.sendBinary(bytes as Uint8Array<ArrayBuffer>)),
};

function inOnePart({ contentType, encode }: Framing): Framing {
  const joined = (parts: readonly Uint8Array[]) => (parts.length === 1 ? parts : [Buffer.concat(parts)]);
  return { contentType, encode: (frame) => joined(encode(frame)) };
}

/** The first offered subprotocol that is known; JSON when none is offered. Throws `BAD_REQUEST` for unknown ones. */
export function chosenEncoding(offered: string | null): SocketEncoding {
  if (offered === null) return socketEncodings.json;
  const known: readonly SocketEncoding[] = Object.values(socketEncodings);
  const names = offered.split(",").map((name) => name.trim());
  const chosen = names.map((name) => known.find(({ protocol }) => protocol === name)).find((one) => one !== undefined);
  if (chosen !== undefined) return chosen;
  const choices = known.map(({ protocol }) => protocol).join(", ");
  throw new AgentError("BAD_REQUEST", `no known WebSocket subprotocol; offer one of ${choices}`);
}
