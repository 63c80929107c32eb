// A way from this process to a TCP port of the loopback in another network namespace: what connects to the same port here
// goes through a unix socket to a process that is there. Started as a program it is that process; its arguments are the
// socket's path and the port.
import { connect, createServer, type Server, type Socket } from "node:net";
import type { Subprocess } from "bun";

export class Door implements AsyncDisposable {
  private constructor(
    private readonly server: Server,
    private readonly sockets: ReadonlySet<Socket>,
    private readonly inside: Subprocess,
  ) {}

  /** Resolves when both ends listen. `socket`: a path where nothing is. */
  static async open(namespace: string, port: number, socket: string): Promise<Door> {
    const argv = ["nsenter", `--net=/run/netns/${namespace}`, process.execPath, import.meta.path, socket, String(port)];
    const inside = Bun.spawn(argv, { stdin: "pipe", stdout: "pipe", stderr: "inherit" });
    await inside.stdout.getReader().read();
    const sockets = new Set<Socket>();
    const server = relay(() => connect(socket), sockets);
    await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
    return new Door(server, sockets, inside);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.server.close();
    for (const socket of this.sockets) socket.destroy();
    this.inside.kill("SIGKILL");
    await this.inside.exited;
  }
}

function relay(far: () => Socket, sockets: Set<Socket>): Server {
  return createServer((near) => {
    const other = far();
    for (const [from, to] of [
      [near, other],
      [other, near],
    ] as const) {
      sockets.add(from);
      from.on("error", () => {});
      from.on("close", () => {
        sockets.delete(from);
        to.destroy();
      });
      from.pipe(to);
    }
  });
}

if (import.meta.main) {
  const [socket = "", port = ""] = process.argv.slice(2);
  relay(() => connect(Number(port), "127.0.0.1"), new Set()).listen(socket, () => console.log("open"));
  // Ends with whoever started it.
  process.stdin.on("end", () => process.exit(0)).resume();
}
