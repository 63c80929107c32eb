// One HTTP request to an agent: where it is, who asks, and what went wrong.
import { ApiError, UnreachableError } from "./errors.ts";

export interface Connection {
  /** Base URL without a slash at its end. */
  readonly url: string;
  /** Path of the agent's socket, when it listens on one; only Bun's `fetch` can use it, and `tls`. */
  readonly unix: string | null;
  readonly token: string | null;
  readonly tls: { readonly ca?: string; readonly cert?: string; readonly key?: string } | null;
}

export type Query = Readonly<Record<string, string | number | boolean | undefined>>;

/** What can be sent as it is. */
export type Content = Uint8Array | Blob | ReadableStream<Uint8Array>;

export interface RequestOptions {
  /** Sent as JSON. */
  readonly json?: unknown;
  /** Sent as it is. */
  readonly bytes?: Content;
  readonly query?: Query;
  readonly accept?: string;
  readonly headers?: Readonly<Record<string, string | undefined>>;
  /** Ends the request and the body of its response. */
  readonly signal?: AbortSignal;
}

/** Two outputs of 16 MiB in base64 and text, with room. */
const REPLY_MAX_BYTES = 256 * 1024 * 1024;
const ERROR_MAX_CHARS = 500;

export class Transport {
  constructor(private readonly connection: Connection) {
    bypassProxy(connection.url);
  }

  /** Where it talks to, as people write it. */
  get address(): string {
    const { url, unix } = this.connection;
    return unix === null ? url : `unix:${unix}`;
  }

  /**
   * Calls a route; resolves when the head of a success has come. Rejects with `ApiError` or `UnreachableError`. There is
   * no time limit but the signal's.
   */
  async request(method: string, path: string, options: RequestOptions = {}): Promise<Response> {
    const { url, token, unix, tls } = this.connection;
    const { json, bytes, accept = "application/json", signal } = options;
    const headers: Record<string, string> = { accept };
    for (const [name, value] of Object.entries(options.headers ?? {})) if (value !== undefined) headers[name] = value;
    if (token !== null) headers.authorization = `Bearer ${token}`;
    if (json !== undefined) headers["content-type"] = "application/json";
    const init = {
      method,
      headers,
      body: json === undefined ? bytes : JSON.stringify(json),
      ...(bytes instanceof ReadableStream ? { duplex: "half" } : {}),
      // A redirect would carry the token elsewhere.
      redirect: "manual",
      signal,
      timeout: false,
      ...(unix === null ? {} : { unix }),
      ...(tls === null ? {} : { tls }),
    } as unknown as RequestInit;
    let response: Response;
    try {
      response = await fetch(`${url}${path}${queryText(options.query)}`, init);
    } catch (error) {
      throw this.#unreachable(error);
    }
    if (!response.ok) throw errorOf(response, await this.text(response));
    return response;
  }

  /** Where a WebSocket of `path` is. Throws `UnreachableError` on a unix socket, which has none. */
  socketUrl(path: string): string {
    const { url, unix } = this.connection;
    if (unix !== null) throw new UnreachableError("there are no WebSockets over a unix socket");
    return url.replace(/^http/, "ws") + path;
  }

  /**
   * Begins to open a WebSocket. A browser cannot say who asks, so there only an agent without tokens lets it in. Throws
   * `UnreachableError` where there are no WebSockets.
   */
  openSocket(url: string, protocol: string): WebSocket {
    const { token, tls } = this.connection;
    if (typeof WebSocket === "undefined") throw new UnreachableError("there are no WebSockets here");
    if (typeof process === "undefined") return new WebSocket(url, protocol);
    const headers = token === null ? {} : { authorization: `Bearer ${token}` };
    const options = { protocols: [protocol], headers, ...(tls === null ? {} : { tls }) };
    return new WebSocket(url, options as never);
  }

  /** Calls a route and answers its JSON body, null when there is none. Rejects as `request` does. */
  async json<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    const response = await this.request(method, path, options);
    const text = await this.text(response);
    if (text === "") return null as T;
    const body = parseJson(text);
    if (body === undefined) throw new ApiError(response.status, "REPLY_INVALID", "the answer is not JSON");
    return body as T;
  }

  /** The whole body, bounded. */
  async text(response: Response): Promise<string> {
    const decoder = new TextDecoder();
    let text = "";
    let length = 0;
    const reader = response.body?.getReader();
    try {
      for (let next = await reader?.read(); next?.done === false; next = await reader?.read()) {
        length += next.value.length;
        if (length > REPLY_MAX_BYTES) throw new ApiError(response.status, "REPLY_TOO_LARGE", "the answer is too large");
        text += decoder.decode(next.value, { stream: true });
      }
    } catch (error) {
      // Of a connection that is gone already, this rejects.
      reader?.cancel().catch(() => {});
      throw error instanceof ApiError ? error : this.#unreachable(error);
    }
    return text + decoder.decode();
  }

  #unreachable(error: unknown): UnreachableError {
    return new UnreachableError(`cannot reach the agent at ${this.address}: ${reasonOf(error)}`, { cause: error });
  }
}

/** A name as a part of a path. Throws `ApiError` for one that would lead to another path, as `..` does. */
export function segment(name: string): string {
  if (["", ".", ".."].includes(name)) throw new ApiError(0, "BAD_REQUEST", `"${name}" names nothing`);
  return encodeURIComponent(name);
}

function queryText(query: RequestOptions["query"] = {}): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined) parameters.set(name, String(value));
  return parameters.size === 0 ? "" : `?${parameters}`;
}

/** A proxy of the environment cannot reach this host's own addresses, and has no business seeing the token. */
function bypassProxy(url: string): void {
  if (typeof process === "undefined") return;
  const { hostname } = new URL(url);
  if (!["localhost", "[::1]"].includes(hostname) && !hostname.startsWith("127.")) return;
  for (const name of ["NO_PROXY", "no_proxy"]) {
    process.env[name] = [process.env[name], hostname.replace(/^\[|\]$/g, "")].filter(Boolean).join(",");
  }
}

function errorOf(response: Response, text: string): ApiError {
  const parsed = parseJson(text);
  const body = (typeof parsed === "object" && parsed !== null ? parsed : {}) as Record<string, unknown>;
  const { error, code, details } = body;
  const message = typeof error === "string" ? error : text.trim().slice(0, ERROR_MAX_CHARS) || response.statusText;
  return new ApiError(
    response.status,
    typeof code === "string" ? code : `HTTP_${response.status}`,
    message,
    typeof details === "object" && details !== null ? (details as Record<string, unknown>) : {},
    body,
  );
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: "connection refused; is it running?",
  ENOENT: "no such socket; is it running?",
  ECONNRESET: "the connection was cut",
  ConnectionClosed: "the connection was cut",
  EACCES: "permission denied",
};

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  if (error.name === "TimeoutError") return "no answer in time";
  // Node says it in the cause.
  const { code = "" } = (error.cause instanceof Error ? error.cause : error) as { readonly code?: string };
  return REASONS[code] ?? (code === "" || error.message.includes(code) ? error.message : `${error.message} (${code})`);
}
