// Puts the application on a TCP or unix socket, with TLS where configured, and takes it off again without cutting the
// requests that are in progress.
import { lstat, unlink } from "node:fs/promises";
import { connect } from "node:net";
import type { Elysia } from "elysia";
import { limits } from "../config/limits.ts";
import { isLoopbackListen, parseListen } from "../config/listen.ts";
import type { Config } from "../config/schema.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Exchanges } from "./exchange.ts";

type ListenConfig = Pick<Config, "listen" | "auth" | "tls">;

export interface HttpServer {
  /** `http://127.0.0.1:7788`, `https://…` or `unix:/path`. */
  readonly url: string;
  /**
   * Stops accepting, lets the requests in progress finish within `budgetMs`, then closes what is left. Resolves when
   * nothing is open any more.
   */
  stop(budgetMs: number): Promise<void>;
}

/** A socket file is made for its owner only. */
const SOCKET_UMASK = 0o177;
/** Bodies are bounded by the routes, which answer with JSON; Bun's own answer would be empty. */
const BUN_BODY_MAX_BYTES = Number.MAX_SAFE_INTEGER;

/** Listens; rejects with `CONFIG_INVALID`. */
export async function listen(app: Elysia, config: ListenConfig, exchanges: Exchanges): Promise<HttpServer> {
  const address = parseListen(config.listen);
  if (address === null) throw new AgentError("CONFIG_INVALID", `listen = "${config.listen}" is not an address`);
  if (!isLoopbackListen(config.listen) && config.auth.tokens.length === 0) {
    throw new AgentError("CONFIG_INVALID", `listen = "${config.listen}" is not loopback and needs auth.tokens`);
  }
  const tls = await loadTls(config.tls);
  const options = {
    reusePort: false,
    idleTimeout: limits.connectionIdleSecs,
    maxRequestBodySize: BUN_BODY_MAX_BYTES,
    websocket: { maxPayloadLength: limits.socketMessageMaxBytes },
    // Otherwise what no layer caught would be answered with a page that shows the source.
    development: false,
    error: (error: unknown) => exchanges.failed(error),
    ...(tls === null ? {} : { tls }),
  };
  const url = address.kind === "unix" ? await listenUnix(app, address.path, options) : listenTcp(app, address, options);
  const server = app.server!;
  return {
    url,
    async stop(budgetMs) {
      exchanges.drain();
      const timer = setTimeout(() => void server.stop(true), budgetMs);
      await server.stop();
      clearTimeout(timer);
    },
  };
}

function listenTcp(app: Elysia, { host, port }: { host: string; port: number }, options: object): string {
  const urlHost = host.includes(":") ? `[${host}]` : host;
  try {
    app.listen({ ...options, hostname: host, port });
  } catch (error) {
    throw cannotListen(`${urlHost}:${port}`, error);
  }
  const scheme = "tls" in options ? "https" : "http";
  return `${scheme}://${urlHost}:${app.server!.port}`;
}

function cannotListen(address: string, cause: unknown): AgentError {
  const inUse = (cause as NodeJS.ErrnoException).code === "EADDRINUSE";
  const reason = inUse ? "another program listens there (address in use)" : (cause as Error).message;
  return new AgentError("CONFIG_INVALID", `cannot listen on ${address}: ${reason}`, { cause });
}

async function listenUnix(app: Elysia, path: string, options: object): Promise<string> {
  await removeStaleSocket(path);
  const umask = process.umask(SOCKET_UMASK);
  try {
    app.listen({ ...options, unix: path } as never);
  } catch (error) {
    throw cannotListen(path, error);
  } finally {
    process.umask(umask);
  }
  return `unix:${path}`;
}

/** Removes a socket file that nobody answers on; rejects when somebody does or when the path is something else. */
async function removeStaleSocket(path: string): Promise<void> {
  const stat = await lstat(path).catch(() => null);
  if (stat === null) return;
  if (!stat.isSocket()) throw new AgentError("CONFIG_INVALID", `${path} exists and is not a socket`);
  if (await isAnswered(path)) throw new AgentError("CONFIG_INVALID", `another server listens on ${path}`);
  await unlink(path);
}

function isAnswered(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    socket.once("connect", () => {
      socket.destroy();
      resolve(true);
    });
    socket.once("error", () => resolve(false));
  });
}

async function loadTls(tls: ListenConfig["tls"]): Promise<object | null> {
  if (tls.cert === null && tls.key === null && tls.client_ca === null) return null;
  if (tls.cert === null || tls.key === null) throw new AgentError("CONFIG_INVALID", "tls needs both cert and key");
  const server = { cert: await readPem(tls.cert), key: await readPem(tls.key) };
  if (tls.client_ca === null) return server;
  return { ...server, ca: await readPem(tls.client_ca), requestCert: true, rejectUnauthorized: true };
}

async function readPem(path: string): Promise<string> {
  try {
    return await Bun.file(path).text();
  } catch (error) {
    throw new AgentError("CONFIG_INVALID", `cannot read ${path}`, { cause: error });
  }
}
