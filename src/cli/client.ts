// A small client of the agent's API: one call, one JSON reply, or one of two errors.
import type { Connection } from "./connection.ts";

/** The agent answered that it cannot or will not: exit status 1. */
export class ApiError extends Error {
  override readonly name = "ApiError";
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The agent could not be reached, or its answer did not come: exit status 3. */
export class UnreachableError extends Error {
  override readonly name = "UnreachableError";
}

export interface CallOptions {
  readonly body?: unknown;
  readonly query?: Readonly<Record<string, string | undefined>>;
  /** How long the whole answer may take. */
  readonly timeoutMs?: number;
}

const TIMEOUT_MS = 60_000;
/** Two outputs of 16 MiB in base64 and text, with room. */
const REPLY_MAX_BYTES = 256 * 1024 * 1024;

export class ApiClient {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
    bypassProxy(connection.url);
  }

  /** Where it talks to, as people write it. */
  get address(): string {
    const { url, unix } = this.#connection;
    return unix === null ? url : `unix:${unix}`;
  }

  /** Calls a route and answers its JSON body (null when there is none). Throws `ApiError` or `UnreachableError`. */
  async call<T>(method: string, path: string, options: CallOptions = {}): Promise<T> {
    const { url, token, unix, tls } = this.#connection;
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(options.query ?? {})) if (value !== undefined) query.set(name, value);
    const headers: Record<string, string> = { accept: "application/json" };
    if (token !== null) headers.authorization = `Bearer ${token}`;
    if (options.body !== undefined) headers["content-type"] = "application/json";
    try {
      const response = await fetch(`${url}${path}${query.size === 0 ? "" : `?${query}`}`, {
        method,
        headers,
        body: options.body === undefined ? undefined : JSON.stringify(options.body),
        // A redirect would carry the token elsewhere.
        redirect: "manual",
        signal: AbortSignal.timeout(options.timeoutMs ?? TIMEOUT_MS),
        ...(unix === null ? {} : { unix }),
        ...(tls === null ? {} : { tls }),
      });
      return await readReply<T>(response);
    } catch (error) {
      if (error instanceof ApiError) throw error;
      throw new UnreachableError(`cannot reach the agent at ${this.address}: ${reasonOf(error)}`, { cause: error });
    }
  }
}

/** A proxy of the environment cannot reach this host's own addresses, and has no business seeing the token. */
function bypassProxy(url: string): void {
  const { hostname } = new URL(url);
  if (!["localhost", "[::1]"].includes(hostname) && !hostname.startsWith("127.")) return;
  for (const name of ["NO_PROXY", "no_proxy"]) {
    process.env[name] = [process.env[name], hostname.replace(/^\[|\]$/g, "")].filter(Boolean).join(",");
  }
}

async function readReply<T>(response: Response): Promise<T> {
  const text = await readText(response);
  const body = parseJson(text);
  if (response.ok) {
    if (text === "") return null as T;
    if (body === undefined) throw new ApiError(response.status, "REPLY_INVALID", "the answer is not JSON");
    return body as T;
  }
  const { error, code } = (typeof body === "object" && body !== null ? body : {}) as {
    error?: unknown;
    code?: unknown;
  };
  const message = typeof error === "string" ? error : text.trim().slice(0, 500) || response.statusText;
  throw new ApiError(response.status, typeof code === "string" ? code : `HTTP_${response.status}`, message);
}

async function readText(response: Response): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  let length = 0;
  for await (const chunk of response.body ?? []) {
    length += chunk.length;
    if (length > REPLY_MAX_BYTES) throw new ApiError(response.status, "REPLY_TOO_LARGE", "the answer is too large");
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
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
  const code = String((error as NodeJS.ErrnoException).code ?? "");
  return REASONS[code] ?? (code === "" || error.message.includes(code) ? error.message : `${error.message} (${code})`);
}
