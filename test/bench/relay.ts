// `relay.ts SOCKET`: the bare relay of the stream benchmark. Each connection to its TCP port gets the bytes of one
// connection to the unix socket, as they are. Prints the port.
import type { Socket } from "bun";

const [path = ""] = process.argv.slice(2);

interface Relayed {
  source: Socket | null;
  /** What the kernel has not taken; while there is some, nothing more is read. */
  rest: Uint8Array | null;
  ended: boolean;
}

const server = Bun.listen<Relayed>({
  hostname: "127.0.0.1",
  port: 0,
  socket: {
    binaryType: "uint8array",
    open: (client) => {
      client.data = { source: null, rest: null, ended: false };
      void Bun.connect({
        unix: path,
        socket: {
          binaryType: "uint8array",
          open: (source) => {
            client.data.source = source;
          },
          data: (source, bytes) => {
            if (!send(client, bytes as unknown as Uint8Array)) source.pause();
          },
          close: () => {
            client.data.ended = true;
            if (client.data.rest === null) client.end();
          },
        },
      });
    },
    data: () => undefined,
    drain: (client) => {
      const { rest, source, ended } = client.data;
      client.data.rest = null;
      if (rest !== null && !send(client, rest)) return;
      if (ended) client.end();
      else source?.resume();
    },
    close: (client) => {
      client.data.source?.terminate();
    },
  },
});

/** False when the kernel did not take all of it. */
function send(client: Socket<Relayed>, bytes: Uint8Array): boolean {
  const taken = Math.max(0, client.write(bytes));
  if (taken === bytes.length) return true;
  client.data.rest = bytes.subarray(taken);
  return false;
}

process.stdout.write(`${server.port}\n`);
