// The usual way to a guest agent: a unix socket.
import type { OpenLink } from "../contracts/channel.ts";

/** Rejects with what the system says, for example `ENOENT`. */
export function unixLink(path: string): OpenLink {
  return (events) =>
    Bun.connect({
      unix: path,
      socket: {
        binaryType: "uint8array",
        open: (socket) => events.opened(socket),
        data: (_, bytes) => events.received(bytes as Uint8Array),
        drain: () => events.writable(),
        close: () => events.closed("the peer closed the connection"),
        end: () => events.closed("the peer closed the connection"),
        error: (_, error) => events.closed(error.message),
      },
    });
}
