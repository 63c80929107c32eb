// The SSH server of the agent: listens, bounds how many connections there are, and says what a connection may open. User
// name is a sandbox's id; everything is done through the operations of the core.
import { createServer, type Server, type Socket } from "node:net";
import { limits } from "../config/limits.ts";
import { parseListen } from "../config/listen.ts";
import { AgentError } from "../errors/agent-error.ts";
import { isId } from "../sandbox/fields.ts";
import { Authentication, type Login } from "./authentication.ts";
import type { Channel } from "./channel.ts";
import { type ChannelUser, Connection, OPEN_FAILURE, type OpenRefusal } from "./connection.ts";
import type { SshDependencies } from "./dependencies.ts";
import { forward } from "./forward.ts";
import { type HostKey, loadHostKey } from "./host-key.ts";
import { Session } from "./session.ts";
import { DISCONNECT } from "./transport.ts";

const KEEP_ALIVE_MS = 60_000;
/** Statuses of the audit trail, in the words of HTTP. */
const STATUS = { done: 200, denied: 401, refused: 403 } as const;

export interface SshServer {
  /** `HOST:PORT`, with the port that was taken. */
  readonly address: string;
  readonly fingerprint: string;
  /** Stops listening and ends the connections. Resolves when nothing is open any more; more than once does no harm. */
  stop(): Promise<void>;
}

/** Starts the server that `config.listen` asks for. Rejects with `CONFIG_INVALID`. */
export async function startSshServer(dependencies: SshDependencies): Promise<SshServer> {
  const { config, stateDir } = dependencies;
  const address = parseListen(config.listen ?? "");
  if (address?.kind !== "tcp") throw new AgentError("CONFIG_INVALID", `ssh.listen = "${config.listen}" is no address`);
  const hostKey = await loadHostKey(config.host_key, stateDir);
  const connections = new Connections(dependencies, hostKey);
  const server = createServer({ noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEP_ALIVE_MS }, (socket) =>
    connections.accept(socket),
  );
  const port = await listen(server, address);
  let stopped: Promise<void> | null = null;
  return {
    address: `${address.host.includes(":") ? `[${address.host}]` : address.host}:${port}`,
    fingerprint: hostKey.fingerprint,
    stop() {
      stopped ??= new Promise((resolve) => {
        server.close(() => resolve());
        connections.end();
      });
      return stopped;
    },
  };
}

function listen(server: Server, { host, port }: { readonly host: string; readonly port: number }): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once("error", (cause: NodeJS.ErrnoException) => {
      const isTaken = cause.code === "EADDRINUSE";
      const reason = isTaken ? "another program listens there (address in use)" : cause.message;
      reject(new AgentError("CONFIG_INVALID", `cannot listen on ${host}:${port} for SSH: ${reason}`, { cause }));
    });
    server.listen({ host, port }, () => {
      const bound = server.address();
      resolve(typeof bound === "object" && bound !== null ? bound.port : port);
    });
  });
}

class Connections {
  readonly #dependencies: SshDependencies;
  readonly #hostKey: HostKey;
  readonly #authentication: Authentication;
  /** By age. */
  readonly #open = new Set<Connection>();
  readonly #stopping = new AbortController();

  constructor(dependencies: SshDependencies, hostKey: HostKey) {
    this.#dependencies = dependencies;
    this.#hostKey = hostKey;
    this.#authentication = new Authentication(dependencies.config.keys, dependencies.operations);
  }

  accept(socket: Socket): void {
    if (this.#stopping.signal.aborted || this.#open.size >= limits.sshConnectionsMax) {
      socket.destroy();
      return;
    }
    const waiting = [...this.#open].filter(({ login }) => login === null);
    // Whoever logs in does so quickly, so those who only hold their place are the oldest.
    if (waiting.length >= limits.sshUnauthenticatedMax) {
      waiting[0]!.disconnect(DISCONNECT.tooManyConnections, "too many connections that have not logged in");
    }
    const trail = new Trail(this.#dependencies);
    const connection: Connection = new Connection(socket, this.#hostKey, this.#authentication, {
      loggedIn: (login) => this.#loggedIn(login, trail),
      denied: (user) => {
        this.#dependencies.telemetry.authDenied();
        trail.write(null, isId(user) ? user : "-", "login", STATUS.denied);
      },
      closed: (reason) => {
        this.#open.delete(connection);
        this.#dependencies.telemetry.log.debug({ connection: trail.id, reason }, "an SSH connection has ended");
      },
      opened: (login, type, data, open) => this.#opened(login, type, data, { open, trail }),
    });
    this.#open.add(connection);
  }

  end(): void {
    this.#stopping.abort();
    for (const connection of [...this.#open]) connection.disconnect(DISCONNECT.byApplication, "the agent is stopping");
  }

  #loggedIn(login: Login, trail: Trail): string | null {
    const sameKey = [...this.#open].filter((connection) => connection.login?.keyId === login.keyId);
    const isTooMany = sameKey.length > limits.sshConnectionsPerKeyMax;
    trail.write(login, login.sandboxId, "login", isTooMany ? STATUS.refused : STATUS.done);
    return isTooMany ? "this key has as many connections as it may" : null;
  }

  #opened(
    login: Login,
    type: string,
    data: unknown,
    { open, trail }: { readonly open: () => Channel; readonly trail: Trail },
  ): ChannelUser | OpenRefusal | Promise<ChannelUser | OpenRefusal> {
    if (login.caller.role !== "admin") {
      trail.write(login, login.sandboxId, "open", STATUS.refused);
      return { reason: OPEN_FAILURE.prohibited, text: "this key is read-only and opens no session" };
    }
    switch (type) {
      case "session":
        return new Session({
          dependencies: this.#dependencies,
          login,
          channel: open(),
          stopping: this.#stopping.signal,
          began: (what) => trail.write(login, login.sandboxId, what, STATUS.done),
        });
      case "direct-tcpip":
        return forward({
          ports: this.#dependencies.ports,
          login,
          log: this.#dependencies.telemetry.log,
          destination: data,
          open,
          decided: (port, isGranted) =>
            trail.write(login, login.sandboxId, `forward/${port}`, isGranted ? STATUS.done : STATUS.refused),
        });
      case "direct-streamlocal@openssh.com":
        return { reason: OPEN_FAILURE.prohibited, text: "sockets in the file system are not forwarded" };
      default:
        return { reason: OPEN_FAILURE.unknownType, text: "unknown channel type" };
    }
  }
}

/** The audit lines of one connection. */
class Trail {
  readonly id = crypto.randomUUID();
  readonly #startedAtMs = performance.now();

  constructor(private readonly dependencies: SshDependencies) {}

  write(login: Login | null, sandbox: string, what: string, status: number): void {
    this.dependencies.telemetry.audit({
      actor: login?.caller.actor ?? "anonymous",
      role: login?.caller.role ?? "none",
      tenant: login?.caller.tenant ?? null,
      method: "SSH",
      path: `/${sandbox}/${what}`,
      status,
      duration_ms: Math.round(performance.now() - this.#startedAtMs),
      request_id: this.id,
    });
  }
}
