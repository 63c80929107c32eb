// A serial console on a WebSocket: what the guest writes comes as binary messages, and every message is keystrokes.
import type { Logger } from "../../contracts/log.ts";
import type { PortConnection } from "../../contracts/ports.ts";
import { asAgentError } from "../../errors/agent-error.ts";
import type { Place } from "../stream/attached.ts";
import type { FrameSource } from "../stream/frame.ts";
import { FrameSocket, MessageError } from "../stream/socket.ts";
import { rawEncoding } from "../stream/socket-encoding.ts";

/** The socket of a connection, which it closes at its end. */
export function serialSocket(connection: PortConnection, place: Place, log: Logger): FrameSocket {
  const source: FrameSource = {
    next: async () => {
      const data = await connection.read();
      return data === null ? null : { type: "output", data };
    },
    close: () => connection.close(),
  };
  const answer = async (message: string | Uint8Array): Promise<null> => {
    try {
      await connection.write(typeof message === "string" ? Buffer.from(message) : message);
    } catch (error) {
      throw new MessageError(asAgentError(error).message);
    }
    return null;
  };
  return new FrameSocket(source, { encoding: rawEncoding, place, log, answer });
}
